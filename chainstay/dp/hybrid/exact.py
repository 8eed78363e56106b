"""POFO exactly, for short chains: the recurrences as printed, on whole numbers, memoised.

[POFO], appendix, with one correction (``docs/deviations.md``). Everything is counted in
units of data: a time stands for what the link moves in it, so that sizes, times and costs
are whole numbers of one unit, bytes over the denominator of the bandwidth.

==================  =========================================================
symbol in [POFO]    name here (stages from 0: the paper's layer i is stage i-1)
==================  =========================================================
``A``               `kept`: what stays on the device until the other side of the turn
``D_F``             `leaving`: bytes that still have to leave
``D_B``             `returning`: bytes that will have to come back after this point
``Z``               the input of the stage at hand: plain, or in saved data
``C_A(i, j, A, D)`` `ExactHybrid.inner`: stages i..j, recomputed from a kept input
``OC_x(i, ...)``    `ExactHybrid.outer`: from stage i to the turn and back
==================  =========================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Self, TypeAlias

from chainstay.dp.recursion import forwards_dropping_inputs
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind

__all__ = ["Amounts", "ExactHybrid", "ExactPlan"]

_Recomputation: TypeAlias = tuple[int, tuple[Op, ...]]
"""The cost, in data units, and the operations of stages i..j."""


class ExactPlan(NamedTuple):
    """A persistent schedule's computations and what it offloads.

    Attributes:
        cost: Time in data units.
        ops: Forwards and backwards.
        moved: Items that are offloaded: ``("a", i)`` for ``a^i``, ``("b", i)`` for ``ā^i``.
    """

    cost: int
    ops: tuple[Op, ...]
    moved: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A chain and a budget in units of data; shapes as in `ChainArrays`.

    Attributes:
        unit: Bytes per unit, at most 1.
        time_unit: Time per unit.
        budget: Units of memory.
        activation: Units of ``a^i``.
        saved: Units of ``ā^i``.
        gradient: Units of ``δ^i``.
        forward_overhead: Units in use only during a forward.
        backward_overhead: Units in use only during a backward.
        forward: Units that the link moves during a forward.
        backward: Units that the link moves during a backward.
    """

    unit: Fraction
    time_unit: Fraction
    budget: int
    activation: tuple[int, ...]
    saved: tuple[int, ...]
    gradient: tuple[int, ...]
    forward_overhead: tuple[int, ...]
    backward_overhead: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @classmethod
    def from_chain(cls, profile: ChainProfile, budget: int, link: Link) -> Self:
        """Return amounts in the largest unit in which all is whole.

        Args:
            profile: A chain without skips.
            budget: Bytes.
            link: A link without latency.
        """
        bandwidth, stages = Fraction(link.bandwidth), profile.stages
        scale, speed = bandwidth.denominator, bandwidth.numerator
        states = range(len(profile) + 1)
        return cls(
            unit=Fraction(1, scale),
            time_unit=Fraction(1, speed),
            budget=budget * scale,
            activation=tuple(profile.activation_bytes(i) * scale for i in states),
            saved=tuple(stage.saved_bytes * scale for stage in stages),
            gradient=tuple(profile.gradient_bytes(i) * scale for i in states),
            forward_overhead=tuple(stage.forward_overhead_bytes * scale for stage in stages),
            backward_overhead=tuple(stage.backward_overhead_bytes * scale for stage in stages),
            forward=tuple(stage.forward_time * speed for stage in stages),
            backward=tuple(stage.backward_time * speed for stage in stages),
        )

    def __len__(self) -> int:
        return len(self.forward)

    def recording(self, i: int, last: int) -> int:
        """Return what ``Fa`` of stage i needs besides its input, the gradient of `last` held."""
        return self.gradient[last + 1] + self.saved[i] + self.forward_overhead[i]

    def backing(self, i: int) -> int:
        """Return what the backward of stage i needs besides its input."""
        return self.saved[i] + self.gradient[i] + self.gradient[i + 1] + self.backward_overhead[i]

    def passing(self, k: int, first: int, last: int) -> int:
        """Return what a forward of stage k needs besides the input of `first`, which stays."""
        source = self.activation[k] if k > first else 0
        made = self.activation[k + 1] + self.forward_overhead[k]
        return self.gradient[last + 1] + source + made


