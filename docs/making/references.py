"""The bibliography as a page, with an anchor for each citation key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["citations", "references_page"]

_ENTRY: Final = re.compile(r"@\w+\{(?P<key>\w+),(?P<fields>.*?)^\}", re.DOTALL | re.MULTILINE)
_FIELD: Final = re.compile(r"^\s*(\w+)\s*=\s*\{(.*)\},?\s*$", re.MULTILINE)
_PLACES: Final = ("journal", "booktitle", "institution", "note")


def references_page(bibliography: Path) -> str:
    """A list of what `bibliography` has, by citation key."""
    lines = ["# References", "", "Citation keys are those of docstrings and tables.", ""]
    for entry in _ENTRY.finditer(bibliography.read_text(encoding="utf-8")):
        fields = {name: _plain(value) for name, value in _FIELD.findall(entry["fields"])}
        authors = fields["author"].replace(" and ", "; ")
        places = [fields[name] for name in _PLACES if name in fields]
        place = ", ".join([*places, fields["year"]])
        key = entry["key"]
        lines.append(f"- **[{key}]**{{ #{key} }} {authors}. *{fields['title']}*. {place}.")
    return "\n".join([*lines, ""])


def citations(bibliography: Path, page: str) -> str:
    """Definitions that make each citation key in brackets a link to its anchor on `page`."""
    keys = [entry["key"] for entry in _ENTRY.finditer(bibliography.read_text(encoding="utf-8"))]
    return "\n\n" + "\n".join(f"[{key}]: {page}#{key}" for key in keys) + "\n"


def _plain(value: str) -> str:
    return value.replace("{", "").replace("}", "").replace("--", "–")
