"""Docstrings as pages show them: Google sections, and no marks of reStructuredText."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

__all__ = ["ReadableDocstrings"]

_REWRITTEN: Final = (
    (re.compile(r"^( *)Example:$", re.MULTILINE), r"\1Examples:"),  # the section's name
    (re.compile(r"^( *)Example::$", re.MULTILINE), r"\1**Example**"),  # an indented block follows
    (re.compile(r"(?<=\S)::$", re.MULTILINE), ":"),  # likewise
)


class ReadableDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring:
            for pattern, replacement in _REWRITTEN:
                obj.docstring.value = pattern.sub(replacement, obj.docstring.value)
