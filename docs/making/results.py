"""Results of benchmarks as pages, word for word, with their pictures."""

from __future__ import annotations

from collections.abc import Collection
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
_IMAGES: Final = {".png", ".svg"}


def result_pages(root: Path) -> dict[str, tuple[str, str]]:
    """Title and text of each file of results, by its path among them.

    Pictures in a folder of a file's name follow its text, unless it shows them itself.
    """
    folder = root / "benchmarks" / "results"
    images = result_images(root)
    pages = {}
    for path in sorted(folder.rglob("*.md")):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        pages[name] = _title(path, text), text + _pictures(name, text, images)
    return pages


def result_images(root: Path) -> dict[str, bytes]:
    """The pictures beside them."""
    folder = root / "benchmarks" / "results"
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in _IMAGES]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _title(path: Path, text: str) -> str:
    first = text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else path.stem


def _pictures(name: str, text: str, images: Collection[str]) -> str:
    parent, own = name.rpartition("/")[0], name.removesuffix(".md") + "/"
    places = [image.removeprefix(f"{parent}/") for image in images if image.startswith(own)]
    missing = [place for place in places if place not in text]
    if not missing:
        return ""
    shown = [f"![{Path(place).stem}]({place})" for place in missing]
    return "\n".join(["", "## Pictures", "", "\n\n".join(shown), ""])
