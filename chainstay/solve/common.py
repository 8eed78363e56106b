"""Shared by the solvers of problems with transfers: links with a limit, and timed calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from chainstay.errors import (
    ChainstayError,
    HostBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import Link
from chainstay.units import parse_bytes

__all__ = ["IntegerProgramMethod", "host_limit_error", "limited_link", "timed_claim"]

_Problem = TypeVar("_Problem")
_Claim = TypeVar("_Claim")


@dataclass(frozen=True, slots=True)
class IntegerProgramMethod:
    """`MIP` or `CPSAT`, started from the best of quicker methods or alone.

    Attributes:
        settings: Settings of the solver.
        alone: Whether it gets no start and no bound, so that it proves all by itself.
    """

    settings: MIP | CPSAT
    alone: bool = False

    def __str__(self) -> str:
        return str(self.settings).removesuffix(f", {self.settings.discards})") + ")"


def limited_link(link: object, host_budget: int | str | None) -> Link:
    """Return `link` with the memory behind it limited to `host_budget` as well.

    Raises:
        InvalidProfileError: `link` is not a `Link`.
        InvalidBudgetError: `host_budget` is neither ``None`` nor a number of bytes.
    """
    if not isinstance(link, Link):
        raise InvalidProfileError(f"link is {link!r}, must be a Link, as in Link(bandwidth=16)")
    if host_budget is None:
        return link
    size = parse_bytes(host_budget) if isinstance(host_budget, str) else host_budget
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidBudgetError(
            f"host_budget is {host_budget!r}; write whole bytes, '8GiB', or None for no limit"
        )
    return replace(link, capacity=size if link.capacity is None else min(size, link.capacity))


def timed_claim(
    solver: Callable[[_Problem], object], problem: _Problem, kind: type[_Claim]
) -> tuple[_Claim, float]:
    """Run `solver` and return its claim, and the seconds that it took.

    Raises:
        UnknownMethodError: The solver returned no such claim.
    """
    start = time.perf_counter()
    claim = solver(problem)
    seconds = time.perf_counter() - start
    if not isinstance(claim, kind):
        article = "an" if kind.__name__.startswith("O") else "a"
        raise UnknownMethodError(
            f"method {solver} returned a {type(claim).__name__}, must return {article} "
            f"{kind.__name__}"
        )
    return claim, seconds


def host_limit_error(
    reason: SolverLimitError, link: Link, required_bytes: Callable[[Link], int]
) -> ChainstayError:
    """Return the error to raise when a solver found nothing; it names enough host memory, if any.

    Args:
        reason: The solver's own error.
        link: The link that the solver was given.
        required_bytes: Function from a link to a memory without limit to the bytes that a plan
            needs on the host.
    """
    if link.capacity is None:
        return reason
    try:
        required = required_bytes(replace(link, capacity=None, beyond=None))
    except ChainstayError:
        return reason
    if required <= link.capacity:
        return reason
    return HostBudgetError(budget=link.capacity, required=required, is_least=True)
