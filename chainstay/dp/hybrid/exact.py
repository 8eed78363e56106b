# ruff: noqa: FBT001, PLR0913, PLR0917  # recurrences of five variables, and keys of their tables
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

from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind

__all__ = ["Amounts", "ExactHybrid", "Plan"]

_Inner: TypeAlias = tuple[int, tuple[Op, ...]]


class Plan(NamedTuple):
    """A persistent schedule's computations, what it offloads, and its cost in data units."""

    cost: int
    ops: tuple[Op, ...]
    moved: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A chain and a budget in units of data; shapes as in `ChainArrays`.

    Attributes:
        unit: Bytes per unit, at most 1.
        time_unit: Time per unit.
        budget: Units.
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
    def of(cls, profile: ChainProfile, budget: int, link: Link) -> Self:
        """In the largest unit in which all is whole; the link has no latency."""
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
        """What ``Fa`` of stage i needs besides its input, with the gradient after `last` held."""
        return self.gradient[last + 1] + self.saved[i] + self.forward_overhead[i]

    def backing(self, i: int) -> int:
        """What the backward of stage i needs besides its input."""
        return self.saved[i] + self.gradient[i] + self.gradient[i + 1] + self.backward_overhead[i]

    def passing(self, k: int, first: int, last: int) -> int:
        """What a forward of stage k needs besides the input of stage `first`, which stays."""
        source = self.activation[k] if k > first else 0
        made = self.activation[k + 1] + self.forward_overhead[k]
        return self.gradient[last + 1] + source + made


