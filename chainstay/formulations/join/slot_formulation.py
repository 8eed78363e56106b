"""The unit-slot join as an integer program by phases, independent of any theorem on cuts.

A phase is some forwards and then one *closing* operation, a backward or the turn. Within a
phase no step runs twice: the first run could wait for the phase that uses it. Nor does the
order of forwards matter: dropping what is not used first, memory does not fall in a phase
but at the join step, so it is counted there and at the phase's end.

==============  ============================================================
variable        meaning, in phase t
==============  ============================================================
stored[t, v]    value v is in memory when the phase starts
runs[t, v]      the step that makes v runs
kept[t, v]      v was stored, and is there until the closing operation
made[t, v]      v was made, and is there until the closing operation
closes[t, g]    g is the closing operation: the backward of a step, or the turn
==============  ============================================================

Values and steps are (chain, index), the tail being the last chain: step (j, i) reads value
(j, i) and makes (j, i + 1).
"""

from __future__ import annotations

from typing import TypeAlias

from chainstay.formulations.integer_program import IntegerProgram, Key, LinearExpression, sum_of
from chainstay.profiles import HomogeneousJoin
from chainstay.schedule import Op, OpKind, Schedule

_Index: TypeAlias = tuple[int, int]


class SlotFormulation:
    """The program of a homogeneous join, and the meaning of its variables.

    Args:
        profile: The join.
        keep: For each branch, whether the gradient of its input stays until the end.
        slots: The budget, in slots; None to make it the objective.

    Attributes:
        program: About 4 N variables a phase, for N values, in N phases.
        size_unit: The slots in a unit of memory: 1.
    """

    size_unit = 1

    def __init__(self, profile: HomogeneousJoin, keep: tuple[bool, ...], slots: int | None) -> None:
        self.profile, self.keep = profile, keep
        self.k, self.lengths = len(profile.lengths), (*profile.lengths, profile.tail_length)
        self.steps = [(c, i) for c, n in enumerate(self.lengths) for i in range(n)]
        self.inputs = [(j, 0) for j in range(self.k)]
        self.values = self.inputs + [(c, i + 1) for c, i in self.steps]
        self.turn: _Index = (self.k + 1, 0)
        self.phases = range(len(self.steps) + 1)
        self.program = IntegerProgram(slots)
        self._declare()
        for t in self.phases:
            self._forwards(t)
            self._closing(t)
            self._memory(t)
            self._cuts(t)
        for v in self.values[self.k :]:
            runs = sum_of(self._is("runs", t, v) for t in self.phases)
            self.program.at_most("each_runs", 1, runs)
        for g in (*self.steps, self.turn):
            once = sum_of(self._is("closes", t, g) for t in self.phases)
            self.program.equal("each_closes_once", once, 1)
        for t in self.phases:
            for v in self.values:
                self.program.objective += self._is("runs", t, v)

    def makespan(self, objective: int) -> int:
        """Return the makespan in ns that an objective of the program stands for."""
        return self.profile.makespan(objective)

    def decode(self, on: frozenset[Key]) -> Schedule:
        """Return the schedule in which the variables `on` are 1."""
        ops: list[Op] = []
        stored = set(self.inputs)
        for t in self.phases:
            starts = {v for v in self.values if ("stored", t, *v) in on}
            ops += [self._op(OpKind.DISCARD_ACTIVATION, v) for v in sorted(stored - starts)]
            stored &= starts
            for step in (s for s in self.steps if ("runs", t, s[0], s[1] + 1) in on):
                made = (step[0], step[1] + 1)
                ops.append(self._op(OpKind.FORWARD_KEEP_INPUT, step))
                stored.add(made)
                for used in self._read(step):
                    if not any((state, t, *used) in on for state in ("kept", "made")):
                        ops.append(self._op(OpKind.DISCARD_ACTIVATION, used))
                        stored.discard(used)
            closing = next(g for g in (*self.steps, self.turn) if ("closes", t, *g) in on)
            is_turn = closing == self.turn
            ops.append(Op(OpKind.TURN) if is_turn else self._op(OpKind.BACKWARD, closing))
            stored -= set(self._closing_reads(closing))
        return Schedule(tuple(ops))

    def _declare(self) -> None:
        for t in self.phases:
            for v in self.values:
                if t > 0 or v in self.inputs:
                    self.program.binary("stored", t, *v)
                    self.program.binary("kept", t, *v)
                if v not in self.inputs:
                    self.program.binary("runs", t, *v)
                    self.program.binary("made", t, *v)
            for g in (*self.steps, self.turn):
                self.program.binary("closes", t, *g)

    def _forwards(self, t: int) -> None:
        """State that what runs has its inputs, and what is there at the end was stored or made."""
        state, program = self._is, self.program
        for v in self.values:
            there = state("stored", t, v) + state("runs", t, v)
            program.at_most("made_only_if_not_stored", there, 1)
            program.at_most("kept_was_stored", state("kept", t, v), state("stored", t, v))
            program.at_most("made_has_run", state("made", t, v), state("runs", t, v))
            if t > 0:
                left = state("kept", t - 1, v) + state("made", t - 1, v)
                program.at_most("stored_was_left", state("stored", t, v), left)
        for c, i in self.steps:
            for v in self._read((c, i)):
                there = state("stored", t, v) + state("runs", t, v)
                program.at_most("step_has_its_input", state("runs", t, (c, i + 1)), there)
        joins = state("runs", t, (self.k, 1))
        for i in range(1, self.lengths[-1]):
            runs, before = state("runs", t, (self.k, i + 1)), state("runs", t, (self.k, i))
            program.at_most("tail_runs_on_from_the_join", joins + runs - before, 1)

    def _cuts(self, t: int) -> None:
        """State that only what the phase's closing operation needs runs, and only while needed."""
        program, on_the_way = self.program, [self.turn, *self.steps[sum(self.lengths[:-1]) :]]
        for c, i in self.steps:
            runs = self._is("runs", t, (c, i + 1))
            own = [(c, n) for n in range(self.lengths[c])] if c < self.k else []
            serves = (self._is("closes", t, g) for g in (*own, *on_the_way))
            program.at_most("runs_for_the_closing", runs, sum_of(serves))
            is_read = self._done(t, self._before((c, i)))
            program.at_most("runs_while_needed", runs + is_read, 1)

    def _closing(self, t: int) -> None:
        """State that one operation closes a phase, when its inputs and its gradient are there."""
        program = self.program
        closing = (*self.steps, self.turn)
        program.equal("one_closes", sum_of(self._is("closes", t, g) for g in closing), 1)
        for g in closing:
            closes = self._is("closes", t, g)
            if g != self.turn:
                program.at_most("gradient_is_there", closes, self._done(t, self._before(g)))
            for v in self._closing_reads(g):
                there = self._is("kept", t, v) + self._is("made", t, v)
                program.at_most("closing_has_its_inputs", closes, there)

    def _memory(self, t: int) -> None:
        """Limit the slots when the phase closes, and right before the join step."""
        gradients, end, before_join = self._gradients(t), LinearExpression(), LinearExpression()
        outputs = set(enumerate(self.lengths[:-1]))
        for v in self.values:
            there = self._is("kept", t, v) + self._is("made", t, v)
            end += there
            if v[0] == self.k:
                before_join += self._is("kept", t, v)
            elif v not in outputs:
                before_join += there
        self.program.fits("memory_at_the_end", gradients + end)
        if self.lengths[-1]:
            joining = self.k * self._is("runs", t, (self.k, 1))
            self.program.fits("memory_at_the_join", gradients + before_join + joining)

    def _gradients(self, t: int) -> LinearExpression:
        """Return the slots that gradients take in phase t."""
        total, turned = LinearExpression(), self._before((0, self.lengths[0] - 1))
        for j, length in enumerate(self.lengths[:-1]):
            if self.keep[j]:
                total += self._done(t, turned)
            elif length:
                total += self._done(t, turned) - self._done(t, (j, 0))
        if self.lengths[-1]:
            total += self._done(t, self.turn) - self._done(t, (self.k, 0))
        return total

    def _before(self, g: _Index) -> _Index:
        """Return the operation that gives the gradient which the backward of step g reads."""
        c, i = g
        if i + 1 < self.lengths[c]:
            return c, i + 1
        return (self.k, 0) if c < self.k and self.lengths[-1] else self.turn

    def _done(self, t: int, g: _Index) -> LinearExpression:
        """Return whether g closed a phase before t."""
        return sum_of(self._is("closes", earlier, g) for earlier in range(t))

    def _read(self, step: _Index) -> list[_Index]:
        return list(enumerate(self.lengths[:-1])) if step == (self.k, 0) else [step]

    def _closing_reads(self, g: _Index) -> list[_Index]:
        if g != self.turn:
            return self._read(g)
        return [(self.k, self.lengths[-1])] if self.lengths[-1] else self._read((self.k, 0))

    def _is(self, name: str, t: int, v: _Index) -> LinearExpression:
        return self.program.value(name, t, *v)

    def _op(self, kind: OpKind, at: _Index) -> Op:
        return Op(kind, at[1], at[0] if at[0] < self.k else None)
