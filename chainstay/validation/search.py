"""Optima of small chains by exhaustive search over memory states: no theory assumed.

A state is a set of stored activations, a set of stored saved data and the gradient held,
packed into integers. Every operation that Table 1 of [BEHJS24] allows (and every discard,
under the rules that have them) is a transition; Dijkstra's algorithm finds the cheapest
path. The transitions are written anew here, on bit masks, so that a mistake in the
simulator and one here would have to agree. So are the sizes: a skip is a mask of the
activations that it is part of, and in memory while it meets the mask of those that are
stored, by themselves or inside saved data.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["LARGEST_CHAIN", "least_budget", "optimum"]

LARGEST_CHAIN: Final = 10
"""Stages of the longest chain accepted: the number of states grows like n 4^n."""


class _ChainState(NamedTuple):
    """A memory state: bit i of `activations` is a^i, bit i of `saved` the saved data of stage i."""

    gradient: int
    activations: int
    saved: int


class _ChainTransition(NamedTuple):
    op: Op
    after: _ChainState
    time: int
    bytes: int


def optimum(
    profile: ChainProfile, budget: int, *, discards: Discards | str = Discards.TABLE1
) -> Claim:
    """Return the fastest schedule within `budget` among all valid ones.

    Args:
        profile: A chain of at most `LARGEST_CHAIN` stages.
        budget: Bytes.
        discards: The rules, as in `simulate`.

    Raises:
        InfeasibleBudgetError: No valid schedule fits; ``error.required`` says what would.
        InvalidProfileError: The chain is too long to search.

    Complexity:
        O(n 4^n) states, each with O(n) transitions.
    """
    rules = _ChainTransitions(profile, Discards(discards))
    found = _cheapest_path(rules, lambda cost, step: cost + step.time, budget)
    if found is None:
        raise InfeasibleBudgetError(
            budget=budget,
            required=least_budget(profile, discards=discards),
            stages=len(profile),
            family=Family.ALL,
        )
    makespan, ops = found
    return Claim(
        schedule=Schedule(ops),
        makespan=makespan,
        lower_bound=makespan,
        family=Family.ALL,
        discards=rules.discards,
    )


def least_budget(profile: ChainProfile, *, discards: Discards | str = Discards.TABLE1) -> int:
    """Return the least budget, in bytes, for which some valid schedule exists.

    Raises:
        InvalidProfileError: The chain is too long to search.
    """
    rules = _ChainTransitions(profile, Discards(discards))
    found = _cheapest_path(rules, lambda peak, step: max(peak, step.bytes), None)
    assert found is not None, "keep-all is valid for every chain"
    return found[0]


def _cheapest_path(
    rules: _ChainTransitions, extend: Callable[[int, _ChainTransition], int], budget: int | None
) -> tuple[int, tuple[Op, ...]] | None:
    """Return the least cost of a path to the last gradient, and the operations along it."""
    start = _ChainState(gradient=len(rules.profile), activations=1, saved=0)
    best = {start: 0}
    came_from: dict[_ChainState, tuple[_ChainState, Op]] = {}
    frontier = [(0, start)]
    while frontier:
        cost, state = heapq.heappop(frontier)
        if cost > best[state]:
            continue
        if state.gradient == 0:
            return cost, _walk_back(state, came_from)
        for step in rules.steps(state):
            if budget is not None and step.bytes > budget:
                continue
            next_cost = extend(cost, step)
            if next_cost < best.get(step.after, next_cost + 1):
                best[step.after] = next_cost
                came_from[step.after] = (state, step.op)
                heapq.heappush(frontier, (next_cost, step.after))
    return None


def _walk_back(
    state: _ChainState, came_from: dict[_ChainState, tuple[_ChainState, Op]]
) -> tuple[Op, ...]:
    ops = []
    while state in came_from:
        state, op = came_from[state]
        ops.append(op)
    return tuple(reversed(ops))


class _ChainTransitions:
    """All transitions out of a memory state of a chain."""

    def __init__(self, profile: ChainProfile, discards: Discards) -> None:
        if len(profile) > LARGEST_CHAIN:
            raise InvalidProfileError(
                f"exhaustive search takes chains of at most {LARGEST_CHAIN} stages, "
                f"this one has {len(profile)}; use a solver"
            )
        self.profile, self.discards = profile, discards
        self._sizes = _StateSizes(profile)

    def steps(self, state: _ChainState) -> Iterator[_ChainTransition]:
        """Yield every valid operation in `state`, whatever memory it needs."""
        base = self._sizes.stored(state)
        yield from self._forwards(state, base)
        yield from self._backwards(state, base)
        if self.discards is not Discards.TABLE1:
            yield from self._drops(state, base)

    def _forwards(self, state: _ChainState, base: int) -> Iterator[_ChainTransition]:
        gradient, activations, saved = state
        for i in range(len(self.profile)):
            stage, bit = self.profile.stages[i], 1 << i
            if not (activations | saved << 1) & bit:
                continue
            made = self._sizes.made(state, i)
            base_i = base + stage.forward_overhead_bytes + made.skips
            if not saved & bit:
                after = _ChainState(gradient, activations, saved | bit)
                op = Op(OpKind.FORWARD_KEEP_ALL, i)
                yield _ChainTransition(op, after, stage.forward_time, base_i + made.saved)
            if activations & bit << 1:
                continue
            need = base_i + made.output
            after = _ChainState(gradient, activations | bit << 1, saved)
            yield _ChainTransition(
                Op(OpKind.FORWARD_KEEP_INPUT, i), after, stage.forward_time, need
            )
            if activations & bit:
                after = _ChainState(gradient, activations & ~bit | bit << 1, saved)
                if self._allows(after):
                    yield _ChainTransition(
                        Op(OpKind.FORWARD_DROP, i), after, stage.forward_time, need
                    )

    def _backwards(self, state: _ChainState, base: int) -> Iterator[_ChainTransition]:
        gradient, activations, saved = state
        i = gradient - 1
        stage, bit = self.profile.stages[i], 1 << i
        if saved & bit and (activations & bit or saved << 1 & bit):
            need = base + self._sizes.input_gradient[i] + stage.backward_overhead_bytes
            after = _ChainState(i, activations & ~bit, saved & ~bit)
            if self._allows(after):
                yield _ChainTransition(Op(OpKind.BACKWARD, i), after, stage.backward_time, need)

    def _drops(self, state: _ChainState, base: int) -> Iterator[_ChainTransition]:
        gradient, activations, saved = state
        for i in range(len(self.profile)):
            bit = 1 << i
            if i and activations & bit:
                after = _ChainState(gradient, activations & ~bit, saved)
                if self._allows(after):
                    yield _ChainTransition(Op(OpKind.DISCARD_ACTIVATION, i), after, 0, base)
            if saved & bit:
                after = _ChainState(gradient, activations, saved & ~bit)
                if self._allows(after):
                    yield _ChainTransition(Op(OpKind.DISCARD_SAVED, i), after, 0, base)

    def _allows(self, after: _ChainState) -> bool:
        """Return whether the rules admit a state: a tape keeps the input of what it recorded."""
        inputs = after.activations | after.saved << 1
        return self.discards is not Discards.TAPE or not after.saved & ~inputs


class _AddedBytes(NamedTuple):
    """Bytes that a forward adds: its output or saved data, and skips not stored before."""

    output: int
    saved: int
    skips: int


class _StateSizes:
    """Bytes of memory states and of what operations add to them.

    Attributes:
        input_gradient: By stage, bytes of ``δ^i`` without the part that it shares with ``δ^{i+1}``.
    """

    def __init__(self, profile: ChainProfile) -> None:
        states = range(len(profile) + 1)
        self._activation = [profile.activation_bytes(i) for i in states]
        self._saved = [stage.saved_bytes for stage in profile.stages]
        self._gradient = [profile.gradient_bytes(i) for i in states]
        self.input_gradient = self._gradient[:-1]
        self._skips: list[tuple[int, int]] = []
        for skip in profile.skips:
            for i in range(skip.first, skip.last):
                self.input_gradient[i] -= skip.gradient_bytes
            for i in range(skip.first, skip.last + 1):
                self._activation[i] -= skip.bytes
            if skip.first > 0:
                self._saved[skip.first - 1] -= skip.bytes
            self._skips.append(((2 << skip.last) - (1 << skip.first), skip.bytes))

    def stored(self, state: _ChainState) -> int:
        """Return the bytes in memory between two operations."""
        gradient, activations, saved = state
        total = self._gradient[gradient] + self._in_skips(activations | saved << 1)
        total += sum(size for i, size in enumerate(self._activation) if activations >> i & 1)
        return total + sum(size for i, size in enumerate(self._saved) if saved >> i & 1)

    def made(self, state: _ChainState, i: int) -> _AddedBytes:
        """Return the bytes that a forward of stage `i` adds."""
        before = state.activations | state.saved << 1
        skips = self._in_skips(before | 2 << i) - self._in_skips(before)
        return _AddedBytes(output=self._activation[i + 1], saved=self._saved[i], skips=skips)

    def _in_skips(self, states: int) -> int:
        return sum(size for mask, size in self._skips if mask & states)
