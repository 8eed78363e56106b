"""What the fronts of solvers with transfers share: a link with its limit, and a timed question."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from chainstay.errors import (
    BackendError,
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

__all__ = ["ExactMethod", "asked", "host_limit_error", "link_within"]

_Problem = TypeVar("_Problem")
_Claim = TypeVar("_Claim")


@dataclass(frozen=True, slots=True)
class ExactMethod:
    """`MIP` or `CPSAT`, from the best of quicker methods or alone.

    Attributes:
        settings: Of the solver.
        alone: Whether it gets no start and no bound, so that it proves all by itself.
    """

    settings: MIP | CPSAT
    alone: bool = False

    def __str__(self) -> str:
        return str(self.settings).removesuffix(f", {self.settings.discards})") + ")"

    def without(self, error: ModuleNotFoundError) -> BackendError:
        """What to raise when a package is missing."""
        return BackendError(
            f"method {str(self)!r} needs {error.name}, which is not installed; "
            "install it with: pip install pyomo"
        )


def link_within(link: object, host_budget: int | str | None) -> Link:
    """`link`, the memory behind it held to `host_budget` as well.

    Raises:
        InvalidProfileError: No link.
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


def asked(
    solver: Callable[[_Problem], object], problem: _Problem, kind: type[_Claim]
) -> tuple[_Claim, float]:
    """The claim of `solver`, and the seconds that it took.

    Raises:
        UnknownMethodError: It returned no such claim.
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
    reason: SolverLimitError, link: Link, unlimited: Callable[[Link], int]
) -> ChainstayError:
    """What to raise when a solver found nothing: an error that names enough host memory, if any.

    Args:
        reason: The solver's own.
        link: That it had.
        unlimited: Bytes that a plan needs on the host, over a link to a memory without limit.
    """
    if link.capacity is None:
        return reason
    try:
        required = unlimited(replace(link, capacity=None, beyond=None))
    except ChainstayError:
        return reason
    if required <= link.capacity:
        return reason
    return HostBudgetError(budget=link.capacity, required=required, is_least=True)
