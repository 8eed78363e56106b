"""Memory states of joins and all transitions between them, for `search`, in both models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile
from chainstay.schedule import Op, OpKind

__all__ = ["ByteTransitions", "JoinState", "JoinTransition", "JoinTransitions", "SlotTransitions"]

_Items: TypeAlias = frozenset[tuple[int, int]]
_NOT_YET: Final = 10**9


class JoinState(NamedTuple):
    """A memory state: values and saved data as sets of (chain, index), where chain k is the tail.

    Attributes:
        values: The stored values.
        saved: The stages whose saved data is stored.
        gradients: By chain, the index of the value whose gradient is held: `_NOT_YET` before the
            turn, -1 for the tail after it.
    """

    values: _Items
    saved: _Items
    gradients: tuple[int, ...]


class JoinTransition(NamedTuple):
    """Operations, the state that they lead to, their time and the memory that they need."""

    ops: tuple[Op, ...]
    after: JoinState
    time: int
    bytes: int


class JoinTransitions(Protocol):
    """The transitions of one memory model."""

    @property
    def start(self) -> JoinState:
        """The state in which every schedule starts."""
        ...

    def stored(self, state: JoinState) -> int:
        """Return the bytes or slots in memory between two operations."""
        ...

    def steps(self, state: JoinState, budget: int | None) -> Iterator[JoinTransition]:
        """Yield every transition that an optimal schedule within `budget` may need in `state`."""
        ...

    def least_left(self, state: JoinState) -> int:
        """Return the time that every continuation needs at least, in ns."""
        ...


class _SharedTransitions:
    """Chains of known lengths, the last one after the join; both models share this."""

    def __init__(self, lengths: tuple[int, ...], tail: int, keep: tuple[bool, ...]) -> None:
        self.tail_index = len(lengths)
        self.lengths = (*lengths, tail)
        self.keep = keep
        self.outputs: _Items = frozenset(enumerate(lengths))

    def inputs(self, chain: int, i: int) -> _Items:
        """Return what stage i of a chain reads."""
        return self.outputs if chain == self.tail_index and i == 0 else frozenset({(chain, i)})

    def gradients_after(self, state: JoinState, chain: int) -> tuple[int, ...]:
        """Return the positions of gradients once `chain` has gone back by one."""
        i = state.gradients[chain] - 1
        if chain == self.tail_index and i == 0:
            return (*self.lengths[:-1], -1)
        return (*state.gradients[:chain], i, *state.gradients[chain + 1 :])

    def is_held(self, chain: int, gradient: int) -> bool:
        """Return whether a gradient in this position is in memory."""
        is_kept = gradient == 0 and chain < self.tail_index and self.keep[chain]
        return is_kept or 0 < gradient < _NOT_YET

    def op(self, kind: OpKind, chain: int, i: int) -> Op:
        """Return the operation in the language of schedules."""
        return Op(kind, i, branch=chain if chain < self.tail_index else None)


class SlotTransitions(_SharedTransitions):
    """Unit slots: a forward adds its output, and drops one value when that is one too many.

    Dropping later is never worse, so nothing is dropped while there is room.
    """

    def __init__(self, profile: HomogeneousJoin, keep: tuple[bool, ...]) -> None:
        super().__init__(profile.lengths, profile.tail_length, keep)
        self._profile = profile
        k = self.tail_index
        self.start = JoinState(
            frozenset((j, 0) for j in range(k)), frozenset(), (_NOT_YET,) * (k + 1)
        )

    def stored(self, state: JoinState) -> int:
        """Return the slots in use."""
        return len(state.values) + sum(self.is_held(c, g) for c, g in enumerate(state.gradients))

    def steps(self, state: JoinState, budget: int | None) -> Iterator[JoinTransition]:
        """Yield every transition that an optimal schedule within `budget` may need in `state`."""
        yield from self._backwards(state)
        yield from self._turn(state)
        yield from self._forwards(state, budget)

    def least_left(self, state: JoinState) -> int:
        """Return the time of the backwards left, the turn, and one forward a missing value."""
        profile = self._profile
        total = profile.turn_time if state.gradients[-1] == _NOT_YET else 0
        for chain, gradient in enumerate(state.gradients):
            left = max(0, min(gradient, self.lengths[chain]))
            last = left if gradient == _NOT_YET else left - 1
            missing = sum((chain, i) not in state.values for i in range(1, last + 1))
            total += left * profile.backward_time + missing * profile.forward_time
        return total

    def _backwards(self, state: JoinState) -> Iterator[JoinTransition]:
        for chain, gradient in enumerate(state.gradients):
            if 0 < gradient < _NOT_YET and self.inputs(chain, gradient - 1) <= state.values:
                values = state.values - self.inputs(chain, gradient - 1)
                after = JoinState(values, frozenset(), self.gradients_after(state, chain))
                op = self.op(OpKind.BACKWARD, chain, gradient - 1)
                yield JoinTransition((op,), after, self._profile.backward_time, self.stored(after))

    def _turn(self, state: JoinState) -> Iterator[JoinTransition]:
        k, tail = self.tail_index, self.lengths[-1]
        last = frozenset({(k, tail)}) if tail else self.outputs
        if state.gradients[k] == _NOT_YET and last <= state.values:
            reached = (*state.gradients[:k], tail) if tail else (*self.lengths[:k], -1)
            after = JoinState(state.values - last, frozenset(), reached)
            yield JoinTransition(
                (Op(OpKind.TURN),), after, self._profile.turn_time, self.stored(after)
            )

    def _forwards(self, state: JoinState, budget: int | None) -> Iterator[JoinTransition]:
        for chain, i in ((c, i) for c, n in enumerate(self.lengths) for i in range(n)):
            made = (chain, i + 1)
            is_useful = i + 1 < state.gradients[chain] and made not in state.values
            if is_useful and self.inputs(chain, i) <= state.values:
                yield from self._made(state, made, budget)

    def _made(
        self, state: JoinState, made: tuple[int, int], budget: int | None
    ) -> Iterator[JoinTransition]:
        after = state._replace(values=state.values | {made})
        keeping = self.op(OpKind.FORWARD_KEEP_INPUT, made[0], made[1] - 1)
        time = self._profile.forward_time
        if budget is None or self.stored(after) <= budget:
            yield JoinTransition((keeping,), after, time, self.stored(after))
            return
        for dropped in state.values:
            if dropped[1] > 0:
                fewer = after._replace(values=after.values - {dropped})
                ops = (keeping, self.op(OpKind.DISCARD_ACTIVATION, *dropped))
                yield JoinTransition(ops, fewer, time, self.stored(fewer))


class ByteTransitions(_SharedTransitions):
    """Saved data and sizes in bytes; drops are steps of their own, for no time."""

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...]) -> None:
        self._chains: tuple[ChainProfile, ...] = (*profile.branches, profile.closing)
        super().__init__(tuple(map(len, profile.branches)), len(profile.closing), keep)
        self._has_tail = profile.tail is not None
        self._stages = {
            (c, i): chain.stages[i]
            for c, chain in enumerate(self._chains)
            for i in range(len(chain))
        }
        inputs = frozenset((j, 0) for j in range(self.tail_index))
        self.start = JoinState(
            inputs, frozenset(), (*(_NOT_YET for _ in inputs), len(profile.closing))
        )

    def stored(self, state: JoinState) -> int:
        """Return the bytes in use."""
        values = sum(self._chains[c].activation_bytes(i) for c, i in state.values)
        saved = sum(self._stages[pair].saved_bytes for pair in state.saved)
        return (
            values
            + saved
            + sum(
                self._chains[c].gradient_bytes(g)
                for c, g in enumerate(state.gradients)
                if self.is_held(c, g)
            )
        )

    def steps(self, state: JoinState, budget: int | None) -> Iterator[JoinTransition]:
        """Yield every transition out of `state` that leaves saved data with its inputs."""
        del budget
        base = self.stored(state)
        for step in self._changes(state, base):
            if all(self._has_inputs(step.after, *pair) for pair in step.after.saved):
                yield step

    def least_left(self, state: JoinState) -> int:
        """Return the time of the backwards left, and of one forward a missing saved data."""
        return sum(
            stage.backward_time + stage.forward_time * (pair not in state.saved)
            for pair, stage in self._stages.items()
            if pair[1] < state.gradients[pair[0]]
        )

    def _changes(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        yield from self._forwards(state, base)
        yield from self._backwards(state, base)
        yield from self._drops(state, base)

    def _forwards(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        output = (self.tail_index, self.lengths[-1])
        for (chain, i), stage in self._stages.items():
            if i >= state.gradients[chain] or not self._has_inputs(state, chain, i):
                continue
            need, made = base + stage.forward_overhead_bytes, (chain, i + 1)
            if (chain, i) not in state.saved:
                after = state._replace(saved=state.saved | {(chain, i)})
                ops = self._ops(OpKind.FORWARD_KEEP_ALL, chain, i)
                yield JoinTransition(ops, after, stage.forward_time, need + stage.saved_bytes)
            if made not in state.values and made != output:
                after = state._replace(values=state.values | {made})
                ops = self._ops(OpKind.FORWARD_KEEP_INPUT, chain, i)
                yield JoinTransition(ops, after, stage.forward_time, need + stage.output_bytes)

    def _backwards(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        for chain, gradient in enumerate(state.gradients):
            i = gradient - 1
            if (chain, i) not in state.saved or not self._has_inputs(state, chain, i):
                continue
            stage = self._stages[chain, i]
            after = JoinState(
                state.values - self.inputs(chain, i),
                state.saved - {(chain, i)},
                self.gradients_after(state, chain),
            )
            added = self._chains[chain].gradient_bytes(i) + stage.backward_overhead_bytes
            ops = self._ops(OpKind.BACKWARD, chain, i)
            yield JoinTransition(ops, after, stage.backward_time, base + added)

    def _drops(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        for chain, i in state.values:
            if i > 0 or chain == self.tail_index:
                after = state._replace(values=state.values - {(chain, i)})
                yield JoinTransition(self._ops(OpKind.DISCARD_ACTIVATION, chain, i), after, 0, base)
        for chain, i in state.saved:
            after = state._replace(saved=state.saved - {(chain, i)})
            yield JoinTransition(self._ops(OpKind.DISCARD_SAVED, chain, i), after, 0, base)

    def _has_inputs(self, state: JoinState, chain: int, i: int) -> bool:
        return all(
            (c, index) in state.values or (c, index - 1) in state.saved
            for c, index in self.inputs(chain, i)
        )

    def _ops(self, kind: OpKind, chain: int, i: int) -> tuple[Op, ...]:
        """Return a stage's operations; without a tail, its backward is the turn, all else none."""
        if self._has_tail or chain < self.tail_index:
            return (self.op(kind, chain, i),)
        return (Op(OpKind.TURN),) if kind is OpKind.BACKWARD else ()
