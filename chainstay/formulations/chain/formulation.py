"""The exact program of a chain under a budget, stated once for both solvers.

`build` states the problem, `ChainFormulation.decode` reads a schedule out of its
variables and `ChainFormulation.encode` writes one into them. The constraints
are in `chainstay.formulations.chain.constraints`, the cuts that make it quick in
`chainstay.formulations.chain.cuts`.

Whether the program contains a schedule as fast as any depends on the chain:
`chainstay.problems.exactness.is_complete` says when it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chainstay.formulations.chain.constraints import CONSTRAINTS
from chainstay.formulations.chain.cuts import CUTS, exact_cuts, saved_data_stored_once
from chainstay.formulations.chain.encoder import FORMS, Encoder
from chainstay.formulations.chain.exactness_conditions import (
    may_discard_in_a_phase,
    may_record_and_rerun,
)
from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.integer_program import IntegerProgram, Key, LinearExpression, sum_of
from chainstay.formulations.memory_units import enough_bytes, most_bytes, size_divisor
from chainstay.formulations.program_by_highs import pyomo_model
from chainstay.formulations.pyomo_types import Model
from chainstay.formulations.records import Record, Records
from chainstay.profiles import ChainProfile, RunCost, require_no_environments
from chainstay.schedule import Discards, Item, Op, OpKind, Schedule, update_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFormulation:
    """A program and the meaning of its variables.

    Attributes:
        phases: The variables and what they mean.
    """

    phases: Phases

    @property
    def program(self) -> IntegerProgram:
        """Minimises the time of all forwards, or memory where there is no budget."""
        return self.phases.program

    @property
    def model(self) -> Model:
        """The program as a Pyomo model, one component per group (``memory_of_forwards``, …).

        Yours to write out (``model.write("chain.lp")``) or to hand to any Pyomo solver.
        """
        return pyomo_model(self.program)

    def makespan(self, objective: int) -> int:
        """Return the makespan in ns that an objective of the program stands for."""
        records = self.phases.records
        return records.least_backward_time + records.time_unit * objective

    def decode(self, on: frozenset[Key]) -> Schedule:
        """Return the schedule in which the variables `on` are 1.

        Discards come as late as the program has them: in free discards right after a
        stage's turn where it says so, otherwise at the end of a phase.
        """
        ops: list[Op] = []
        stored, held = {Item("a", 0)}, dict[int, Record]()
        k = len(self.phases.profile) - 1
        while k >= 0:
            for op, record in self._sweep(k, on):
                ops.append(op)
                update_stored(stored, op)
                held |= {op.stage: record} if record else {}
            first = next((i for i in held if held[i].last == k and Item("b", i) in stored), k)
            ops.append(Op(OpKind.BACKWARD, first))
            stored -= held[first].consumed if first in held else frozenset()
            k = first - 1
            if self.phases.discards is not Discards.TABLE1:
                # Saved data ("b") goes before what it was made from: a tape never lacks an input.
                for item in sorted(stored, reverse=True):
                    if not self._is_kept(item, k, held, on):
                        ops.append(item.discard)
                        stored.discard(item)
        return Schedule(tuple(ops))

    def encode(self, schedule: Schedule) -> frozenset[Key] | None:
        """Return the variables that are 1 in `schedule`, to start a solver from.

        ``None`` if the program does not contain it: more than one increasing sweep in a phase,
        invalid, or beyond the budget.
        """
        encoder = Encoder(self.phases)
        if not encoder.write(schedule):
            return None
        on = frozenset(encoder.on)
        on |= frozenset((*self.phases.stored_skips(on), *self.phases.runs_again(on)))
        return on if self.program.holds(on) else None

    def _sweep(self, k: int, on: frozenset[Key]) -> Iterator[tuple[Op, Record | None]]:
        """Yield the forwards of phase k with their records, and the discards between them."""
        records = self.phases.records
        for j in range(k + 1):
            for record in records.starting(j):
                if ("keep_all", k, *record.key) in on:
                    yield Op(OpKind.FORWARD_KEEP_ALL, j, option=record.option), record
            for kind, name in FORMS.items():
                if (name, k, j) in on:
                    yield Op(kind, j), None
            if ("activation_dropped", k, j) in on:
                yield Op(OpKind.DISCARD_ACTIVATION, j), None
            for record in records.ending(j - 1):
                if ("saved_dropped", k, *record.key) in on:
                    yield Op(OpKind.DISCARD_SAVED, record.stage), None

    def _is_kept(self, item: Item, k: int, held: Mapping[int, Record], on: frozenset[Key]) -> bool:
        """Return whether phase k starts with a stored item."""
        kind, i = item
        if kind == "a":
            return i == 0 or ("activation_stored", k, i) in on
        return ("saved_stored", k, *held[i].key) in on


def build(
    profile: ChainProfile,
    budget: int | None,
    *,
    discards: Discards | str = Discards.TABLE1,
    cuts: bool | None = None,
) -> ChainFormulation:
    """Return the problem of `profile` under `budget` as an integer program.

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
        UnknownMethodError: There are no such `discards`.
        InvalidProfileError: A stage has an environment, and there are discards.
    """
    if discards != Discards.TABLE1:  # a stage of a dropped record would be saved with all of it
        require_no_environments(profile, f"the integer program with {discards} discards")
    rules, unit = Discards(discards), size_divisor(profile)
    largest = enough_bytes(profile) if budget is None else min(budget, most_bytes(profile))
    program = IntegerProgram(None if budget is None else largest // unit)
    phases = Phases(
        program=program,
        records=Records(profile),
        discards=rules,
        unit=unit,
        ceiling=largest // unit + 1,
        reruns=may_record_and_rerun(profile, rules),
        drops=may_discard_in_a_phase(profile, rules),
    )
    match cuts:
        case None:
            chosen = exact_cuts(profile, rules)
        case True:
            chosen = CUTS
        case False:
            has_choice = any(len(phases.records.covering(i)) > 1 for i in range(len(profile)))
            chosen = (saved_data_stored_once,) if has_choice else ()
    for group in CONSTRAINTS + chosen:
        program.state(group.__name__, group(phases))
    program.objective = program.expanded(_forward_time(phases))
    return ChainFormulation(phases=phases)


def _forward_time(phases: Phases) -> LinearExpression:
    """Return the time of all forwards, and what backwards take beyond the least they can.

    In units of `Records.time_unit`.
    """
    records, n = phases.records, len(phases.profile)

    def units(run: RunCost) -> int:
        return run.time // records.time_unit

    forward = (
        phases.kept_cost(k, j, units) + phases.dropped_cost(k, j, units)
        for j in range(n)
        for k in range(j, n)
    )
    backward = (
        records.backward_excess(record)
        // records.time_unit
        * phases.saved_left(record.last, [record])
        for record in records.all
    )
    return sum_of([*forward, *backward])
