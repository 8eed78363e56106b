"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

__all__ = ["Mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """An error to put into the code, and who has to notice.

    Attributes:
        file: Of the package, ``"dp/table.py"`` say.
        old: Text that stands there exactly once.
        new: What replaces it.
        tests: Files and node ids below ``tests/``, separated by spaces; one has to fail.
    """

    file: str
    old: str
    new: str
    tests: str

    @property
    def name(self) -> str:
        """The file, and the first line that changes, before and after."""
        lines = zip_longest(self.old.splitlines(), self.new.splitlines(), fillvalue="")
        old, new = next((one, other) for one, other in lines if one != other)
        return f"{self.file}: {old.strip()} -> {new.strip() or 'nothing'}"
