"""The exact model of a chain under a budget, as a public Pyomo model.

`build` states the problem, `ChainFormulation.decode` reads a schedule out of its
variables and `ChainFormulation.encode` writes one into them. The constraints of the model
are in `chainstay.formulations.chain.constraints`, the cuts that make it quick in
`chainstay.formulations.chain.cuts`.

Whether the model contains a schedule as fast as any depends on the chain:
`chainstay.problems.exactness.is_complete` says when it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from chainstay.formulations.chain.constraints import CONSTRAINTS
from chainstay.formulations.chain.cuts import CUTS, exact_cuts, saved_data_stored_once
from chainstay.formulations.chain.encoder import FORMS, Encoder
from chainstay.formulations.chain.exactness_conditions import (
    may_discard_in_a_phase,
    may_record_and_rerun,
)
from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.chain.records import Record, Records
from chainstay.formulations.memory_units import (
    enough_bytes,
    memory_unit,
    most_bytes,
    size_divisor,
)
from chainstay.formulations.pyomo_types import Expression, Model, linear_form, pyo
from chainstay.profiles import ChainProfile, RunCost
from chainstay.schedule import Discards, Item, Op, OpKind, Schedule, update_stored

_WIDEST_MARGIN: Final = 2.0**-20
"""The largest share of the budget that is added to it before solving; see `_limit_memory`."""
_SOLVER_ERROR: Final = 2.0**-28
"""Units added to the budget at least: a few times what HiGHS tolerates in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFormulation:
    """A Pyomo model and the meaning of its variables.

    Attributes:
        model: Minimises ``model.forward_time`` in units of `time_unit` (and what backwards
            take beyond `Records.least_backward_time`), subject to one
            component per constraint group (``model.memory_of_forwards``, …). Yours to write out
            (``model.write("chain.lp")``) or to hand to any Pyomo solver.
        phases: The variables and what they mean.
        budget: Bytes; ``None`` when ``model.memory_limit`` is minimised instead.
        time_unit: Greatest common divisor of the times in the objective, in ns.
    """

    model: Model
    phases: Phases
    budget: int | None
    time_unit: int

    def decode(self) -> Schedule:
        """Return the schedule that the variables' values describe, rounded to 0 and 1.

        Discards come as late as the model has them: in free discards right after a
        stage's turn where the model says so, otherwise at the end of a phase.
        """
        ops: list[Op] = []
        stored, held = {Item("a", 0)}, dict[int, Record]()
        k = len(self.phases.profile) - 1
        while k >= 0:
            for op, record in self._sweep(k):
                ops.append(op)
                update_stored(stored, op)
                held |= {op.stage: record} if record else {}
            first = next((i for i in held if held[i].last == k and Item("b", i) in stored), k)
            ops.append(Op(OpKind.BACKWARD, first))
            stored -= held[first].consumed if first in held else frozenset()
            k = first - 1
            drops = list(self._drops_before(k, stored, held))
            stored.difference_update(op.item for op in drops)
            ops += drops
        return Schedule(tuple(ops))

    def encode(self, schedule: Schedule) -> bool:
        """Set the variables to `schedule`, to start a solver from it.

        Returns:
            Whether the model contains the schedule: one increasing sweep per phase, valid
            and within the budget. If not, the variables hold nothing of it.
        """
        for variable in self._variables():
            variable.set_value(0)
        if Encoder(self.phases).write(schedule):
            self.phases.settle_skips()
            if self._holds() and not self._overruns():
                return True
        for variable in self._variables():
            variable.set_value(None)
        return False

    def peak_bytes(self) -> int:
        """Return the peak memory at the values, rounded to 0 and 1, in bytes, exactly."""
        self._round()
        return max(self._bytes(row) for row in self._memory_rows())

    def forbid_overruns(self) -> int:
        """Forbid what makes the values, rounded to 0 and 1, exceed the budget.

        In a row that is too large, the variables that made it so are those at 1 that add to
        it and those at 0 that would have taken away. Not all of them may stay so; where
        there are none, the row is too large whatever is done, and the model infeasible.

        Returns:
            How many rows were too large; 0 means that the budget is kept to the byte.
        """
        self._round()
        overruns = self._overruns()
        for row in overruns:
            self.model.overruns.add(
                sum(
                    1 - variable if coefficient > 0 else variable
                    for coefficient, variable in linear_form(row).terms
                    if (coefficient > 0) == (variable.value == 1)
                )
                >= self.model.one_change
            )
        return len(overruns)

    @property
    def memory_step(self) -> float:
        """The least difference between two memory sizes, in units of the memory rows."""
        return size_divisor(self.phases.profile) / self.phases.unit

    def _overruns(self) -> list[Expression]:
        """Return the memory rows that exceed the budget at the values, which are 0 and 1."""
        if self.budget is None:
            return []
        return [row for row in self._memory_rows() if self._bytes(row) > self.budget]

    def _memory_rows(self) -> Iterator[Expression]:
        for k, j in self.phases.turns:
            yield self.phases.forward_memory(k, j)
            yield self.phases.recording_memory(k, j)
        for k in range(len(self.phases.profile)):
            yield self.phases.backward_memory(k)

    def _bytes(self, row: Expression) -> int:
        """Return a row at the values, which are 0 and 1, in bytes: sizes and sum are exact."""
        unit, (terms, constant) = self.phases.unit, linear_form(row)
        stored = (round(size * unit) for size, variable in terms if variable.value == 1)
        return round(constant * unit) + sum(stored)

    def _sweep(self, k: int) -> Iterator[tuple[Op, Record | None]]:
        """Yield the forwards of phase k with their records, and the discards between them."""
        records = self.phases.records
        for j in range(k + 1):
            for record in records.starting(j):
                if self._is_on("keep_all", k, *record.key):
                    yield Op(OpKind.FORWARD_KEEP_ALL, j, option=record.option), record
            for kind, name in FORMS.items():
                if self._is_on(name, k, j):
                    yield Op(kind, j), None
            if self._is_on("activation_dropped", k, j):
                yield Op(OpKind.DISCARD_ACTIVATION, j), None
            for record in records.ending(j - 1):
                if self._is_on("saved_dropped", k, *record.key):
                    yield Op(OpKind.DISCARD_SAVED, record.stage), None

    def _drops_before(self, k: int, stored: set[Item], held: dict[int, Record]) -> Iterator[Op]:
        """Yield discards of what is stored and phase k does not start with.

        Saved data goes before what it was made from: a tape never lacks an input.
        """
        if self.phases.discards is Discards.TABLE1:
            return
        for i in range(k, -1, -1):
            if ("b", i) in stored and not self._is_on("saved_stored", k, *held[i].key):
                yield Op(OpKind.DISCARD_SAVED, i)
        for i in range(k, 0, -1):
            if ("a", i) in stored and not self._is_on("activation_stored", k, i):
                yield Op(OpKind.DISCARD_ACTIVATION, i)

    def _is_on(self, name: str, *index: int) -> bool:
        return bool(round(pyo.value(self.phases.value(name, *index))) == 1)

    def _variables(self) -> Iterator[Expression]:
        for variable in self.model.component_data_objects(pyo.Var):
            if variable.is_binary():
                yield variable

    def _round(self) -> None:
        for variable in self._variables():
            variable.set_value(round(variable.value))
        self.phases.settle_skips()

    def _holds(self) -> bool:
        """Return whether every constraint holds at the values; sums of scaled sizes are exact."""
        return all(
            constraint.slack() >= 0
            for constraint in self.model.component_data_objects(pyo.Constraint, active=True)
        )


