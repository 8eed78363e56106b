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
``Z``               the input of the stage at hand: plain, or in what an option of the stage
                    before saved (`InputForm`)
``C_A(i, j, A, D)`` `ExactHybrid.inner`: stages i..j, recomputed from a kept input
``OC_x(i, ...)``    `ExactHybrid.outer`: from stage i to the turn and back
==================  =========================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Self, TypeAlias

from chainstay.dp.hybrid.slot_chain import PLAIN, InputForm
from chainstay.profiles import ChainProfile, Link, Stage
from chainstay.profiles.stage import undominated
from chainstay.schedule import Item, Op, OpKind, forwards_dropping_inputs

_Recomputation: TypeAlias = tuple[int, tuple[Op, ...]]
"""The cost, in data units, and the operations of stages i..j."""


class ExactPlan(NamedTuple):
    """A persistent schedule's computations and what it offloads.

    Attributes:
        cost: Time in data units.
        ops: Forwards and backwards.
        moved: Items that are offloaded.
    """

    cost: int
    ops: tuple[Op, ...]
    moved: frozenset[Item]


class OptionAmounts(NamedTuple):
    """One way to keep a stage, in units of data.

    Attributes:
        number: The option's number in the stage.
        saved: Units that it saves.
        forward_overhead: Units in use only during its forward.
        backward_overhead: Units in use only during its backward.
        forward: Units that the link moves during its forward.
        backward: Units that the link moves during its backward.
    """

    number: int
    saved: int
    forward_overhead: int
    backward_overhead: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A chain and a budget in units of data; shapes as in `ChainArrays`.

    Attributes:
        time_unit: Time per unit.
        budget: Units of memory.
        activation: Units of ``a^i``.
        gradient: Units of ``δ^i``.
        forward_overhead: Units in use only during a forward that is not kept.
        forward: Units that the link moves during a forward that is not kept.
        options: By stage, the options that no other replaces.
    """

    time_unit: Fraction
    budget: int
    activation: tuple[int, ...]
    gradient: tuple[int, ...]
    forward_overhead: tuple[int, ...]
    forward: tuple[int, ...]
    options: tuple[tuple[OptionAmounts, ...], ...]

    @classmethod
    def from_chain(cls, profile: ChainProfile, budget: int, link: Link) -> Self:
        """Return amounts in the largest unit in which all is whole.

        Args:
            profile: A chain without skips, with options of single stages only.
            budget: Bytes.
            link: A link without latency.
        """
        bandwidth, stages = Fraction(link.bandwidth), profile.stages
        scale, speed = bandwidth.denominator, bandwidth.numerator

        def options_of(stage: Stage) -> tuple[OptionAmounts, ...]:
            options = stage.all_options
            return tuple(
                OptionAmounts(
                    number,
                    options[number].saved_bytes * scale,
                    options[number].first.overhead_bytes * scale,
                    options[number].backward_overhead_bytes * scale,
                    options[number].first.time * speed,
                    options[number].first.backward_time * speed,
                )
                for number in undominated(options)
            )

        states = range(len(profile) + 1)
        return cls(
            time_unit=Fraction(1, speed),
            budget=budget * scale,
            activation=tuple(profile.activation_bytes(i) * scale for i in states),
            gradient=tuple(profile.gradient_bytes(i) * scale for i in states),
            forward_overhead=tuple(stage.forward_overhead_bytes * scale for stage in stages),
            forward=tuple(stage.forward_time * speed for stage in stages),
            options=tuple(map(options_of, stages)),
        )

    def __len__(self) -> int:
        return len(self.forward)

    def input_size(self, i: int, form: InputForm) -> int:
        """Return the units of the input of stage i in one of its forms."""
        return self.activation[i] if form == PLAIN else self.options[i - 1][form - 1].saved

    def recording(self, option: OptionAmounts, last: int) -> int:
        """Return what ``Fa`` needs besides its input, the gradient of `last` held."""
        return self.gradient[last + 1] + option.saved + option.forward_overhead

    def backing(self, i: int, option: OptionAmounts) -> int:
        """Return what the backward of stage i needs besides its input."""
        gradients = self.gradient[i] + self.gradient[i + 1]
        return option.saved + gradients + option.backward_overhead

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
        form: The form of that input.
        kept: Units that stay on the device until after the turn.
        leaving: Units that still have to leave.
        returning: Units that will have to come back.
    """

    i: int
    form: InputForm
    kept: int
    leaving: int
    returning: int


