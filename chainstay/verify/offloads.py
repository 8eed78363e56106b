"""Offloading verified: whole activations move, and nothing runs again.

Whole transfers are a case of interruptible ones, and these of fractional ones; so a schedule
of any model must not be faster than what a method proved about the same or a freer model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from chainstay.baselines.offload import OFFLOAD_BASELINES
from chainstay.dp.offload import Algorithm1, Greedy, fractional_optimum
from chainstay.errors import SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.problems import OffloadProblem
from chainstay.problems.consistency import AnyClaim
from chainstay.problems.offload import OffloadClaim
from chainstay.schedule import OpKind
from chainstay.solution import Family, Solution
from chainstay.solve.offload import IntegerProgramOffload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.validation.certify import certify_offload
from chainstay.validation.offload.search import offload_optimum
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.verify.cross_check import Answer, MethodUnderTest, NamedFunction, Suite
from chainstay.verify.transfer_instances import random_offload

_BREADTH: Final = tuple(Transfers)


def _search(problem: OffloadProblem) -> OffloadClaim:
    """Return the optimum, by exhaustive search."""
    found = offload_optimum(problem.profile, budget=problem.budget, link=problem.link)
    return OffloadClaim(
        schedule=found.schedule, makespan=found.makespan, lower_bound=found.makespan
    )


def _baseline_claim(name: str, problem: OffloadProblem) -> OffloadClaim:
    """Return the schedule of a baseline, with its makespan and no bound."""
    problem.require_feasible()
    schedule = OFFLOAD_BASELINES[name](problem)
    if schedule is None:
        raise SolverLimitError("out of memory with all settings")
    replay = simulate_offload(problem.profile, schedule, budget=problem.budget, link=problem.link)
    return OffloadClaim(schedule=schedule, makespan=replay.makespan, lower_bound=0)


_SIMPLE: Final = ("simple link",)
_integral = partial(MethodUnderTest, transfers=Transfers.INTEGRAL)
_interruptible = partial(MethodUnderTest, transfers=Transfers.INTERRUPTIBLE, only=_SIMPLE)
_fractional = partial(MethodUnderTest, transfers=Transfers.FRACTIONAL, only=_SIMPLE)
_CPSAT: Final = IntegerProgramOffload(CPSAT(time_limit_s=3.0), alone=True)
_MIP: Final = IntegerProgramOffload(MIP(time_limit_s=20.0), alone=True)

OFFLOAD_METHODS: Final = (
    _integral(method=Heuristics(), most_stages=14),
    _integral(method=Heuristics(exhaustive_up_to=0), most_stages=7),
    *(
        _integral(
            method=NamedFunction(name, partial(_baseline_claim, name)), most_stages=14, every=2
        )
        for name in OFFLOAD_BASELINES
    ),
    _fractional(method=Greedy(), most_stages=14),
    _interruptible(method=Algorithm1(), most_stages=9),
    _interruptible(method=Algorithm1(slots=100), most_stages=14),
    _integral(method=NamedFunction("search", _search), most_stages=4, every=4),
    _integral(method=_CPSAT, most_stages=6, every=4),
    _integral(method=_MIP, most_stages=4, every=8),
    _interruptible(method=_MIP, most_stages=5, every=8),
    _fractional(method=_MIP, most_stages=7, every=8),
)
"""Quick methods on every instance, exhaustive and exact ones on samples of short chains."""


@dataclass(frozen=True)
class OffloadSuite(Suite):
    """Chains whose activations move, under the rules for transfers of each method."""

    methods: tuple[MethodUnderTest, ...] = OFFLOAD_METHODS
    noun: ClassVar[str] = "offloading instances"

    instance = staticmethod(random_offload)

    def meets(self, restriction: str, problem: Any) -> bool:
        """Return whether the link has neither latency nor two directions at once."""
        return bool(restriction == "simple link" and problem.link.is_plain)

    def certify(self, tested: MethodUnderTest, problem: Any, claim: OffloadClaim) -> Solution:
        """Return the claim as a solution; no schedule may be below the fractional optimum."""
        bound = fractional_optimum(problem)
        return certify_offload(problem, claim, bound=bound, method=tested.name, solve_seconds=0.0)

    def covers(self, other: Answer, one: Answer) -> bool:
        """Return whether `other` is about the same or freer transfers, and a family of both."""
        if other.required is not None:  # the least budget is that of all rules for transfers
            return True
        mine, theirs = one.tested.transfers, other.tested.transfers
        if other.claim is not None and other.claim.family is Family.OFFLOAD_FIRST:
            return mine is theirs and one.claim is not None and _offloads_first(one.claim)
        assert mine is not None, "methods that move data say by which rules"
        assert theirs is not None, "as above"
        return _BREADTH.index(mine) <= _BREADTH.index(theirs)


def _offloads_first(claim: AnyClaim) -> bool:
    """Return whether a claim is of the family `Family.OFFLOAD_FIRST`."""
    timetable = getattr(claim, "timetable", None)
    found = [] if timetable is None else [move.op for move in timetable.moves]
    return found == sorted(
        found,
        key=lambda op: (op.kind, op.stage * (-1 if op.kind is OpKind.PREFETCH_ACTIVATION else 1)),
    )
