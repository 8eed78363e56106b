"""Integer programs over binary variables, stated once and handed to either solver.

Coefficients are whole numbers. Rows carry the name of what they state; `program_by_highs` and
`program_by_cpsat` translate them one to one, and `holds` and `overruns` check values against them
in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

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

    def __le__(self, other: LinearExpression | int) -> Relation:
        return Relation(self - other, Sense.AT_MOST)

    def __ge__(self, other: LinearExpression | int) -> Relation:
        return Relation(self * -1 + other, Sense.AT_MOST)

    def equals(self, other: LinearExpression | int) -> Relation:
        """Return ``self = other``."""
        return Relation(self - other, Sense.EQUAL)

    def fits(self) -> Relation:
        """Return that this memory is within the program's limit."""
        return Relation(self, Sense.MEMORY)

    @property
    def least(self) -> int:
        """A value that no values of the variables are below."""
        return self.constant + sum(min(0, n) for n in self.terms.values())

    @property
    def most(self) -> int:
        """A value that no values of the variables exceed."""
        return self.constant + sum(max(0, n) for n in self.terms.values())

    def at(self, on: frozenset[Key]) -> int:
        """Return the value where the variables `on` are 1, and all others 0."""
        return self.constant + sum(n for key, n in self.terms.items() if key in on)


def sum_of(expressions: Iterable[LinearExpression]) -> LinearExpression:
    """Return the sum of expressions, in one pass over their terms."""
    terms: dict[Key, int] = {}
    constant = 0
    for expression in expressions:
        constant += expression.constant
        for key, coefficient in expression.terms.items():
            terms[key] = terms.get(key, 0) + coefficient
    return LinearExpression(terms, constant)


class Sense(Enum):
    """A row has a total of at most 0, one equal to 0, or one that is memory within the limit."""

    AT_MOST = auto()
    EQUAL = auto()
    MEMORY = auto()


class Relation(NamedTuple):
    """A statement about variables, yet without a name."""

    total: LinearExpression
    sense: Sense


class Row(NamedTuple):
    """A relation as it is stated in a program.

    Attributes:
        name: The name of the group that it belongs to.
        sense: What it says of the total.
        total: The total in variables alone.
        abbreviated: The total as it was stated.
    """

    name: str
    sense: Sense
    total: LinearExpression
    abbreviated: LinearExpression

    @property
    def is_memory(self) -> bool:
        """True if the right side is the program's limit."""
        return self.sense is Sense.MEMORY


class IntegerProgram:
    """Variables, rows, and one objective to minimise.

    Attributes:
        variables: All keys, in the order in which they were made.
        abbreviations: Sums of variables that are 0 or 1, by keys of their own.
        rows: All rows.
        objective: The objective in units of time; without a limit, that is minimised instead.
        limit: The limit of memory, in units of size; None to minimise it.
    """

    def __init__(self, limit: int | None) -> None:
        self.variables: dict[Key, None] = {}
        self.abbreviations: dict[Key, LinearExpression] = {}
        self.rows: list[Row] = []
        self.objective = LinearExpression()
        self.limit = limit

    def binary(self, *key: str | int) -> LinearExpression:
        """Return a new variable."""
        self.variables[key] = None
        return LinearExpression({key: 1})

    def value(self, *key: str | int) -> LinearExpression:
        """Return a variable, or 0 where there is none of that key."""
        return LinearExpression({key: 1}) if key in self.variables else LinearExpression()

    def abbreviation(
        self, key: Key, expression: Callable[[], LinearExpression]
    ) -> LinearExpression:
        """Return an expression that is 0 or 1, by a key of its own if it is a sum.

        CP-SAT reasons better with a variable for it, HiGHS without.
        """
        if key not in self.abbreviations:
            known = self.expanded(expression())
            if len(known.terms) <= 1:
                return known
            self.abbreviations[key] = known
        return LinearExpression({key: 1})

    def expanded(self, total: LinearExpression) -> LinearExpression:
        """Return an expression in variables alone."""
        terms: dict[Key, int] = {}
        constant = total.constant
        for key, coefficient in total.terms.items():
            if (known := self.abbreviations.get(key)) is None:
                terms[key] = terms.get(key, 0) + coefficient
                continue
            constant += coefficient * known.constant
            for inner, n in known.terms.items():
                terms[inner] = terms.get(inner, 0) + coefficient * n
        return LinearExpression({key: n for key, n in terms.items() if n}, constant)

    def state(self, name: str, relations: Iterable[Relation]) -> None:
        """State relations as one group."""
        for total, sense in relations:
            self.rows.append(Row(name, sense, self.expanded(total), total))

    def at_most(
        self, name: str, left: LinearExpression | int, right: LinearExpression | int
    ) -> None:
        """State ``left <= right``."""
        self.state(name, [LinearExpression() + left <= right])

    def equal(self, name: str, left: LinearExpression | int, right: LinearExpression | int) -> None:
        """State ``left = right``."""
        self.state(name, [(LinearExpression() + left).equals(right)])

    def fits(self, name: str, total: LinearExpression) -> None:
        """State that memory is within the limit."""
        self.state(name, [total.fits()])

    def feasibility(self, limit: int) -> IntegerProgram:
        """Return this program under another limit, and without an objective."""
        program = IntegerProgram(limit)
        program.variables, program.abbreviations = self.variables, self.abbreviations
        program.rows = self.rows.copy()
        return program

    def cost(self, on: frozenset[Key]) -> int:
        """Return the objective where the variables `on` are 1."""
        return self.objective.at(on) if self.limit is not None else self.peak(on)

    def peak(self, on: frozenset[Key]) -> int:
        """Return the most memory where the variables `on` are 1, in units of size."""
        return max(row.total.at(on) for row in self.rows if row.is_memory)

    @property
    def least_cost(self) -> int:
        """A value that the objective is never below."""
        return 0 if self.limit is None else self.objective.least

    @property
    def most_memory(self) -> int:
        """Units that no values exceed in any row of memory."""
        return max(row.total.most for row in self.rows if row.is_memory)

    def is_broken(self, row: Row, on: frozenset[Key]) -> bool:
        """Return whether a row is broken where the variables `on` are 1."""
        total = row.total.at(on)
        if row.is_memory:
            return self.limit is not None and total > self.limit
        return total > 0 or (total < 0 and row.sense is Sense.EQUAL)

    def holds(self, on: frozenset[Key]) -> bool:
        """Return whether no row is broken where the variables `on` are 1."""
        return not any(self.is_broken(row, on) for row in self.rows)

    def overruns(self, on: frozenset[Key]) -> Iterator[Row]:
        """Yield the rows of memory that are broken where the variables `on` are 1."""
        return (row for row in self.rows if row.is_memory and self.is_broken(row, on))

    def forbid(self, row: Row, on: frozenset[Key]) -> None:
        """Forbid that all variables stay so which make a row of memory too large."""
        change = sum_of(
            1 - LinearExpression({key: 1}) if key in on else LinearExpression({key: 1})
            for key, n in row.total.terms.items()
            if (n > 0) == (key in on)
        )
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
