"""Parts of all four fronts: checks of profiles, methods by name, timed calls, host limits."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from chainstay.errors import (
    ChainstayError,
    HostBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
    type_with_article,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.problems.arguments import whole_bytes
from chainstay.problems.offload import (
    OffloadClaim,
    TransferProblem,
    transfer_contradiction_error,
)
from chainstay.profiles import Link
from chainstay.timetable import Time

MEASURED_PROFILE: Final = "a ChainProfile; of a measured chain, pass measured.profile"
"""The kind that the profile of a chain must have, for people."""

_BY_NAME: Final = inspect.Parameter.KEYWORD_ONLY
_Problem = TypeVar("_Problem", bound=TransferProblem)
_Method = TypeVar("_Method")
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

    def require_not_below(
        self, bound: Time, problem: TransferProblem, found: OffloadClaim, known: OffloadClaim
    ) -> None:
        """Refuse a bound of the solver, with its claim, above the makespan of a known schedule.

        Raises:
            CertificateError: It is.
        """
        if bound > known.makespan:
            reason = f"{self} says that nothing is faster than {bound}, yet {known.makespan} is"
            raise transfer_contradiction_error(reason, problem, {str(self): found, "known": known})


def limited_link(link: object, host_budget: int | str | None) -> Link:
    """Return `link` with the memory behind it limited to `host_budget` as well.

    Raises:
        InvalidProfileError: `link` is not a `Link`.
        InvalidBudgetError: `host_budget` is neither ``None`` nor a number of bytes.
    """
    if not isinstance(link, Link):
        raise InvalidProfileError(f"link is {link!r}, must be a Link, as in Link(bandwidth=16)")
    return link.within(None if host_budget is None else whole_bytes("host_budget", host_budget))


def resolve(
    method: _Method | str, known: Mapping[str, _Method], *, which: str = "", example: str, own: type
) -> _Method:
    """Return the method of that name, or `method` itself.

    Args:
        method: A name, or a method.
        known: Methods by name.
        which: The problems that they are for, for people; empty for all of this front.
        example: A settings object, for people.
        own: The protocol of users' own methods.

    Raises:
        UnknownMethodError: There is no such method, or it is for another problem.
    """
    if isinstance(method, str) and method in known:
        return known[method]
    if isinstance(method, str | type) or not callable(method):
        raise UnknownMethodError(
            f"method is {method!r}; {which}choose {', '.join(map(repr, known))}, a settings object "
            f"such as {example}, or a callable of the {own.__name__} protocol"
        )
    if type(method) not in map(type, known.values()):
        _require_called_as(method, own)
    return method


def _require_called_as(method: Callable[..., object], own: type) -> None:
    """Refuse a method that does not take the arguments of the protocol `own`."""
    wanted = list(inspect.signature(own.__call__).parameters.values())[1:]  # without self
    asked = [parameter for parameter in wanted if parameter.default is parameter.empty]
    by_name = {parameter.name: None for parameter in asked if parameter.kind is _BY_NAME}
    try:
        inspect.signature(method).bind(*asked[len(by_name) :], **by_name)
    except TypeError as cause:
        raise UnknownMethodError(
            f"method {method} is for another problem: it is not called as a {own.__name__} is "
            f"({cause}); choose one for this problem"
        ) from None
    except ValueError:  # what is written in C may not tell its arguments
        return


def timed_claim(
    ask: Callable[[], object], method: object, kind: type[_Claim]
) -> tuple[_Claim, float]:
    """Run a method by calling `ask`; return its claim, and the seconds that it took.

    Raises:
        UnknownMethodError: The method returned no such claim.
    """
    start = time.perf_counter()
    claim = ask()
    seconds = time.perf_counter() - start
    if not isinstance(claim, kind):
        article = "an" if kind.__name__.startswith("O") else "a"
        raise UnknownMethodError(
            f"method {method} returned {type_with_article(claim)}, must return {article} "
            f"{kind.__name__}"
        )
    return claim, seconds


def claim_within_host_limit(
    solver: Callable[[_Problem], object],
    problem: _Problem,
    kind: type[_Claim],
    host_bytes: Callable[[_Problem], int],
) -> tuple[_Claim, float]:
    """Run `solver` and return its claim and the seconds that it took.

    Args:
        solver: The method.
        problem: A feasible problem.
        kind: The class of its claims.
        host_bytes: Function from a problem without a limit on host memory to the bytes that a
            plan needs there.

    Raises:
        HostBudgetError: It found nothing; the error names enough host memory.
        SolverLimitError: It found nothing, and host memory is not the reason.
        UnknownMethodError: The solver returned no such claim.
    """
    try:
        return timed_claim(lambda: solver(problem), solver, kind)
    except SolverLimitError as reason:
        capacity = problem.link.capacity
        if capacity is None:
            raise
        try:
            required = host_bytes(replace(problem, link=replace(problem.link, capacity=None)))
        except ChainstayError:
            raise reason from None
        if required <= capacity:
            raise
        raise HostBudgetError(budget=capacity, required=required, is_least=True) from reason
