"""Integer programs over binary variables, stated once and handed to either solver.

Coefficients are whole numbers. Constraints carry the name of what they state; `pyomo_model` and
`cpsat_model` translate them one to one, and `overruns` checks values against them in exact
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from chainstay.formulations.settings import TerminationStatus

Key: TypeAlias = tuple[str | int, ...]
"""The name and indices of a variable."""


@dataclass(frozen=True, slots=True)
class LinearExpression:
    """``Σ coefficient · variable + constant``, in whole numbers.

    Example:
        >>> x, y = LinearExpression({("x", 0): 1}), LinearExpression({("y", 0): 1})
        >>> (2 * x - y + x + 5).terms, (2 * x - y + x + 5).constant
        ({('x', 0): 3, ('y', 0): -1}, 5)
    """

    terms: Mapping[Key, int] = field(default_factory=dict)
    constant: int = 0

    def __add__(self, other: LinearExpression | int) -> LinearExpression:
        if isinstance(other, int):
            return LinearExpression(self.terms, self.constant + other)
        terms = dict(self.terms)
        for key, coefficient in other.terms.items():
            terms[key] = terms.get(key, 0) + coefficient
        return LinearExpression(terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> LinearExpression:
        return LinearExpression(
            {key: factor * n for key, n in self.terms.items()}, factor * self.constant
        )

    __rmul__ = __mul__

    def __sub__(self, other: LinearExpression | int) -> LinearExpression:
        return self + other * -1

    def __rsub__(self, other: int) -> LinearExpression:
        return self * -1 + other

    @property
    def most(self) -> int:
        """A value that no values of the variables exceed."""
        return self.constant + sum(max(0, n) for n in self.terms.values())

    def at(self, is_on: Callable[[Key], bool]) -> int:
        """Return the value where these variables are 1."""
        return self.constant + sum(n for key, n in self.terms.items() if is_on(key))


def sum_of(expressions: Iterable[LinearExpression]) -> LinearExpression:
    """Return the sum of expressions, in one pass over their terms."""
    terms: dict[Key, int] = {}
    constant = 0
    for expression in expressions:
        constant += expression.constant
        for key, coefficient in expression.terms.items():
            terms[key] = terms.get(key, 0) + coefficient
    return LinearExpression(terms, constant)


@dataclass(frozen=True, slots=True)
class LinearConstraint:
    """``total <= 0``, or for memory ``total <= limit``.

    Attributes:
        name: The name of the group it belongs to.
        total: The left side.
        is_memory: Whether the right side is the program's limit.
    """

    name: str
    total: LinearExpression
    is_memory: bool


class IntegerProgram:
    """Variables, constraints, and one objective to minimise.

    Attributes:
        variables: All keys, in the order in which they were made.
        rows: All constraints.
        objective: The objective in units of time; without a budget, the limit is minimised instead.
        limit: The limit of memory constraints, in units of size; None to minimise it.
    """

    def __init__(self, limit: int | None) -> None:
        self.variables: dict[Key, None] = {}
        self.rows: list[LinearConstraint] = []
        self.objective = LinearExpression()
        self.limit = limit

    def binary(self, *key: str | int) -> LinearExpression:
        """Return a new variable."""
        self.variables[key] = None
        return LinearExpression({key: 1})

    def value(self, *key: str | int) -> LinearExpression:
        """Return a variable, or 0 where there is none of that key."""
        return LinearExpression({key: 1}) if key in self.variables else LinearExpression()

    def at_most(
        self, name: str, left: LinearExpression | int, right: LinearExpression | int
    ) -> None:
        """State ``left <= right``."""
        self.rows.append(LinearConstraint(name, LinearExpression() + left - right, is_memory=False))

    def equal(self, name: str, left: LinearExpression | int, right: LinearExpression | int) -> None:
        """State ``left = right``."""
        self.at_most(name, left, right)
        self.at_most(name, right, left)

    def fits(self, name: str, total: LinearExpression) -> None:
        """State that memory is within the limit."""
        self.rows.append(LinearConstraint(name, total, is_memory=True))

    def cost(self, is_on: Callable[[Key], bool]) -> int:
        """Return the objective at these values."""
        if self.limit is not None:
            return self.objective.at(is_on)
        return max(row.total.at(is_on) for row in self.rows if row.is_memory)

    def is_broken(self, row: LinearConstraint) -> bool:
        """Return whether a constraint is broken where all its variables are 0."""
        limit = self.limit if row.is_memory else 0
        return limit is not None and row.total.constant > limit

    def overruns(self, is_on: Callable[[Key], bool]) -> Iterator[LinearConstraint]:
        """Yield the memory constraints that these values break."""
        for row in self.rows:
            if row.is_memory and self.limit is not None and row.total.at(is_on) > self.limit:
                yield row

    def forbid(self, row: LinearConstraint, is_on: Callable[[Key], bool]) -> None:
        """Forbid that all variables stay so which make a memory constraint too large."""
        keys = [key for key, n in row.total.terms.items() if (n > 0) == is_on(key)]
        change = LinearExpression()
        for key in keys:
            change += 1 - LinearExpression({key: 1}) if is_on(key) else LinearExpression({key: 1})
        self.at_most("overruns", 1, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """The answer of a solver.

    Attributes:
        status: How the solve ended.
        on: The variables that are 1; None without a feasible point.
        objective: The objective at this point, in its units.
        bound: A lower bound on the objective.
    """

    status: TerminationStatus
    on: frozenset[Key] | None = None
    objective: int = 0
    bound: int = 0
