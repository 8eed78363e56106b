"""Memory states of joins and all transitions between them, for `search`, in both models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from chainstay.profiles import HomogeneousJoin, JoinProfile, RunCost, StageOption
from chainstay.schedule import Op, OpKind
from chainstay.validation.search import Transition

_Items: TypeAlias = frozenset[tuple[int, int]]
_NOT_YET: Final = 10**9


class JoinRecord(NamedTuple):
    """Data that an ``Fa`` saved, with its chain, stage and option, and if it was a first run."""

    chain: int
    stage: int
    option: int
    is_first: bool


class JoinState(NamedTuple):
    """A memory state: values and stages are (chain, index), where chain k is the tail.

    Attributes:
        values: The stored values.
        saved: The stored saved data.
        gradients: By chain, the index of the value whose gradient is held: `_NOT_YET` before the
            turn, -1 for the tail after it.
        has_run: Of the stages whose costs depend on that, those that have run.
    """

    values: _Items
    saved: frozenset[JoinRecord]
    gradients: tuple[int, ...]
    has_run: _Items = frozenset()

    @property
    def gradient(self) -> int:
        """The highest of these indices: at the end it is 0, or -1."""
        return max(self.gradients)


JoinTransition: TypeAlias = Transition[JoinState]


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
                yield Transition((op,), after, self._profile.backward_time, self.stored(after))

    def _turn(self, state: JoinState) -> Iterator[JoinTransition]:
        k, tail = self.tail_index, self.lengths[-1]
        last = frozenset({(k, tail)}) if tail else self.outputs
        if state.gradients[k] == _NOT_YET and last <= state.values:
            reached = (*state.gradients[:k], tail) if tail else (*self.lengths[:k], -1)
            after = JoinState(state.values - last, frozenset(), reached)
            yield Transition((Op(OpKind.TURN),), after, self._profile.turn_time, self.stored(after))

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
            yield Transition((keeping,), after, time, self.stored(after))
            return
        for dropped in state.values:
            if dropped[1] > 0:
                fewer = after._replace(values=after.values - {dropped})
                ops = (keeping, self.op(OpKind.DISCARD_ACTIVATION, *dropped))
                yield Transition(ops, fewer, time, self.stored(fewer))


class ByteTransitions(_SharedTransitions):
    """Saved data and sizes in bytes; drops are steps of their own, for no time."""

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...]) -> None:
        self._chains = profile.chains
        super().__init__(tuple(map(len, profile.branches)), len(profile.closing), keep)
        self._has_tail = profile.tail is not None
        self._stages = {
            (c, i): chain.stages[i]
            for c, chain in enumerate(self._chains)
            for i in range(len(chain))
        }
        self._options = {pair: stage.all_options for pair, stage in self._stages.items()}
        self._counted = frozenset(
            pair
            for pair, stage in self._stages.items()
            if any(
                first != later
                for first, later in (stage.dropped_runs, *(o.runs for o in stage.all_options))
            )
        )
        # A first run of the loss may be of use only to make it warm.
        output = (self.tail_index, self.lengths[-1])
        self._unused = None if (output[0], output[1] - 1) in self._counted else output
        self._least_kept = {
            pair: min(run.total_time for option in options for run in option.runs)
            for pair, options in self._options.items()
        }
        self._shared = [
            (gradient.bytes, users)
            for gradient, users in zip(profile.shared, profile.users, strict=True)
        ]
        inputs = frozenset((j, 0) for j in range(self.tail_index))
        self.start = JoinState(
            inputs, frozenset(), (*(_NOT_YET for _ in inputs), len(profile.closing))
        )

    def stored(self, state: JoinState) -> int:
        """Return the bytes in use."""
        values = sum(self._chains[c].activation_bytes(i) for c, i in state.values)
        saved = sum(self._option(record).saved_bytes for record in state.saved)
        return (
            values
            + saved
            + sum(
                self._chains[c].gradient_bytes(g)
                for c, g in enumerate(state.gradients)
                if self.is_held(c, g)
            )
            + self._half_summed(state, state)
        )

    def _half_summed(self, begun: JoinState, ended: JoinState) -> int:
        """Return the bytes of shared gradients begun in one state, and not ended in another."""
        return sum(
            size
            for size, users in self._shared
            if any(i >= begun.gradients[c] for c, i in users)
            and any(i < ended.gradients[c] for c, i in users)
        )

    def steps(self, state: JoinState, budget: int | None) -> Iterator[JoinTransition]:
        """Yield every transition out of `state` that leaves saved data with its inputs."""
        del budget
        base = self.stored(state)
        for step in self._changes(state, base):
            saved = _stages_of(step.after)
            if all(
                self._has_inputs(step.after, saved, record.chain, record.stage)
                for record in step.after.saved
                if self._option(record).needs_input
            ):
                yield step

    def least_left(self, state: JoinState) -> int:
        """Return the time of the backwards left, and of one forward a missing saved data."""
        left = {
            pair: time
            for pair, time in self._least_kept.items()
            if pair[1] < state.gradients[pair[0]]
        }
        for record in state.saved:
            pair = record[:2]
            left[pair] = min(left[pair], self._run(record).backward_time)
        return sum(left.values())

    def _option(self, record: JoinRecord) -> StageOption:
        return self._options[record.chain, record.stage][record.option]

    def _run(self, record: JoinRecord) -> RunCost:
        return self._option(record).run(first=record.is_first)

    def _changes(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        saved = _stages_of(state)
        yield from self._forwards(state, saved, base)
        yield from self._backwards(state, saved, base)
        yield from self._drops(state, base)

    def _forwards(self, state: JoinState, saved: _Items, base: int) -> Iterator[JoinTransition]:
        for (chain, i), stage in self._stages.items():
            if i >= state.gradients[chain] or not self._has_inputs(state, saved, chain, i):
                continue
            made = (chain, i + 1)
            counted = self._counted & {(chain, i)}
            is_first = not counted <= state.has_run
            run_once = state._replace(has_run=state.has_run | counted)
            if (chain, i) not in saved:
                for number, option in enumerate(self._options[chain, i]):
                    record = JoinRecord(chain, i, number, is_first)
                    run = self._run(record)
                    yield Transition(
                        self._ops(OpKind.FORWARD_KEEP_ALL, chain, i, number),
                        run_once._replace(saved=state.saved | {record}),
                        run.time,
                        base + run.overhead_bytes + option.saved_bytes,
                    )
            if made not in state.values and made != self._unused:
                run = stage.dropped(first=is_first)
                yield Transition(
                    self._ops(OpKind.FORWARD_KEEP_INPUT, chain, i),
                    run_once._replace(values=state.values | {made}),
                    run.time,
                    base + run.overhead_bytes + stage.output_bytes,
                )

    def _backwards(self, state: JoinState, saved: _Items, base: int) -> Iterator[JoinTransition]:
        for record in state.saved:
            chain, i = record.chain, record.stage
            option = self._option(record)
            has_inputs = not option.needs_input or self._has_inputs(state, saved, chain, i)
            if state.gradients[chain] != i + 1 or not has_inputs:
                continue
            after = state._replace(
                values=state.values - self.inputs(chain, i),
                saved=state.saved - {record},
                gradients=self.gradients_after(state, chain),
            )
            added = self._chains[chain].gradient_bytes(i) + option.backward_overhead_bytes
            added += self._half_summed(after, state) - self._half_summed(state, state)
            ops = self._ops(OpKind.BACKWARD, chain, i)
            yield Transition(ops, after, self._run(record).backward_time, base + added)

    def _drops(self, state: JoinState, base: int) -> Iterator[JoinTransition]:
        for chain, i in state.values:
            if i > 0 or chain == self.tail_index:
                after = state._replace(values=state.values - {(chain, i)})
                yield Transition(self._ops(OpKind.DISCARD_ACTIVATION, chain, i), after, 0, base)
        for record in state.saved:
            after = state._replace(saved=state.saved - {record})
            ops = self._ops(OpKind.DISCARD_SAVED, record.chain, record.stage)
            yield Transition(ops, after, 0, base)

    def _has_inputs(self, state: JoinState, saved: _Items, chain: int, i: int) -> bool:
        return all(
            (c, index) in state.values or (c, index - 1) in saved
            for c, index in self.inputs(chain, i)
        )

    def _ops(self, kind: OpKind, chain: int, i: int, option: int = 0) -> tuple[Op, ...]:
        """Return a stage's operations; without a tail, its backward is the turn, all else none."""
        if self._has_tail or chain < self.tail_index:
            return (Op(kind, i, chain if chain < self.tail_index else None, option),)
        return (Op(OpKind.TURN),) if kind is OpKind.BACKWARD else ()


def _stages_of(state: JoinState) -> _Items:
    """Return the stages whose saved data is stored."""
    return frozenset((record.chain, record.stage) for record in state.saved)


JoinTransitions: TypeAlias = SlotTransitions | ByteTransitions
"""The transitions of one memory model."""