class _Step(NamedTuple):
    """A move at a stage on the way to the turn, and what belongs to it on the way back.

    Attributes:
        size: Units of the stage's input.
        must_leave: Whether the input cannot stay.
        following: The next stage, and the form of its input.
        times: Units that the link moves meanwhile: on the way to the turn, and back.
        ops: Operations on the way to the turn, and back.
    """

    size: int
    must_leave: bool
    following: tuple[int, InputForm]
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
        return cls(amounts).outer(OuterState(0, form=PLAIN, kept=0, leaving=0, returning=0))

    def inner(self, i: int, j: int, kept: int, returning: int) -> _Recomputation | None:
        """Return ``C_A``: cost and operations of stages i..j, the input being among the kept."""
        state = InnerState(i, j, kept, returning)
        if state not in self._inner:
            found = [self._recorded(state, option) for option in self.amounts.options[i]]
            found += [self._restarted(state, k) for k in range(i, j)]
            self._inner[state] = min(filter(None, found), default=None, key=lambda pair: pair[0])
        return self._inner[state]

    def _recorded(self, state: InnerState, option: OptionAmounts) -> _Recomputation | None:
        """Return ``C_A``, case ``Fall`` under an option."""
        (i, j, kept, returning), amounts = state, self.amounts
        room = amounts.budget - kept
        recording, backing = amounts.recording(option, j), amounts.backing(i, option)
        if max(recording, backing) > room:
            return None
        wait_backward = max(0, backing - room + returning)
        returning = max(0, returning - option.backward - wait_backward)
        cost = option.forward + option.backward + wait_backward
        ops: tuple[Op, ...] = ()
        if i < j:
            rest = self.inner(i + 1, j, kept + option.saved, returning)
            if rest is None:
                return None
            cost, ops, returning = cost + rest[0], rest[1], max(0, returning - rest[0])
        cost += max(0, recording - room + returning)
        keep = Op(OpKind.FORWARD_KEEP_ALL, i, option=option.number)
        return cost, (keep, *ops, Op(OpKind.BACKWARD, i))

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
        """Return ``OC_0`` if the input is plain, else ``OC_1`` of its option."""
        if state not in self._outer:
            last = len(self.amounts) - 1
            forms = range(1, len(self.amounts.options[state.i]) + 1)
            found = [self._kept_all(state, following) for following in forms]
            found += [self._checkpointed(state, j) for j in range(state.i, last)]
            self._outer[state] = min(filter(None, found), default=None, key=lambda plan: plan.cost)
        return self._outer[state]

    def _kept_all(self, state: OuterState, following: InputForm) -> ExactPlan | None:
        """Return case ``Fall``, the loss included; its option is the form of what it makes."""
        amounts, last, i = self.amounts, len(self.amounts) - 1, state.i
        option, size = amounts.options[i][following - 1], amounts.input_size(i, state.form)
        room = amounts.budget - state.kept - size
        recording, backing = amounts.recording(option, last), amounts.backing(i, option)
        if max(recording, backing) > room:
            return None
        forward = option.forward + max(0, recording - room + state.leaving)
        backward = option.backward + max(0, backing - room + state.returning)
        keep = Op(OpKind.FORWARD_KEEP_ALL, i, option=option.number)
        ops = (keep,), (Op(OpKind.BACKWARD, i),)
        if i == last:
            rest = max(0, state.leaving - forward) + max(0, state.returning - backward)
            return ExactPlan(forward + backward + rest, (*ops[0], *ops[1]), frozenset())
        times = forward, backward
        return self._best_after(state, _Step(size, False, (i + 1, following), times, ops))  # noqa: FBT003  # a field

    def _checkpointed(self, state: OuterState, j: int) -> ExactPlan | None:
        """Return case ``Fck``: forwards i..j, of which the input stays or leaves."""
        amounts, last, i = self.amounts, len(self.amounts) - 1, state.i
        size = amounts.input_size(i, state.form)
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
        return self._best_after(state, _Step(size, must_leave, (j + 1, PLAIN), times, ops))

    def _best_after(self, state: OuterState, step: _Step) -> ExactPlan | None:
        """Return the better of keeping the input and offloading it, and all that comes after."""
        (forward, backward), size, best = step.times, step.size, None
        item = Item("a", state.i) if state.form == PLAIN else Item("b", state.i - 1)
        for moves in (True,) if step.must_leave else (False, True):
            rest = self.outer(
                OuterState(
                    step.following[0],
                    form=step.following[1],
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
