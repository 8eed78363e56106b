"""Integer programs over binary variables, stated once and handed to either solver.

Coefficients are whole numbers. What a program says is in its rows, by name of the sentence
they state; `pyomo_model` and `cpsat_model` translate them one to one, and `overruns` checks
values against them in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Key", "Program", "Row", "Sum"]

Key: TypeAlias = tuple[str | int, ...]
"""Name and indices of a variable."""


@dataclass(frozen=True, slots=True)
class Sum:
    """``Σ coefficient · variable + constant``, in whole numbers.

    Example:
        >>> x, y = Sum({("x", 0): 1}), Sum({("y", 0): 1})
        >>> (2 * x - y + x + 5).terms, (2 * x - y + x + 5).constant
        ({('x', 0): 3, ('y', 0): -1}, 5)
    """

    terms: Mapping[Key, int] = field(default_factory=dict)
    constant: int = 0

    def __add__(self, other: Sum | int) -> Sum:
        if isinstance(other, int):
            return Sum(self.terms, self.constant + other)
        terms = dict(self.terms)
        for key, coefficient in other.terms.items():
            terms[key] = terms.get(key, 0) + coefficient
        return Sum(terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Sum:
        return Sum({key: factor * n for key, n in self.terms.items()}, factor * self.constant)

    __rmul__ = __mul__

    def __sub__(self, other: Sum | int) -> Sum:
        return self + other * -1

    def __rsub__(self, other: int) -> Sum:
        return self * -1 + other

    @property
    def most(self) -> int:
        """No values make it larger."""
        return self.constant + sum(max(0, n) for n in self.terms.values())

    def at(self, is_on: Callable[[Key], bool]) -> int:
        """The value where these variables are 1."""
        return self.constant + sum(n for key, n in self.terms.items() if is_on(key))


@dataclass(frozen=True, slots=True)
class Row:
    """``total <= 0``; of a memory row, ``total <= limit``."""

    sentence: str
    total: Sum
    is_memory: bool


class Program:
    """Variables, rows, and one objective to minimise.

    Attributes:
        variables: All keys, in the order in which they were made.
        rows: All rows.
        objective: In units of time; of a program without a budget, the limit is minimised.
        limit: What memory rows must not exceed; None to minimise it.
    """

    def __init__(self, limit: int | None) -> None:
        self.variables: dict[Key, None] = {}
        self.rows: list[Row] = []
        self.objective = Sum()
        self.limit = limit

    def binary(self, *key: str | int) -> Sum:
        """A new variable."""
        self.variables[key] = None
        return Sum({key: 1})

    def value(self, *key: str | int) -> Sum:
        """A variable, or 0 where there is none of that key."""
        return Sum({key: 1}) if key in self.variables else Sum()

    def at_most(self, sentence: str, left: Sum | int, right: Sum | int) -> None:
        """State ``left <= right``."""
        self.rows.append(Row(sentence, Sum() + left - right, is_memory=False))

    def equal(self, sentence: str, left: Sum | int, right: Sum | int) -> None:
        """State ``left = right``."""
        self.at_most(sentence, left, right)
        self.at_most(sentence, right, left)

    def fits(self, sentence: str, total: Sum) -> None:
        """State that memory is within the limit."""
        self.rows.append(Row(sentence, total, is_memory=True))

    def cost(self, is_on: Callable[[Key], bool]) -> int:
        """The objective at these values."""
        if self.limit is not None:
            return self.objective.at(is_on)
        return max(row.total.at(is_on) for row in self.rows if row.is_memory)

    def is_broken(self, row: Row) -> bool:
        """Whether a row is broken where all its variables are 0."""
        limit = self.limit if row.is_memory else 0
        return limit is not None and row.total.constant > limit

    def overruns(self, is_on: Callable[[Key], bool]) -> Iterator[Row]:
        """Memory rows that these values break."""
        for row in self.rows:
            if row.is_memory and self.limit is not None and row.total.at(is_on) > self.limit:
                yield row

    def forbid(self, row: Row, is_on: Callable[[Key], bool]) -> None:
        """Of what makes a memory row too large at these values, not all may stay so."""
        keys = [key for key, n in row.total.terms.items() if (n > 0) == is_on(key)]
        change = Sum()
        for key in keys:
            change += 1 - Sum({key: 1}) if is_on(key) else Sum({key: 1})
        self.at_most("overruns", 1, change)
