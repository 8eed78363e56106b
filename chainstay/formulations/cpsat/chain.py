"""The constraint program of a chain under a budget: built, started and decoded here."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.formulations.chain.exactness_conditions import may_discard_in_a_phase
from chainstay.formulations.chain.records import Records
from chainstay.formulations.cpsat.chain_codec import decode, runs_of
from chainstay.formulations.cpsat.chain_constraints import CONSTRAINTS
from chainstay.formulations.cpsat.chain_cuts import add_cuts
from chainstay.formulations.cpsat.chain_memory import (
    MemoryExpression,
    dropped_cost,
    kept_cost,
    limit_memory,
)
from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, TimePoint
from chainstay.formulations.cpsat.ortools_backend import (
    CpSatResult,
    Model,
    new_model,
    require_exact,
    solve,
)
from chainstay.formulations.memory_units import most_bytes, size_divisor
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import ChainProfile, RunCost
from chainstay.schedule import Discards, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProgram:
    """A CP-SAT model and the meaning of its variables.

    Attributes:
        model: Minimises the time of all forwards (and what backwards take beyond
            `Records.least_backward_time`) in units of `time_unit`, or the memory in units
            of `size_unit`.
        variables: The variables by meaning.
        time_unit: Greatest common divisor of the times in the objective, in ns.
        size_unit: Greatest common divisor of the sizes, in bytes.
    """

    model: Model
    variables: ChainVariables
    time_unit: int
    size_unit: int

    def start_from(self, schedule: Schedule, limits: Limits) -> bool:
        """Start the search from `schedule`, and look for no slower one, if the model has it.

        Returns:
            Whether it has one of the same forwards: the solver itself checks every constraint. A
            schedule that is slower when its forwards run in the model's order counts as one that
            it lacks.
        """
        runs = runs_of(self.variables, schedule)
        for key, variable in self.variables.by_key.items():
            if key[0] in ("ran", "kept"):
                self.model.add_hint(variable, key in runs)
        found = solve(self.model, limits, only_the_hint=True)
        self.model.clear_hints()
        makespan = time_of(self.variables.profile, schedule)
        is_there = found.status is TerminationStatus.OPTIMAL
        if not is_there or self.makespan(found.objective) > makespan:
            return False
        for variable in self.variables.by_key.values():
            self.model.add_hint(variable, found.is_on(variable))
        self.model.add(_forward_time(self.variables, self.time_unit) <= found.objective)
        return True

    def makespan(self, objective: int) -> int:
        """Return the makespan in ns that an objective in units of time stands for."""
        return self.variables.records.least_backward_time + self.time_unit * objective

    def decode(self, outcome: CpSatResult) -> Schedule:
        """Return the schedule that the solver found."""
        return decode(self.variables, outcome.is_on)


def build(
    profile: ChainProfile, budget: int | None, *, discards: Discards, cuts: bool = True
) -> ChainProgram:
    """Return the program of `profile` under `budget`.

    Args:
        profile: A chain of n stages.
        budget: Bytes, or ``None`` to make the budget itself the objective.
        discards: Which operations may remove data, as in `simulate`.
        cuts: Whether to add the cuts that leave an optimal schedule.

    Returns:
        The program: about 4n² Boolean variables, 5n² clauses and n² sums.

    Raises:
        InvalidProfileError: The sizes or times add up to more than 2**53.
        BackendError: OR-Tools is missing.
    """
    require_countable(profile)
    model = new_model()
    records = Records(profile)
    drops = may_discard_in_a_phase(profile, discards)
    variables = ChainVariables(model=model, records=records, discards=discards, drops=drops)
    size_unit = size_divisor(profile)
    time_unit = records.time_unit
    most = most_bytes(profile) // size_unit
    for sentence in CONSTRAINTS:
        sentence(variables)
    if cuts:
        add_cuts(variables)
    if budget is None:
        limit = model.new_int_var(0, most, "memory")
        model.minimize(limit)
    else:
        limit = min(budget // size_unit, most)
        model.minimize(_forward_time(variables, time_unit))
    limit_memory(variables, limit, unit=size_unit)
    return ChainProgram(model=model, variables=variables, time_unit=time_unit, size_unit=size_unit)


def require_countable(profile: ChainProfile) -> None:
    """Refuse sums that CP-SAT cannot count and report exactly.

    Raises:
        InvalidProfileError: The text names the sum and the limit.
    """
    slowest = sum(
        max(run.time for run in stage.all_runs) + max(run.backward_time for run in stage.all_runs)
        for stage in profile.stages
    )
    require_exact(max(2 * most_bytes(profile), len(FORMS) * len(profile) * slowest))


def _forward_time(variables: ChainVariables, unit: int) -> MemoryExpression:
    """Return the time of all forwards, and what backwards take beyond the least they can."""

    def units(run: RunCost) -> int:
        return run.time // unit

    records = variables.records
    forward = sum(
        kept_cost(variables, k, j, units) + dropped_cost(variables, k, j, units)
        for j in range(len(variables.profile))
        for k in range(j, len(variables.profile))
    )
    backward = (
        records.backward_excess(record)
        // unit
        * variables.recorded(TimePoint.END, record.last, record)
        for record in records.all
        if records.backward_excess(record)
    )
    return forward + sum(backward)