class InnerState(NamedTuple):
    """The arguments of ``C_A``: stages i..j, the units kept, and those that have to come back."""

    i: int
    j: int
    kept: int
    returning: int


class OuterState(NamedTuple):
    """The arguments of ``OC``: on the way to the turn, at stage i.

    Attributes:
        i: The stage whose input has been made.
        is_saved: Whether that input is part of saved data.
        kept: Units that stay on the device until after the turn.
        leaving: Units that still have to leave.
        returning: Units that will have to come back.
    """

    i: int
    is_saved: bool
    kept: int
    leaving: int
    returning: int


class _Step(NamedTuple):
    """A move at a stage on the way to the turn, and what belongs to it on the way back.

    Attributes:
        size: Units of the stage's input.
        must_leave: Whether the input cannot stay.
        following: The next stage, and whether its input is part of saved data.
        times: Units that the link moves meanwhile: on the way to the turn, and back.
        ops: Operations on the way to the turn, and back.
    """

    size: int
    must_leave: bool
    following: tuple[int, bool]
    times: tuple[int, int]
    ops: tuple[tuple[Op, ...], tuple[Op, ...]]


@dataclass(slots=True)
class ExactHybrid:
    """The optimal plan, by memoised recursion.

    Attributes:
        amounts: The chain and the budget.
    """

    amounts: Amounts
    _inner: dict[InnerState, _Recomputation | None] = field(default_factory=dict)
    _outer: dict[OuterState, ExactPlan | None] = field(default_factory=dict)

    @classmethod
    def solve(cls, amounts: Amounts) -> ExactPlan | None:
        """Return the optimum among persistent schedules with parts of items offloaded.

        Complexity:
            As many states as there are ways to get to them: for chains of up to about 7 stages.
        """
        return cls(amounts).outer(OuterState(0, is_saved=False, kept=0, leaving=0, returning=0))

    def inner(self, i: int, j: int, kept: int, returning: int) -> _Recomputation | None:
        """Return ``C_A``: cost and operations of stages i..j, the input being among the kept."""
        state = InnerState(i, j, kept, returning)
        if state not in self._inner:
            found = [self._recorded(state), *(self._restarted(state, k) for k in range(i, j))]
            self._inner[state] = min(filter(None, found), default=None, key=lambda pair: pair[0])
        return self._inner[state]

    def _recorded(self, state: InnerState) -> _Recomputation | None:
        """Return ``C_A``, case ``Fall``."""
        (i, j, kept, returning), amounts = state, self.amounts
        room = amounts.budget - kept
        if max(amounts.recording(i, j), amounts.backing(i)) > room:
            return None
        wait_backward = max(0, amounts.backing(i) - room + returning)
        returning = max(0, returning - amounts.backward[i] - wait_backward)
        cost = amounts.forward[i] + amounts.backward[i] + wait_backward
        ops: tuple[Op, ...] = ()
        if i < j:
            rest = self.inner(i + 1, j, kept + amounts.saved[i], returning)
            if rest is None:
                return None
            cost, ops, returning = cost + rest[0], rest[1], max(0, returning - rest[0])
        cost += max(0, amounts.recording(i, j) - room + returning)
        return cost, (Op(OpKind.FORWARD_KEEP_ALL, i), *ops, Op(OpKind.BACKWARD, i))

    def _restarted(self, state: InnerState, k: int) -> _Recomputation | None:
        """Return ``C_A``, case ``Fck``: forwards i..k, then the stages after k, then up to k."""
        (i, j, kept, returning), amounts = state, self.amounts
        room = amounts.budget - kept
        if max(amounts.passing(q, i, j) for q in range(i, k + 1)) > room:
            return None
        later = self.inner(i, k, kept, returning)
        if later is None:
            return None
        returning = max(0, returning - later[0])
        sooner = self.inner(k + 1, j, kept + amounts.activation[k + 1], returning)
        if sooner is None:
            return None
        returning = max(0, returning - sooner[0])
        run, need = 0, 0
        for q in range(k, i - 1, -1):
            need = max(need, amounts.passing(q, i, j) - run)
            run += amounts.forward[q]
        wait = max(0, need - room + returning)
        ops = (*forwards_dropping_inputs(i, k), *sooner[1], *later[1])
        return run + later[0] + sooner[0] + wait, ops

    def outer(self, state: OuterState) -> ExactPlan | None:
        """Return ``OC_1`` if the input is saved, else ``OC_0``."""
        if state not in self._outer:
            last = len(self.amounts) - 1
            found = [self._kept_all(state)]
            found += [self._checkpointed(state, j) for j in range(state.i, last)]
            self._outer[state] = min(filter(None, found), default=None, key=lambda plan: plan.cost)
        return self._outer[state]

    def _size(self, state: OuterState) -> int:
        """Return the units of the input at hand."""
        amounts = self.amounts
        return amounts.saved[state.i - 1] if state.is_saved else amounts.activation[state.i]

    def _kept_all(self, state: OuterState) -> ExactPlan | None:
        """Return case ``Fall``, the loss included."""
        amounts, last, i = self.amounts, len(self.amounts) - 1, state.i
        size = self._size(state)
        room = amounts.budget - state.kept - size
        recording, backing = amounts.recording(i, last), amounts.backing(i)
        if max(recording, backing) > room:
            return None
        forward = amounts.forward[i] + max(0, recording - room + state.leaving)
        backward = amounts.backward[i] + max(0, backing - room + state.returning)
        ops = (Op(OpKind.FORWARD_KEEP_ALL, i),), (Op(OpKind.BACKWARD, i),)
        if i == last:
            rest = max(0, state.leaving - forward) + max(0, state.returning - backward)
            return ExactPlan(forward + backward + rest, (*ops[0], *ops[1]), frozenset())
        times = forward, backward
        return self._best_after(state, _Step(size, False, (i + 1, True), times, ops))  # noqa: FBT003  # a field

    def _checkpointed(self, state: OuterState, j: int) -> ExactPlan | None:
        """Return case ``Fck``: forwards i..j, of which the input stays or leaves."""
        amounts, last, i = self.amounts, len(self.amounts) - 1, state.i
        size = self._size(state)
        room = amounts.budget - state.kept - size
        run = wait = 0
        must_leave = False
        for k in range(i, j + 1):
            passing = amounts.passing(k, i, last)
            if passing > room + size * (k > i):
                return None
            must_leave = must_leave or passing > room
            wait = max(wait, passing - run - room + state.leaving)
            run += amounts.forward[k]
        # the paper leaves Z out here
        back = self.inner(i, j, state.kept + size, state.returning)
        if back is None:
            return None
        times, ops = (run + wait, back[0]), (tuple(forwards_dropping_inputs(i, j)), back[1])
        return self._best_after(state, _Step(size, must_leave, (j + 1, False), times, ops))

    def _best_after(self, state: OuterState, step: _Step) -> ExactPlan | None:
        """Return the better of keeping the input and offloading it, and all that comes after."""
        (forward, backward), size, best = step.times, step.size, None
        item = ("b", state.i - 1) if state.is_saved else ("a", state.i)
        for moves in (True,) if step.must_leave else (False, True):
            rest = self.outer(
                OuterState(
                    step.following[0],
                    is_saved=step.following[1],
                    kept=state.kept + size * (not moves),
                    leaving=max(0, state.leaving + size * moves - forward),
                    returning=max(0, state.returning - backward) + size * moves,
                )
            )
            if rest is None:
                continue
            cost = rest.cost + forward + backward
            if best is None or cost < best.cost:
                moved = rest.moved | ({item} if moves else set())
                best = ExactPlan(cost, (*step.ops[0], *rest.ops, *step.ops[1]), moved)
        return best