@dataclass(slots=True)
class ExactHybrid:
    """The optimal plan, by memoised recursion.

    Attributes:
        amounts: What is solved.
    """

    amounts: Amounts
    _inner: dict[tuple[int, int, int, int], _Inner | None] = field(default_factory=dict)
    _outer: dict[tuple[int, bool, int, int, int], Plan | None] = field(default_factory=dict)

    @classmethod
    def solve(cls, amounts: Amounts) -> Plan | None:
        """The optimum among persistent schedules with parts of items offloaded.

        Complexity:
            As many states as there are ways to get to them: for chains of up to about 7 stages.
        """
        return cls(amounts).outer(0, is_saved=False, kept=0, leaving=0, returning=0)

    def inner(self, i: int, j: int, kept: int, returning: int) -> _Inner | None:
        """``C_A``: cost and operations of stages i..j, the input being among what is kept."""
        key = (i, j, kept, returning)
        if key not in self._inner:
            found = [self._recorded(*key), *(self._restarted(*key, k) for k in range(i, j))]
            self._inner[key] = min(filter(None, found), default=None, key=lambda pair: pair[0])
        return self._inner[key]

    def _recorded(self, i: int, j: int, kept: int, returning: int) -> _Inner | None:
        """``C_A``, case ``Fall``."""
        of, room = self.amounts, self.amounts.budget - kept
        if max(of.recording(i, j), of.backing(i)) > room:
            return None
        wait_backward = max(0, of.backing(i) - room + returning)
        returning = max(0, returning - of.backward[i] - wait_backward)
        cost, ops = of.forward[i] + of.backward[i] + wait_backward, ()  # type: int, tuple[Op, ...]
        if i < j:
            rest = self.inner(i + 1, j, kept + of.saved[i], returning)
            if rest is None:
                return None
            cost, ops, returning = cost + rest[0], rest[1], max(0, returning - rest[0])
        cost += max(0, of.recording(i, j) - room + returning)
        return cost, (Op(OpKind.FORWARD_KEEP_ALL, i), *ops, Op(OpKind.BACKWARD, i))

    def _restarted(self, i: int, j: int, kept: int, returning: int, k: int) -> _Inner | None:
        """``C_A``, case ``Fck``: forwards i..k, then the stages after k, then those up to k."""
        of, room = self.amounts, self.amounts.budget - kept
        if max(of.passing(q, i, j) for q in range(i, k + 1)) > room:
            return None
        later = self.inner(i, k, kept, returning)
        if later is None:
            return None
        returning = max(0, returning - later[0])
        sooner = self.inner(k + 1, j, kept + of.activation[k + 1], returning)
        if sooner is None:
            return None
        returning = max(0, returning - sooner[0])
        run, need = 0, 0
        for q in range(k, i - 1, -1):
            need = max(need, of.passing(q, i, j) - run)
            run += of.forward[q]
        wait = max(0, need - room + returning)
        return run + later[0] + sooner[0] + wait, (*passed(i, k), *sooner[1], *later[1])

    def outer(
        self, i: int, *, is_saved: bool, kept: int, leaving: int, returning: int
    ) -> Plan | None:
        """``OC_1`` with `is_saved`, else ``OC_0``."""
        key = (i, is_saved, kept, leaving, returning)
        if key not in self._outer:
            last = len(self.amounts) - 1
            found = [self._all(*key)]
            found += [self._checkpointed(*key, j) for j in range(i, last)]
            self._outer[key] = min(filter(None, found), default=None, key=lambda plan: plan.cost)
        return self._outer[key]

    def _all(self, i: int, is_saved: bool, kept: int, leaving: int, returning: int) -> Plan | None:
        """Case ``Fall``, the loss included."""
        of, last = self.amounts, len(self.amounts) - 1
        size = of.saved[i - 1] if is_saved else of.activation[i]
        room = of.budget - kept - size
        recording, backing = of.recording(i, last), of.backing(i)
        if max(recording, backing) > room:
            return None
        forward = of.forward[i] + max(0, recording - room + leaving)
        backward = of.backward[i] + max(0, backing - room + returning)
        ends = (Op(OpKind.FORWARD_KEEP_ALL, i),), (Op(OpKind.BACKWARD, i),)
        if i == last:
            rest = max(0, leaving - forward) + max(0, returning - backward)
            return Plan(forward + backward + rest, (*ends[0], *ends[1]), frozenset())
        state = _State(i, is_saved, size, kept, leaving, returning)
        return self._onward(state, (i + 1, True), (forward, backward), ends)

    def _checkpointed(
        self, i: int, is_saved: bool, kept: int, leaving: int, returning: int, j: int
    ) -> Plan | None:
        """Case ``Fck``: forwards i..j, of which the input stays or leaves."""
        of, last = self.amounts, len(self.amounts) - 1
        size = of.saved[i - 1] if is_saved else of.activation[i]
        room = of.budget - kept - size
        run = wait = 0
        must_leave = False
        for k in range(i, j + 1):
            passing = of.passing(k, i, last)
            if passing > room + size * (k > i):
                return None
            must_leave = must_leave or passing > room
            wait = max(wait, passing - run - room + leaving)
            run += of.forward[k]
        back = self.inner(i, j, kept + size, returning)  # the paper leaves Z out here
        if back is None:
            return None
        state = _State(i, is_saved, size, kept, leaving, returning, must_leave)
        return self._onward(state, (j + 1, False), (run + wait, back[0]), (passed(i, j), back[1]))

    def _onward(
        self,
        state: _State,
        following: tuple[int, bool],
        times: tuple[int, int],
        ends: tuple[tuple[Op, ...], tuple[Op, ...]],
    ) -> Plan | None:
        """The better of keeping the input and offloading it, and all that comes after."""
        (forward, backward), size, best = times, state.size, None
        item = ("b", state.stage - 1) if state.is_saved else ("a", state.stage)
        for moves in (True,) if state.must_leave else (False, True):
            rest = self.outer(
                following[0],
                is_saved=following[1],
                kept=state.kept + size * (not moves),
                leaving=max(0, state.leaving + size * moves - forward),
                returning=max(0, state.returning - backward) + size * moves,
            )
            if rest is None:
                continue
            cost = rest.cost + forward + backward
            if best is None or cost < best.cost:
                moved = rest.moved | ({item} if moves else set())
                best = Plan(cost, (*ends[0], *rest.ops, *ends[1]), moved)
        return best


class _State(NamedTuple):
    stage: int
    is_saved: bool
    size: int
    kept: int
    leaving: int
    returning: int
    must_leave: bool = False


def passed(i: int, j: int) -> tuple[Op, ...]:
    """Forwards i..j of which only the input of stage i stays."""
    dropped = (Op(OpKind.FORWARD_DROP, k) for k in range(i + 1, j + 1))
    return (Op(OpKind.FORWARD_KEEP_INPUT, i), *dropped)