def build(
    profile: ChainProfile,
    budget: int | None,
    *,
    discards: Discards | str = Discards.TABLE1,
    cuts: bool | None = None,
) -> ChainFormulation:
    """Return the problem of `profile` under `budget` as a mixed-integer linear program.

    Args:
        profile: A chain of n stages.
        budget: Bytes, or ``None`` to make the budget itself the objective.
        discards: Which operations may remove data, as in `simulate`.
        cuts: Whether to add the valid cuts; ``None`` adds those that are known to leave
            an optimal schedule (`chainstay.formulations.chain.cuts.exact_cuts`).

    Returns:
        The formulation: about 5n²/2 binary variables and 3n² rows, twice as many
        with the cuts.

    Raises:
        ValueError: Unknown `discards`.
    """
    rules = Discards(discards)
    largest = enough_bytes(profile) if budget is None else min(budget, most_bytes(profile))
    model = pyo.ConcreteModel(name="chain")
    phases = Phases(
        model=model,
        records=Records(profile),
        discards=rules,
        unit=memory_unit(profile, largest),
        ceiling=(largest // size_divisor(profile) + 1) * size_divisor(profile),
        reruns=may_record_and_rerun(profile, rules),
        drops=may_discard_in_a_phase(profile, rules),
    )
    _limit_memory(phases, None if budget is None else largest)
    match cuts:
        case None:
            chosen = exact_cuts(profile, rules)
        case True:
            chosen = CUTS
        case False:
            has_choice = any(len(phases.records.covering(i)) > 1 for i in range(len(profile)))
            chosen = (saved_data_stored_once,) if has_choice else ()
    for group in CONSTRAINTS + chosen:
        model.add_component(group.__name__, group(phases))
    model.overruns = pyo.ConstraintList()
    # A number would make a Boolean, not a row, of an overrun that nothing can change.
    model.one_change = pyo.Param(initialize=1, mutable=True)
    time_unit = phases.records.time_unit
    if budget is not None:
        model.forward_time = pyo.Objective(expr=_forward_time(phases, time_unit))
    return ChainFormulation(model=model, phases=phases, budget=budget, time_unit=time_unit)


def _limit_memory(phases: Phases, budget: int | None) -> None:
    """Add ``model.memory_limit``: a constant a little above the budget, or the objective.

    What fits is a whole number of divisors of all sizes, so half a divisor more changes
    nothing in exact arithmetic and keeps a schedule that needs the budget to the last
    byte from being lost to rounding. The share of the budget is small enough not to
    weaken the relaxation of toy chains. Where all that is less than a solver's errors, the
    limit is relaxed beyond the next size, so that an infeasible model has no schedule:
    `ChainFormulation.forbid_overruns` then takes out, in integers, what is too large.
    """
    model, divisor = phases.model, size_divisor(phases.profile)
    if budget is None:
        model.memory_limit = pyo.Var(domain=pyo.NonNegativeReals)
        model.least_budget = pyo.Objective(expr=model.memory_limit)
        return
    whole = budget // divisor * divisor
    margin = max(min(divisor / 2, whole * _WIDEST_MARGIN), _SOLVER_ERROR * phases.unit)
    model.memory_limit = pyo.Param(initialize=(whole + margin) / phases.unit, mutable=True)


def _forward_time(phases: Phases, time_unit: int) -> Expression:
    """Return the time of all forwards, and what backwards take beyond the least they can."""

    def units(run: RunCost) -> int:
        return run.time // time_unit

    records = phases.records
    forward = sum(
        phases.kept_cost(k, j, units) + phases.dropped_cost(k, j, units)
        for j in range(len(phases.profile))
        for k in range(j, len(phases.profile))
    )
    backward = (
        records.backward_excess(record) // time_unit * phases.saved_left(record.last, [record])
        for record in records.all
        if records.backward_excess(record)
    )
    return forward + sum(backward)
