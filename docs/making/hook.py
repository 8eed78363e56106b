"""Pages and pictures that are made when the documents are built, so that they cannot drift.

mkdocs calls the functions here. Results of benchmarks are shown as they lie in
``benchmarks/results``; the command line's page is what ``--help`` says; pictures are drawn from
plans that are solved now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from command_line import command_line_page
from pictures import PICTURES
from references import references_page
from results import NOTES, result_images, result_pages

ROOT: Final = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every file of results has its place in the navigation."""
    results = next(entry["Results"] for entry in config.nav or [] if "Results" in entry)
    results.extend({title: f"results/{name}"} for name, (title, _) in result_pages(ROOT).items())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """What the folder of documents lacks."""
    made: dict[str, str | bytes] = {
        "command-line.md": command_line_page(),
        "references.md": references_page(ROOT / "docs" / "references.bib"),
        "results/index.md": NOTES,
    }
    made |= {f"results/{name}": text for name, (_, text) in result_pages(ROOT).items()}
    made |= {f"results/{name}": data for name, data in result_images(ROOT).items()}
    made |= {f"pictures/{name}.svg": draw() for name, draw in PICTURES.items()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files
