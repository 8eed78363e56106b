"""The join of stages with saved data as an integer program by phases.

A phase is one sweep of forwards, branch by branch in their order and then the tail, and then
one backward, which *closes* it. It knows nothing of checkpoints or canonical orders; what it
leaves out are schedules that run a stage twice in a phase or branches in turns, and discards
of saved data within a phase: `Family.SINGLE_SWEEP`.

==================  ========================================================
variable            meaning, in phase t
==================  ========================================================
stored[t, v]        activation v is in memory when the phase starts
saved[t, u, r]      record r of stage u is in memory when the phase starts
keeps_input[t, u]   stage u runs as ``Fc``
keeps_all[t, u, r]  stage u runs as ``Fa`` and makes its record r
left[t, v]          activation v is in memory when the phase closes
closes[t, u, r]     the backward of stage u closes the phase, from its record r
half[t, g]          shared gradient g is half summed when the phase starts
summing[t, g]       shared gradient g is half summed then or when the phase is closed
==================  ========================================================

A stage has at most one record at a time. Phase 0 runs every stage, as the loss closes it, so its
runs are the first ones and all others run again.

Stages and activations are (chain, index), the tail being the last chain: stage (j, i) reads
(j, i) and makes (j, i + 1); stage 0 of the tail reads the outputs of all branches. A plain
activation that is not left is dropped right after the turn of the stage that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TypeAlias

from chainstay.formulations.integer_program import IntegerProgram, Key, LinearExpression, sum_of
from chainstay.formulations.memory_units import sizes
from chainstay.formulations.records import Records
from chainstay.profiles import JoinProfile, Stage
from chainstay.schedule import Op, OpKind, Schedule

_Index: TypeAlias = tuple[int, int]


class ByteFormulation:
    """The program of a join of any stages, and the meaning of its variables.

    Args:
        profile: The join.
        keep: For each branch, whether the gradient of its input stays until the end.
        budget: Bytes; None to make it the objective.

    Attributes:
        program: About 7 n variables a phase, for n stages, in n phases; 3 more for each option.
        size_unit: The bytes in a unit of memory: the greatest common divisor of all sizes.
        time_unit: The ns in a unit of the objective.
    """

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...], budget: int | None) -> None:
        self.profile, self.keep = profile, keep
        self.chains = profile.chains
        self.k = len(profile.branches)
        self.stages = [(c, i) for c, chain in enumerate(self.chains) for i in range(len(chain))]
        self.inputs = [(j, 0) for j in range(self.k)]
        output = (self.k, len(self.chains[-1]))
        self.values = [v for v in self.inputs + [(c, i + 1) for c, i in self.stages] if v != output]
        self.phases = range(len(self.stages))
        all_sizes = [size for chain in self.chains for size in sizes(chain)]
        all_sizes += [gradient.bytes for gradient in profile.shared]
        self.size_unit = gcd(*all_sizes) or 1
        self.program = IntegerProgram(None if budget is None else budget // self.size_unit)
        records = [Records(chain, is_whole=False) for chain in self.chains]
        self.records = {(c, i): records[c].starting(i) for c, i in self.stages}
        self.backward_times = {
            u: min(record.backward_time for record in self.records[u]) for u in self.stages
        }
        self.time_unit = gcd(*self._times()) or 1
        self._declare()
        for t in self.phases:
            self._sweep(t)
            self._closing(t)
            self._sum(t)
            self._carry(t)
            self._memory(t)
        for u in self.stages:
            once = sum_of(self._closes(t, u) for t in self.phases)
            self.program.equal("each_closes_once", once, 1)
            recorded = sum_of(self._from_records(t, u, "keeps_all") for t in self.phases)
            self.program.at_most("each_is_recorded", 1, recorded)
            for t in self.phases:
                self._price(t, u)

    def makespan(self, objective: int) -> int:
        """Return the makespan in ns that an objective of the program stands for."""
        return self.time_unit * objective + sum(self.backward_times.values())

    def _times(self) -> Iterator[int]:
        """Yield every time, in ns, that the objective counts."""
        for u in self.stages:
            yield from (run.time for run in self._stage(u).dropped_runs)
            yield from (run.time for r in self.records[u] for run in r.costs.runs)
            yield from (r.backward_time - self.backward_times[u] for r in self.records[u])

    def _price(self, t: int, u: _Index) -> None:
        """Add what stage u takes in phase t to the objective."""
        dropped = self._stage(u).dropped(first=t == 0).time // self.time_unit
        self.program.objective += dropped * self._is("keeps_input", t, u)
        for r, record in enumerate(self.records[u]):
            kept = record.costs.run(first=t == 0).time // self.time_unit
            longer = (record.backward_time - self.backward_times[u]) // self.time_unit
            self.program.objective += kept * self._is("keeps_all", t, u, r)
            self.program.objective += longer * self._is("closes", t, u, r)

    def decode(self, on: frozenset[Key]) -> Schedule:
        """Return the schedule in which the variables `on` are 1."""
        ops: list[Op] = []
        stored, saved = set(self.inputs), set[_Index]()
        for t in self.phases:
            for u in sorted(saved, reverse=True):
                if not any(("saved", t, *u, r) in on for r in range(len(self.records[u]))):
                    ops += self._ops(OpKind.DISCARD_SAVED, u)
                    saved.discard(u)
            for v in sorted(stored):
                if ("stored", t, *v) not in on:
                    ops += self._ops(OpKind.DISCARD_ACTIVATION, v)
                    stored.discard(v)
            for u in self.stages:
                ops += self._run(t, u, stored, saved, on)
            closing = next(
                u
                for u in self.stages
                for r in range(len(self.records[u]))
                if ("closes", t, *u, r) in on
            )
            ops += self._ops(OpKind.BACKWARD, closing)
            saved.discard(closing)
            stored.difference_update(self._read(closing))
        return Schedule(tuple(ops))

    def _run(
        self, t: int, u: _Index, stored: set[_Index], saved: set[_Index], on: frozenset[Key]
    ) -> Iterator[Op]:
        """Yield the operations of stage u's turn in a sweep; update what is stored."""
        if ("keeps_input", t, *u) in on:
            yield from self._ops(OpKind.FORWARD_KEEP_INPUT, u)
            stored.add((u[0], u[1] + 1))
        for r, record in enumerate(self.records[u]):
            if ("keeps_all", t, *u, r) in on:
                yield from self._ops(OpKind.FORWARD_KEEP_ALL, u, record.option)
                saved.add(u)
        for v in self._read(u):
            if v in stored and ("left", t, *v) not in on:
                yield from self._ops(OpKind.DISCARD_ACTIVATION, v)
                stored.discard(v)

    def _declare(self) -> None:
        for t in self.phases:
            for v in self.values:
                if t > 0 or v in self.inputs:
                    self.program.binary("stored", t, *v)
                self.program.binary("left", t, *v)
            for u in self.stages:
                if (u[0], u[1] + 1) in self.values:
                    self.program.binary("keeps_input", t, *u)
                for r, record in enumerate(self.records[u]):
                    if t > 0:
                        self.program.binary("saved", t, *u, r)
                    if record.is_made(first=t == 0):
                        self.program.binary("keeps_all", t, *u, r)
                    if t > 0 or record.is_made(first=True):
                        self.program.binary("closes", t, *u, r)

    def _sweep(self, t: int) -> None:
        """State that what runs has its inputs, nothing is made twice, a tape keeps its inputs."""
        program = self.program
        for u in self.stages:
            recorded = self._recorded(t, u)
            reading = self._from_records(t, u, "saved", "keeps_all", needs_input=True)
            program.at_most("saved_once", recorded, 1)
            program.at_most("runs_once", self._runs(t, u), 1)
            for v in self._read(u):
                program.at_most("stage_has_its_input", self._runs(t, u), self._has(t, v))
                program.at_most("tape_keeps_inputs", reading, self._leaves(t, v))
        for v in self.values:
            program.at_most("stored_once", self._available(t, v), 1)
            program.at_most("left_was_there", self._is("left", t, v), self._available(t, v))
        for v in [] if self.profile.is_plain else self.inputs:  # whoever reads it keeps it there
            program.at_most("branch_keeps_its_input", 1 - self._done(t, v), self._is("left", t, v))

    def _closing(self, t: int) -> None:
        """State that one backward closes a phase, when all that it reads is there."""
        program = self.program
        program.equal("one_closes", sum_of(self._closes(t, u) for u in self.stages), 1)
        for u in self.stages:
            closes = self._closes(t, u)
            reading = self._from_records(t, u, "closes", needs_input=True)
            for r in range(len(self.records[u])):
                recorded = self._recorded_as(t, u, r)
                program.at_most(
                    "backward_has_its_saved_data", self._is("closes", t, u, r), recorded
                )
            program.at_most("backward_has_its_gradient", closes, self._gradient_is_there(t, u))
            program.at_most("stage_is_not_over", self._runs(t, u) + self._done(t, u), 1)
            for v in self._read(u):
                program.at_most("backward_has_its_input", reading, self._leaves(t, v))

    def _sum(self, t: int) -> None:
        """State what is half summed: one user has closed a phase, and another has not."""
        for g, users in enumerate(self.profile.users):
            half, summing = (self.program.binary(n, t, g) for n in ("half", "summing"))
            for u in users:
                for w in set(users) - {u}:
                    left = 1 - self._done(t, w)
                    self.program.at_most("half_summed_before", self._done(t, u) + left - 1, half)
                    self.program.at_most(
                        "half_summed_meanwhile", self._done(t + 1, u) + left - 1, summing
                    )

    def _standing(self, name: str, t: int) -> LinearExpression:
        """Return the units of the shared gradients for which a variable is 1."""
        return sum_of(
            self._units(gradient.bytes) * self.program.value(name, t, g)
            for g, gradient in enumerate(self.profile.shared)
        )

    def _carry(self, t: int) -> None:
        """State that a phase starts with what the one before left, or less."""
        if t == 0:
            return
        program = self.program
        for u in self.stages:
            closed = self._closes(t - 1, u)
            for r in range(len(self.records[u])):
                left = self._recorded_as(t - 1, u, r) - self._is("closes", t - 1, u, r)
                program.at_most("saved_was_left", self._is("saved", t, u, r), left)
            reading = self._from_records(t, u, "saved", needs_input=True)
            for v in self._read(u):
                stored = self._is("stored", t, v)
                program.at_most("stored_was_left", stored, self._is("left", t - 1, v))
                program.at_most("backward_takes_its_input", stored + closed, 1)
                kept = stored + self._from_records(t, (v[0], v[1] - 1), "saved")
                program.at_most("tape_keeps_inputs_between_phases", reading, kept)

    def _memory(self, t: int) -> None:
        """Limit the memory at every stage's turn, and while the phase closes."""
        gradients = self._gradients(t)
        for position, u in enumerate(self.stages):
            dropped = self._stage(u).dropped(first=t == 0)
            total = gradients + self._standing("half", t)
            total += self._units(dropped.overhead_bytes) * self._is("keeps_input", t, u)
            for r, record in enumerate(self.records[u]):
                run = record.costs.run(first=t == 0)
                total += self._units(run.overhead_bytes) * self._is("keeps_all", t, u, r)
            for v in self.values:
                total += self._size(v) * self._there(t, v, position)
            for place, w in enumerate(self.stages):
                for r, record in enumerate(self.records[w]):
                    has_run = place <= position
                    stored = self._recorded_as(t, w, r) if has_run else self._is("saved", t, w, r)
                    total += self._units(record.costs.saved_bytes) * stored
            self.program.fits("memory_of_forwards", total)
        total = gradients + self._standing("summing", t)
        for v in self.values:
            total += self._size(v) * self._is("left", t, v)
        for u in self.stages:
            for r, record in enumerate(self.records[u]):
                option = record.costs
                need = option.backward_overhead_bytes + self.chains[u[0]].gradient_bytes(u[1])
                total += self._units(option.saved_bytes) * self._recorded_as(t, u, r)
                total += self._units(need) * self._is("closes", t, u, r)
        self.program.fits("memory_of_backwards", total)

    def _there(self, t: int, v: _Index, position: int) -> LinearExpression:
        """Return whether v is in memory during the turn of the stage at `position`."""
        readers = [n for n, u in enumerate(self.stages) if v in self._read(u)]
        if position > readers[0]:
            return self._is("left", t, v)
        maker = (v[0], v[1] - 1)
        is_made = v[1] > 0 and self.stages.index(maker) <= position
        return self._available(t, v) if is_made else self._is("stored", t, v)

    def _gradients(self, t: int) -> LinearExpression:
        """Return the units of the gradients that are held when phase t starts."""
        total = LinearExpression()
        for c, chain in enumerate(self.chains):
            for i in range(len(chain)):
                held = self._gradient_is_there(t, (c, i)) - self._done(t, (c, i))
                total += self._units(chain.gradient_bytes(i + 1)) * held
            if c < self.k and self.keep[c]:
                total += self._units(chain.gradient_bytes(0)) * self._done(t, (c, 0))
        return total

    def _gradient_is_there(self, t: int, u: _Index) -> LinearExpression:
        """Return whether what makes the gradient of stage u's output closed a phase before t."""
        c, i = u
        if i + 1 < len(self.chains[c]):
            return self._done(t, (c, i + 1))
        return self._done(t, (self.k, 0)) if c < self.k else LinearExpression({}, 1)

    def _done(self, t: int, u: _Index) -> LinearExpression:
        return sum_of(self._closes(earlier, u) for earlier in range(t))

    def _from_records(
        self, t: int, u: _Index, *names: str, needs_input: bool = False
    ) -> LinearExpression:
        """Return these variables' sum over stage u's records, or those that need their input."""
        return sum_of(
            self._is(name, t, u, r)
            for r, record in enumerate(self.records.get(u, ()))
            if record.costs.needs_input or not needs_input
            for name in names
        )

    def _closes(self, t: int, u: _Index) -> LinearExpression:
        return self._from_records(t, u, "closes")

    def _runs(self, t: int, u: _Index) -> LinearExpression:
        return self._is("keeps_input", t, u) + self._from_records(t, u, "keeps_all")

    def _recorded(self, t: int, u: _Index) -> LinearExpression:
        return self._from_records(t, u, "saved", "keeps_all")

    def _recorded_as(self, t: int, u: _Index, r: int) -> LinearExpression:
        return self._is("saved", t, u, r) + self._is("keeps_all", t, u, r)

    def _available(self, t: int, v: _Index) -> LinearExpression:
        return self._is("stored", t, v) + self._is("keeps_input", t, (v[0], v[1] - 1))

    def _has(self, t: int, v: _Index) -> LinearExpression:
        return self._available(t, v) + self._recorded(t, (v[0], v[1] - 1))

    def _leaves(self, t: int, v: _Index) -> LinearExpression:
        return self._is("left", t, v) + self._recorded(t, (v[0], v[1] - 1))

    def _read(self, u: _Index) -> list[_Index]:
        outputs = [(j, len(branch)) for j, branch in enumerate(self.profile.branches)]
        return outputs if u == (self.k, 0) else [u]

    def _size(self, v: _Index) -> int:
        return self._units(self.chains[v[0]].activation_bytes(v[1]))

    def _units(self, size: int) -> int:
        return size // self.size_unit

    def _stage(self, u: _Index) -> Stage:
        return self.chains[u[0]].stages[u[1]]

    def _is(self, name: str, t: int, v: _Index, *r: int) -> LinearExpression:
        return self.program.value(name, t, *v, *r)

    def _ops(self, kind: OpKind, at: _Index, option: int = 0) -> Iterator[Op]:
        """Yield the operation; without a tail, the turn stands for its stage."""
        c, i = at
        if c < self.k or self.profile.tail is not None:
            yield Op(kind, i, c if c < self.k else None, option)
        elif kind is OpKind.BACKWARD:
            yield Op(OpKind.TURN)
