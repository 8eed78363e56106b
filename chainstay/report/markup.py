"""Pieces of HTML for a report. Every text that comes in is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Final

from chainstay.report.stages import StageTable

__all__ = ["definition", "figure", "json_text", "legend", "paragraph", "table"]

_COLOURED: Final = {"line": "border-color", "bound": "border-bottom-color"}
"""What of a mark in a legend has its colour, where it is not the background."""


def figure(
    name: str, value: str, detail: str, *, look: str = "", share: float | None = None
) -> str:
    """One of the numbers at the top, with a bar where it is a share of something."""
    bar = ""
    if share is not None:
        bar = f'<div class="meter"><i style="width:{100 * share:.1f}%"></i></div>'
    return (
        f'<div><dt>{escape(name)}</dt><dd class="{look}">{escape(value)}{bar}'
        f"<small>{escape(detail)}</small></dd></div>"
    )


def definition(name: str, value: str) -> str:
    """A name and its value."""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def paragraph(text: str) -> str:
    """A note."""
    return f'<p class="note">{escape(text)}</p>'


def legend(marks: Iterable[tuple[str, str, str]]) -> str:
    """Entries of a legend, of label, colour and shape."""
    return "\n".join(
        f'<li><i class="{shape}" style="{_COLOURED.get(shape, "background")}:{colour}"></i>'
        f"{escape(label)}</li>"
        for label, colour, shape in marks
    )


def table(stages: StageTable) -> str:
    """A table whose columns the page can sort by."""
    numbers = [cell.is_number for cell in stages.rows[0]] if stages.rows else []
    classes = [
        ' class="number"' if is_number and place else ""
        for place, is_number in enumerate(numbers or [False] * len(stages.columns))
    ]
    heads = "".join(
        f'<th scope="col"{look} data-number="{"yes" if is_number else ""}" '
        f'title="{escape(meaning)}"><button type="button">{escape(name)}</button></th>'
        for (name, meaning), look, is_number in zip(
            stages.columns, classes, numbers or classes, strict=True
        )
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td{look} data-key="{escape(str(cell.key))}">{escape(cell.text)}</td>'
            for cell, look in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in stages.rows
    )
    return (
        f'<table class="stages"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
    )


def json_text(value: object) -> str:
    """`value` as JSON that is safe between script tags, whatever text it contains."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
