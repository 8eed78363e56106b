"""Pages and pictures that are made when the documents are built, so that they cannot drift.

mkdocs calls the functions here. Results of benchmarks are shown as they lie in
``benchmarks/results``; the command line's page is what ``--help`` says; pictures are drawn from
plans that are solved now.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from command_line import command_line_page
from pictures import PICTURES
from references import citations, references_page
from results import NOTES, result_images, result_pages

ROOT: Final = Path(__file__).parents[2]
BIBLIOGRAPHY: Final = ROOT / "docs" / "references.bib"
SHIM: Final = "https://unpkg.com/iframe-worker/shim"
"""The one thing that the theme's pages would load from a network; see `docs/vendored`."""
VENDORED_SHIM: Final = "vendored/iframe-worker.js"
LOADED: Final = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(https?:[^"'> ]+)"""
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every file of results has its place in the navigation."""
    results = next(entry["Results"] for entry in config.nav or [] if "Results" in entry)
    pages = result_pages(ROOT)
    results.extend({title: f"results/{name}"} for name, (title, _) in pages.items())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """What the folder of documents lacks."""
    made: dict[str, str | bytes] = {
        "command-line.md": command_line_page(),
        "references.md": references_page(BIBLIOGRAPHY),
        "results/index.md": NOTES,
    }
    made |= {f"results/{name}": text for name, (_, text) in result_pages(ROOT).items()}
    made |= {f"results/{name}": content for name, content in result_images(ROOT).items()}
    made |= {f"pictures/{name}.svg": draw() for name, draw in PICTURES.items()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Citation keys in brackets lead to the references."""
    source = page.file.src_uri
    if source == "references.md":
        return markdown
    return markdown + citations(BIBLIOGRAPHY, "../" * source.count("/") + "references.md")


def on_page_content(html: str, **_: Any) -> str:
    """Numbers and their units stay on one line."""
    return html.replace('<td style="text-align: right;">', '<td class="number">')


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Nothing is loaded from a network.

    Raises:
        PluginError: Something else than the shim would be.
    """
    output = output.replace(SHIM, get_relative_url(VENDORED_SHIM, page.url))
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load {found[1]} from a network; vendor it")
    return output


def on_post_template(output_content: str, **_: Any) -> str:
    """Likewise, for the page of a server that finds nothing."""
    return output_content.replace(SHIM, f"/{VENDORED_SHIM}")
