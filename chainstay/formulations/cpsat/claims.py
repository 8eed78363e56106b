"""From a constraint program to a claim: solve, read, say how sure the answer is."""

from __future__ import annotations

from chainstay.errors import (
    BackendError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.formulations.cpsat.binding import Limits, Verdict, solve
from chainstay.formulations.cpsat.chain import ChainProgram, build
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.domains import family_of, name_of_searched
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, OpKind, Schedule
from chainstay.solution import Claim
from chainstay.units import format_bytes

__all__ = ["claim", "minimum_budget"]


def claim(profile: ChainProfile, budget: int, method: CPSAT, hint: Schedule | None) -> Claim:
    """What `CPSAT.__call__` promises."""
    discards = Discards(method.discards)
    program, limits = build(profile, budget, discards=discards), _limits(method)
    has_start = hint is not None and program.start_from(hint, limits)
    outcome = solve(program.model, limits)
    if outcome.verdict is Verdict.INFEASIBLE:
        if has_start:
            raise BackendError(
                "CP-SAT calls a budget infeasible for which it accepted a schedule; "
                "please report the profile and budget as a bug"
            )
        raise InfeasibleBudgetError(
            budget=budget,
            required=_required(profile, budget, method),
            stages=len(profile),
            family=name_of_searched(profile, discards),
        )
    lower_bound = max(profile.least_time, _makespan(program, outcome.bound or 0))
    if outcome.values is not None:
        # The solver's own count, so that the referee's replay checks the decoding, too.
        schedule, makespan = program.decode(outcome), _makespan(program, outcome.objective)
    elif hint is not None:
        schedule, makespan = hint, _time(profile, hint)
    else:
        raise SolverLimitError(
            f"{method} found no schedule of this {len(profile)}-stage chain in "
            f"{format_bytes(budget)} in time, nor a proof that there is none. Raise "
            "time_limit_s, give a hint, or use a dynamic program.",
            best_bound=lower_bound,
        )
    if outcome.verdict is Verdict.OPTIMAL:
        lower_bound = makespan
    return Claim(
        schedule=schedule,
        makespan=makespan,
        # A hint from outside the family may be faster than anything in it.
        lower_bound=min(lower_bound, makespan),
        family=family_of(profile, discards),
        discards=discards,
    )


def minimum_budget(
    profile: ChainProfile,
    discards: Discards = Discards.TABLE1,
    *,
    limits: Limits = Limits(time_s=60.0),  # noqa: B008 - immutable
) -> int:
    """The least budget, in bytes, within which the program has a schedule.

    Args:
        profile: The chain.
        discards: Which operations may remove data.
        limits: For the solver.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    program = build(profile, None, discards=discards)
    outcome = solve(program.model, limits)
    least = outcome.objective * program.size_unit
    if outcome.verdict is not Verdict.OPTIMAL:
        known = "not known" if outcome.values is None else f"at most {least} bytes"
        raise SolverLimitError(
            f"the least feasible budget of this {len(profile)}-stage chain is {known} after "
            f"{limits.time_s:g} s. Raise time_limit_s, or use a dynamic program."
        )
    return least


def _required(profile: ChainProfile, budget: int, method: CPSAT) -> int:
    try:
        return minimum_budget(profile, Discards(method.discards), limits=_limits(method))
    except SolverLimitError as error:
        raise SolverLimitError(f"nothing fits in {format_bytes(budget)}, and {error}") from error


def _limits(method: CPSAT) -> Limits:
    return Limits(time_s=method.time_limit_s, workers=method.workers, seed=method.seed)


def _makespan(program: ChainProgram, objective: int) -> int:
    """The makespan in ns that an objective in units of forward time stands for."""
    stages = program.moments.profile.stages
    return sum(stage.backward_time for stage in stages) + program.time_unit * objective


def _time(profile: ChainProfile, schedule: Schedule) -> int:
    """Time of a schedule, in ns, whatever its validity."""
    total = 0
    for index, op in enumerate(schedule):
        if op.stage >= len(profile):
            raise InvalidScheduleError(
                f"{op} of the hint names stage {op.stage}, the last one is {len(profile) - 1}",
                index=index,
                ops=schedule.ops,
            )
        stage = profile.stages[op.stage]
        total += stage.forward_time * op.kind.is_forward
        total += stage.backward_time * (op.kind is OpKind.BACKWARD)
    return total
