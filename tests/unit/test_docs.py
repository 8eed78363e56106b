"""The documents: their programs run, their API has every public name, their pictures are drawn.

That the pages build without a warning is `make docs`'s part.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

import chainstay

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Blocks marked ``py`` are files of `examples`, which have a test of their own."""
NAMES = re.compile(r"^::: chainstay\.(\w+)$", re.MULTILINE)
PAGES = ("adding-a-method", "choosing", "index", "plan-files", "planning-ahead", "solving")


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What makes pages can be imported, as when they are built."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(DOCS / "making"))
    yield
    for name in set(sys.modules) - before:
        if "making" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", [PAGES[0], "../README", *PAGES[1:]])
def test_programs_run(page: str) -> None:
    """All blocks of a page, one after another, as a reader would paste them; then its tests."""
    module = ModuleType("pasted_" + re.sub(r"\W", "_", page))  # TorchDynamo keeps modules by name
    sys.modules[module.__name__] = module  # where dataclasses look for their module
    try:
        for block in PROGRAM.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")):
            exec(compile(block, f"{page}.md", "exec"), vars(module))
        tests = [value for name, value in vars(module).items() if name.startswith("test_")]
        assert (len(tests) == 3) == (page == "adding-a-method")
        for test in tests:
            test()
    finally:
        del sys.modules[module.__name__]


def test_every_page_with_programs_is_run() -> None:
    found = {
        path.stem for path in DOCS.glob("*.md") if PROGRAM.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(PAGES)


def test_api_has_every_public_name_once() -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md"))]
    shown = [name for page in pages for name in NAMES.findall(page)]
    assert sorted(shown) == sorted(chainstay.__all__)


def test_names_of_the_notation_exist() -> None:
    page = (DOCS / "notation.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z]\w+)\.(\w+)", page)
    assert len(named) > 20
    for owner, name in named:
        of = getattr(chainstay, owner)
        assert hasattr(of, name) or f" {name}: " in of.__doc__, f"{owner}.{name}"


@pytest.mark.usefixtures("making")
def test_command_line_page_has_every_command() -> None:
    from command_line import command_line_page  # noqa: PLC0415  # its folder is on the path now

    page = command_line_page()
    commands = re.findall(r"^## chainstay (\w+)$", page, re.MULTILINE)
    assert commands == ["profile", "plan", "run", "verify", "bench", "report"]
    assert page.count("Usage: chainstay") == 1 + len(commands)
    assert all("\n  chainstay " + name in page or name in page for name in commands)
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.usefixtures("making")
def test_references_have_every_key_that_is_cited() -> None:
    from references import references_page  # noqa: PLC0415  # likewise

    page = references_page(DOCS / "references.bib")
    bibliography = (DOCS / "references.bib").read_text(encoding="utf-8")
    keys = set(re.findall(r"^@\w+\{(\w+),", bibliography, re.MULTILINE))
    assert keys
    assert all(f"**[{key}]**{{ #{key} }}" in page for key in keys)
    cited = {
        key
        for path in DOCS.rglob("*.md")
        for key in re.findall(r"\[([A-Z]{3,6}\d{2}|POFO)\]", path.read_text(encoding="utf-8"))
    }
    assert cited <= keys


@pytest.mark.usefixtures("making")
def test_pictures_are_drawn_and_used() -> None:
    from pictures import PICTURES  # noqa: PLC0415  # likewise

    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert set(re.findall(r"\(pictures/([\w-]+)\.svg\)", text)) == set(PICTURES)
    for name in ("stages", "half"):
        root = ET.fromstring(PICTURES[name]())
        assert root.tag.endswith("svg")
        assert len(list(root.iter())) > 100


@pytest.mark.usefixtures("making")
def test_results_are_shown_word_for_word_with_their_pictures(tmp_path: Path) -> None:
    from results import result_images, result_pages  # noqa: PLC0415  # likewise

    folder = tmp_path / "benchmarks" / "results"
    (folder / "speed").mkdir(parents=True)
    (folder / "speed.md").write_text("# How fast\n\n![a](speed/a.png)\n", encoding="utf-8")
    (folder / "plain.md").write_text("No title.\n", encoding="utf-8")
    for name in ("a.png", "b.svg"):
        (folder / "speed" / name).write_bytes(name.encode())
    assert result_images(tmp_path) == {"speed/a.png": b"a.png", "speed/b.svg": b"b.svg"}
    pages = result_pages(tmp_path)
    assert pages["plain.md"] == ("plain", "No title.\n")
    title, text = pages["speed.md"]
    assert title == "How fast"
    assert text.startswith("# How fast\n\n![a](speed/a.png)\n")
    assert text.count("speed/a.png") == text.count("![b](speed/b.svg)") == 1


@pytest.mark.usefixtures("making")
def test_docstrings_lose_what_pages_do_not_know() -> None:
    griffe = pytest.importorskip("griffe", reason="the documents' libraries are not installed")
    from docstrings import ReadableDocstrings  # noqa: PLC0415  # likewise

    text = "Text::\n\n    code\n\nExample::\n\n    code\n\nExample:\n    >>> 1\n    1\n"
    shown = griffe.Function("function", docstring=griffe.Docstring(text))
    ReadableDocstrings().on_object(obj=shown)
    assert shown.docstring.value.splitlines() == [
        *("Text:", "", "    code", "", "**Example**", "", "    code", ""),
        *("Examples:", "    >>> 1", "    1"),
    ]
