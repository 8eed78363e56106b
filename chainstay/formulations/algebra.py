"""Pyomo as seen from here: untyped, under names that say what a value is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import pyomo.environ
import pyomo.repn

from chainstay.errors import BackendError

__all__ = ["Constraint", "Expression", "Linear", "Model", "Relation", "linear", "listed", "pyo"]

pyo: Any = pyomo.environ
"""Pyomo re-exports its names in a way that type checkers do not follow."""

Constraint: TypeAlias = Any
"""A ``pyo.Constraint``, one row or indexed."""
Expression: TypeAlias = Any
"""A Pyomo variable, a linear expression of some, or a number."""
Model: TypeAlias = Any
"""A ``pyo.ConcreteModel``."""
Relation: TypeAlias = Any
"""Two expressions and ``<=``, ``>=`` or ``==``."""

_standard_form: Any = pyomo.repn.__dict__["generate_standard_repn"]


class Linear(NamedTuple):
    """``sum(coefficient * variable) + constant``; every variable occurs once."""

    terms: tuple[tuple[float, Expression], ...]
    constant: float


def listed(rows: Iterable[Relation]) -> Constraint:
    """One constraint component of many rows, numbered from 0."""
    relations = list(rows)
    return pyo.Constraint(range(len(relations)), rule=lambda _, row: relations[row])


def linear(expression: Expression) -> Linear:
    """The linear form of `expression`.

    Raises:
        BackendError: It is not linear.
    """
    form = _standard_form(expression)
    if not form.is_linear():
        raise BackendError(f"{expression} is not linear; only linear models can be solved")
    terms = zip(map(float, form.linear_coefs), form.linear_vars, strict=True)
    return Linear(tuple(terms), float(form.constant))
