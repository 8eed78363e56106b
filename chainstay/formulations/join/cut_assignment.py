"""The unit-slot join as an assignment of cuts: small and quick, and open to further constraints.

A schedule is a sequence of cuts and the turn ([BHPS20], Theorem 1): the t-th cut runs branch m
on by i steps, which run backward once all that follows is done, in ``c - t + 2 - P`` slots if
P branches hold a gradient by then, its own included. The model chooses the cuts; what a cut
costs is the closed form of ``Opt_0``. It rests on the theorem that `slot_formulation` does
without, and proves more: (30, 30, 30) with 15 slots takes seconds. Joins with a tail are not in it.

===================  ==========================================================
variable             meaning
===================  ==========================================================
cut[t, m, i, P]      the t-th cut, from 1, is of branch m, over i steps, and P
                     branches then hold gradients
touched[t, m]        branch m is cut by then, or its input's gradient is kept
===================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from chainstay.errors import InvalidProfileError
from chainstay.formulations.integer_program import IntegerProgram, Key, LinearExpression, sum_of
from chainstay.problems.binomial import IMPOSSIBLE, least_reversal_forwards, reversal
from chainstay.profiles import HomogeneousJoin
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs


class CutAssignment:
    """The program, and the meaning of its variables.

    Add constraints to `program` before it is solved to forbid or demand cuts.

    Args:
        profile: A homogeneous join without a tail.
        keep: For each branch, whether the gradient of its input stays until the end.
        slots: The budget, in slots.

    Raises:
        InvalidProfileError: The join has a tail.
    """

    def __init__(self, profile: HomogeneousJoin, keep: tuple[bool, ...], slots: int) -> None:
        if profile.tail_length:
            raise InvalidProfileError(
                f"the join has {profile.tail_length} tail steps; cuts can be assigned only where "
                "the turn follows the branches (use SlotFormulation)"
            )
        self.profile, self.keep, self.slots = profile, keep, slots
        self.k = len(profile.lengths)
        self.cuts = range(1, min(slots - self.k, sum(profile.lengths)) + 1)
        self.program = IntegerProgram(slots)
        self.program.fits("memory_at_the_turn", LinearExpression({}, self.k))
        self._declare()
        self._state()

    def makespan(self, objective: int) -> int:
        """Return the makespan in ns that an objective of the program stands for."""
        return self.profile.makespan(objective)

    def decode(self, on: frozenset[Key]) -> Schedule:
        """Return the schedule in which the variables `on` are 1."""
        at = [0] * self.k
        forwards: list[Op] = []
        backwards: list[list[Op]] = []
        for key in (key for key in self._cut_keys() if key in on):
            _, t, m, *rest = key
            assert isinstance(t, int), "cuts are numbered"
            assert isinstance(m, int), "branches are numbered"
            steps, gradients = map(int, rest)
            forwards += forwards_dropping_inputs(at[m], at[m] + steps - 1, m)
            backwards.append([*reversal(m, at[m], steps, self._free(t, gradients))])
            at[m] += steps
        undone = [op for ops in reversed(backwards) for op in ops]
        return Schedule((*forwards, Op(OpKind.TURN), *undone))

    def _free(self, t: int, gradients: int) -> int:
        """Return the slots for running the steps of a cut backward."""
        return self.slots - t + 2 - gradients

    def _declare(self) -> None:
        for t in self.cuts:
            for m, length in enumerate(self.profile.lengths):
                for steps in range(1, length + 1):
                    for gradients in range(1, self.k + 1):
                        forwards = least_reversal_forwards(steps, self._free(t, gradients))
                        if forwards < IMPOSSIBLE:
                            cut = self.program.binary("cut", t, m, steps, gradients)
                            self.program.objective += (steps + forwards) * cut
                self.program.binary("touched", t, m)

    def _state(self) -> None:
        """State that every step is in one cut, cuts are in a row, and gradients are counted."""
        program = self.program
        for m, length in enumerate(self.profile.lengths):
            covered = LinearExpression()
            for key in self._cut_keys():
                covered += program.value(*key) * (int(key[3]) * (key[2] == m))
            program.equal("every_step_is_in_a_cut", covered, length)
        for t in self.cuts:
            here = [key for key in self._cut_keys() if key[1] == t]
            is_cut, gradients, touched = LinearExpression(), LinearExpression(), LinearExpression()
            for key in here:
                is_cut += program.value(*key)
                gradients += int(key[4]) * program.value(*key)
            program.at_most("one_at_a_time", is_cut, 1)
            if t > 1:
                before = (program.value(*key) for key in self._cut_keys() if key[1] == t - 1)
                program.at_most("cuts_are_in_a_row", is_cut, sum_of(before))
            for m in range(self.k):
                now = program.value("touched", t, m)
                earlier = program.value("touched", t - 1, m) if t > 1 else int(self.keep[m])
                program.at_most("touched_for_good", earlier, now)
                own = (program.value(*key) for key in here if key[2] == m)
                program.at_most("touched_by_a_cut", sum_of(own), now)
                touched += now
            program.at_most("gradients_are_counted", touched - gradients, self.k * (1 - is_cut))

    def _cut_keys(self) -> Iterator[Key]:
        return (key for key in self.program.variables if key[0] == "cut")
