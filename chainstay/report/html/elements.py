"""Pieces of HTML for a report. Every text that comes in is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Final

from chainstay.report.stage_table import StageTable

_COLOURED: Final = {"line": "border-color", "bound": "border-bottom-color"}
"""Style property of a mark in a legend that takes its colour, where that is not the background."""


def figure(
    name: str, value: str, detail: str, *, style: str = "", share: float | None = None
) -> str:
    """Return one of the numbers at the top, with a bar where it is a share of something."""
    bar = ""
    if share is not None:
        bar = f'<div class="meter"><i style="width:{100 * share:.1f}%"></i></div>'
    return (
        f'<div><dt>{escape(name)}</dt><dd class="{style}">{escape(value)}{bar}'
        f"<small>{escape(detail)}</small></dd></div>"
    )


def definition(name: str, value: str) -> str:
    """Return a name and its value."""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def paragraph(text: str) -> str:
    """Return a note."""
    return f'<p class="note">{escape(text)}</p>'


def legend(marks: Iterable[tuple[str, str, str]]) -> str:
    """Return entries of a legend, of label, colour and shape."""
    return "\n".join(
        f'<li><i class="{shape}" style="{_COLOURED.get(shape, "background")}:{colour}"></i>'
        f"{escape(label)}</li>"
        for label, colour, shape in marks
    )


def table(stages: StageTable) -> str:
    """Return a table whose columns the page can sort by."""
    numbers = [cell.is_number for cell in stages.rows[0]] if stages.rows else []
    classes = [
        ' class="number"' if is_number and index else ""
        for index, is_number in enumerate(numbers or [False] * len(stages.columns))
    ]
    columns = zip(stages.columns, classes, numbers or classes, strict=True)
    heads = "".join(
        f'<th scope="col"{style} data-number="{"yes" if is_number else ""}" '
        f'title="{escape(meaning)}"><button type="button">{escape(name)}</button></th>'
        for (name, meaning), style, is_number in columns
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td{style} data-key="{escape(str(cell.key))}">{escape(cell.text)}</td>'
            for cell, style in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in stages.rows
    )
    return (
        f'<table class="stages"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
    )


def json_text(value: object) -> str:
    """Return `value` as JSON that is safe between script tags, whatever text it contains."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
