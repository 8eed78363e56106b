"""Recomputing and offloading together: the best of four ways, certified."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final, cast

from chainstay.dp import DP
from chainstay.dp.hybrid import Amounts, ExactHybrid, SlotPlan, bracket, hybrid_bound
from chainstay.dp.jit import is_available
from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.hybrid import HybridClaim, HybridMethod, HybridProblem, HybridSolution
from chainstay.offloading import OffloadProblem, contradiction
from chainstay.profiles import ChainProfile, Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family
from chainstay.solve.budgets import size_of
from chainstay.solve.hybrid_whole import Program, WholeTransfers
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Time, Transfers, exact
from chainstay.validation.certify_hybrid import certify_hybrid
from chainstay.validation.hybrid import simulate_hybrid
from chainstay.validation.hybrid_fluid import fractional_makespan
from chainstay.validation.simulate import simulate

__all__ = ["AutoHybrid", "Pofo", "solve_hybrid"]

_log = logging.getLogger(__name__)


def solve_hybrid(
    profile: ChainProfile,
    budget: int | str,
    *,
    link: Link,
    method: HybridMethod | DP | str = "auto",
    transfers: Transfers | str = Transfers.INTEGRAL,
) -> HybridSolution:
    """The fastest way found to train a chain in a memory budget by recomputing and offloading.

    Args:
        profile: What the chain costs; it has no skips.
        budget: Bytes on the device for the network's input, activations, saved tensors,
            gradients of activations and overheads: an int, text such as ``"8GiB"``, or a share
            of what plain training needs, ``"50%"``.
        link: To the host, whose memory is not limited here.
        method: ``"auto"``: the best of keeping all, recomputing only, offloading only, and
            both; ``"dp"`` (or `DP` with its slots): both, by [POFO]; or a callable of
            `HybridMethod`.
        transfers: ``"integral"`` (what runs on machines) or ``"fractional"`` ([POFO]'s model).

    Returns:
        The program list with its makespan (an exact int or Fraction), peak and times; a bound
        on all schedules; and what persistent plans that may move parts of items take at least.

    Raises:
        InvalidProfileError: `profile`, `link` or `transfers` are none, or do not go together.
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method.
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        SolverLimitError: The method found nothing, although something fits.
        CertificateError: The method's claim is false: a bug, with all that is needed to report
            it in ``error.report``.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=4, backward_time=8, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> solution = solve_hybrid(chain, 100, link=Link(bandwidth=3))
        >>> str(solution.schedule), solution.makespan, solution.is_optimal
        ('Fa0 Ob0 Fa1 Fa2 Fa3 B3 Pb0 B2 B1 B0', 52, False)
    """
    if not isinstance(profile, ChainProfile):
        raise InvalidProfileError(
            f"profile is a {type(profile).__name__}, must be a ChainProfile; of a measured "
            "chain, pass measured.profile"
        )
    if not isinstance(link, Link):
        raise InvalidProfileError(f"link is {link!r}, must be a Link, as in Link(bandwidth=16)")
    keep_all = Schedule.keep_all(len(profile))
    size = size_of(budget, lambda: simulate(profile, keep_all).peak_bytes)
    problem = HybridProblem(profile, size, link, cast("Transfers", transfers))
    solver = _solver(method)
    problem.require_feasible()
    start = time.perf_counter()
    claim = solver(problem)
    seconds = time.perf_counter() - start
    if not isinstance(claim, HybridClaim):
        raise UnknownMethodError(
            f"method {solver} returned a {type(claim).__name__}, must return a HybridClaim"
        )
    bound = hybrid_bound(profile, size, link)
    return certify_hybrid(problem, claim, bound=bound, method=str(solver), solve_seconds=seconds)


_SHORT: Final = 6
"""Stages up to which POFO without slots has few states."""
_ROUNDING: Final = Fraction(1, 5000)
"""Of a bound on slots, whose search ends a ten thousandth above the best plan."""
_INTERPRETED_SLOTS: Final = 16
"""As many as loops that are not compiled can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pofo:
    """[POFO] with its correction, and whole transfers from its plans.

    Attributes:
        slots: ``None``: exact for chains of up to 6 stages, else 100 slots (16 without numba).
        tries: Program lists looked at to improve each plan for whole transfers.

    Raises:
        UnknownMethodError: `slots` is neither None nor a positive number.

    Example:
        >>> str(Pofo(slots=50))
        'dp, 50 slots'
    """

    slots: int | None = None
    tries: int = 300

    def __post_init__(self) -> None:
        DP(slots=self.slots)  # refuses what is no number of slots

    def __str__(self) -> str:
        return "dp" if self.slots is None else f"dp, {self.slots} slots"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """As `HybridMethod`.

        Raises:
            SolverLimitError: No persistent plan fits, although something does.
        """
        plans, bound = self.plans(problem)
        if (recomputing := _recomputing(problem)) is not None:
            plans.append(SlotPlan(recomputing.ops, frozenset()))
        schedules = [_with_moves(plan) for plan in plans]
        program: Program | None = None
        if problem.transfers is Transfers.INTEGRAL:
            programs = [
                WholeTransfers(problem, plan.ops, self.tries).best(plan.moved) for plan in plans
            ]
            program = min(filter(None, programs), default=None, key=lambda each: each.makespan)
            schedules += [] if program is None else [program.schedule]
        valued = [
            (value, schedule)
            for schedule in schedules
            if (value := _value(problem, schedule)) is not None
        ]
        if not valued:
            raise _nothing(problem)
        value, schedule = min(valued, key=lambda pair: pair[0])
        fractional = HybridClaim(
            schedule=schedule,
            makespan=value,
            lower_bound=_rounded(bound, value),
            family=Family.PERSISTENT,
            fractional_makespan=value,
            fractional_bound=_rounded(bound, value),
        )
        if value < fractional.lower_bound:
            reason = f"{self}: no persistent plan takes less than {bound}, yet one takes {value}"
            raise contradiction(reason, problem, {str(self): fractional})
        if problem.transfers is Transfers.FRACTIONAL:
            return fractional
        if program is None:
            raise _nothing(problem)
        return replace(
            _claim(program, problem),
            fractional_makespan=value,
            fractional_bound=fractional.fractional_bound,
        )

    def plans(self, problem: HybridProblem) -> tuple[list[SlotPlan], Time]:
        """Persistent plans and what none takes less than, over a link without latency."""
        profile, link = problem.profile, _relaxed(problem.link)
        if self.slots is None and len(profile) <= _SHORT:
            amounts = Amounts.of(profile, problem.budget, link)
            plan = ExactHybrid.solve(amounts)
            if plan is None:
                return [], 0
            return [SlotPlan(plan.ops, plan.moved)], exact(plan.cost * amounts.time_unit)
        slots = self.slots or (100 if is_available() else _INTERPRETED_SLOTS)
        plans, bound = bracket(profile, problem.budget, link, slots)
        return plans[::-1], max(profile.least_time, exact(bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoHybrid:
    """The best of keeping all, recomputing only, offloading only, and both.

    Attributes:
        combined: The method for both.
    """

    combined: Pofo = Pofo()

    def __str__(self) -> str:
        return "auto"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """As `HybridMethod`."""
        if problem.transfers is Transfers.FRACTIONAL:
            return self.combined(problem)
        schedules: dict[str, Schedule | None] = {
            "keep all": Schedule.keep_all(len(problem.profile)),
            "recompute": _recomputing(problem),
            "offload": _offloading(problem),
        }
        claims: dict[str, HybridClaim | None] = {}
        for name, schedule in schedules.items():
            makespan = None if schedule is None else _makespan(problem, schedule)
            program = None
            if schedule is not None and makespan is not None:
                program = Program(makespan, schedule)
            claims[name] = None if program is None else _claim(program, problem)
        claims["combined"] = self._combined(problem, claims["keep all"])
        found = [claim for claim in claims.values() if claim is not None]
        if not found:
            raise _nothing(problem)
        best, combined = min(found, key=lambda claim: claim.makespan), claims["combined"]
        return replace(
            best,
            fractional_makespan=combined.fractional_makespan if combined else None,
            fractional_bound=combined.fractional_bound if combined else 0,
            alternatives=tuple(
                (name, None if claim is None else claim.makespan) for name, claim in claims.items()
            ),
        )

    def _combined(self, problem: HybridProblem, keep_all: HybridClaim | None) -> HybridClaim | None:
        """Both, unless nothing is left to gain."""
        if keep_all is not None:
            least = problem.profile.least_time
            return replace(keep_all, fractional_makespan=least, fractional_bound=least)
        try:
            return self.combined(problem)
        except SolverLimitError as reason:
            _log.info("without %s: %s", self.combined, reason)
            return None


_METHODS: Final[Mapping[str, HybridMethod]] = MappingProxyType({"auto": AutoHybrid(), "dp": Pofo()})


def _solver(method: HybridMethod | DP | str) -> HybridMethod:
    """The method of that name or these settings, or `method` itself."""
    if isinstance(method, str) and method in _METHODS:
        return _METHODS[method]
    if isinstance(method, DP):
        if method != DP(slots=method.slots):
            raise UnknownMethodError(
                f"method is {str(method)!r}; where data may move, DP takes slots only"
            )
        return Pofo(slots=method.slots)
    if isinstance(method, str | type) or not callable(method):
        known = ", ".join(map(repr, _METHODS))
        raise UnknownMethodError(
            f"method is {method!r}; choose {known}, a settings object such as DP(slots=50), or a "
            "callable of the HybridMethod protocol"
        )
    return method


def _claim(program: Program, problem: HybridProblem) -> HybridClaim:
    return HybridClaim(
        schedule=program.schedule,
        makespan=program.makespan,
        lower_bound=problem.profile.least_time,
        family=Family.ALL,
    )


def _rounded(bound: Time, value: Time) -> Time:
    """`bound`, from which floats may be off a little, but not above the `value` that it is by."""
    return min(bound, value) if bound - value <= value * _ROUNDING else bound


def _nothing(problem: HybridProblem) -> SolverLimitError:
    return SolverLimitError(
        f"no persistent plan of this {len(problem.profile)}-stage chain fits in "
        f"{problem.budget} bytes, although other schedules do; raise the budget a little"
    )


def _relaxed(link: Link) -> Link:
    """A half-duplex link without latency that can do at least as much."""
    return Link(bandwidth=link.bandwidth * (2 if link.is_full_duplex else 1))


def _with_moves(plan: SlotPlan) -> Schedule:
    """A plan in text: computations, with what leaves in front."""
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    moves = (Op(kinds[kind], i) for kind, i in sorted(plan.moved))
    return Schedule((*moves, *plan.ops))


def _value(problem: HybridProblem, schedule: Schedule) -> Time | None:
    """What a plan takes if parts of items may move, if it fits."""
    try:
        return fractional_makespan(
            problem.profile, schedule, budget=problem.budget, link=_relaxed(problem.link)
        )
    except InvalidScheduleError as reason:
        _log.debug("rounded too far: %s", reason)
        return None


def _makespan(problem: HybridProblem, schedule: Schedule) -> Time | None:
    try:
        return simulate_hybrid(
            problem.profile, schedule, budget=problem.budget, link=problem.link
        ).makespan
    except InvalidScheduleError:
        return None


def _recomputing(problem: HybridProblem) -> Schedule | None:
    """The persistent optimum without transfers, if it fits."""
    try:
        return DP()(problem.profile, problem.budget).schedule
    except InfeasibleBudgetError:
        return None


def _offloading(problem: HybridProblem) -> Schedule | None:
    """The best program list of offloading whole saved data, if one fits."""
    profile = OffloadProfile.from_chain(problem.profile)
    question = OffloadProblem(profile, problem.budget, problem.link)
    try:
        schedule = Heuristics()(question).schedule
    except ChainstayError as reason:
        _log.info("without offloading only: %s", reason)
        return None
    return Schedule(tuple(map(_as_saved, schedule)))


def _as_saved(op: Op) -> Op:
    """In a chain, the activation ``x_j`` is what stage j - 1 saves."""
    if not op.kind.is_transfer or op.stage == 0:
        return op
    is_offload = op.kind is OpKind.OFFLOAD_ACTIVATION
    return Op(OpKind.OFFLOAD_SAVED if is_offload else OpKind.PREFETCH_SAVED, op.stage - 1)
