"""Results of benchmarks as pages, word for word."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["NOTES", "result_images", "result_pages"]

NOTES: Final = """\
# Results

Each page here is a file of `benchmarks/results` as the benchmark, or who ran it, wrote it: what was
run, where and when, is said there. Whatever is lost is shown, too.

Times were taken on shared machines without a GPU. Compare what stands in one table, not tables with
each other; peaks, makespans of plans and bounds are exact and come back on any machine.
"""


def result_pages(root: Path) -> dict[str, tuple[str, str]]:
    """Title and text of each file of results, by its path among them."""
    folder = root / "benchmarks" / "results"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md"))}
    return {
        path.relative_to(folder).as_posix(): (_title(path, text), text)
        for path, text in texts.items()
    }


def result_images(root: Path) -> dict[str, bytes]:
    """The pictures beside them."""
    folder = root / "benchmarks" / "results"
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in {".png", ".svg"}]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _title(path: Path, text: str) -> str:
    first = text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else path.stem
