"""Pyomo, which is untyped, under names that say what a value is."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from chainstay.errors import BackendError


class _Pyomo:
    """``pyomo.environ``, imported when it is first used, since that takes a second."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_imported("pyomo.environ"), name)


def _imported(module: str) -> Any:
    """Import a module of Pyomo.

    Raises:
        BackendError: Pyomo is missing.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise BackendError(
            f"method 'mip' needs Pyomo, which cannot be imported ({error}); "
            "install it with: pip install pyomo"
        ) from error


pyo: Any = _Pyomo()
"""Pyomo re-exports its names in a way that type checkers do not follow."""

Constraint: TypeAlias = Any
"""A ``pyo.Constraint``, one row or indexed."""
Expression: TypeAlias = Any
"""A Pyomo variable, a linear expression of some, or a number."""
Model: TypeAlias = Any
"""A ``pyo.ConcreteModel``."""
Relation: TypeAlias = Any
"""Two expressions and ``<=``, ``>=`` or ``==``."""


class LinearForm(NamedTuple):
    """``sum(coefficient * variable) + constant``; every variable occurs once."""

    terms: tuple[tuple[float, Expression], ...]
    constant: float


def constraint_list(rows: Iterable[Relation]) -> Constraint:
    """Return one constraint component of many rows, numbered from 0."""
    relations = list(rows)
    return pyo.Constraint(range(len(relations)), rule=lambda _, row: relations[row])


def linear_form(expression: Expression) -> LinearForm:
    """Return the linear form of `expression`.

    Raises:
        BackendError: It is not linear.
    """
    form = _imported("pyomo.repn").generate_standard_repn(expression)
    if not form.is_linear():
        raise BackendError(f"{expression} is not linear; only linear models can be solved")
    terms = zip(map(float, form.linear_coefs), form.linear_vars, strict=True)
    return LinearForm(tuple(terms), float(form.constant))
