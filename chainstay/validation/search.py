"""Optima of small chains by exhaustive search over memory states: no theory assumed.

A state is a set of stored activations, a set of stored saved data, the gradient held and, where
costs depend on it, the set of stages that have run, packed into integers. Every operation that
Table 1 of [BEHJS24] allows (and every discard, under the rules that have them) is a transition;
Dijkstra's algorithm finds the cheapest path. The transitions are written anew here, on bit masks,
so that a mistake in the simulator and one here would have to agree. So are the sizes: a skip is a
mask of the activations that it is part of, and in memory while it meets the mask of those that
are stored, by themselves or inside saved data.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import ChainProfile, require_no_environments
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family
from chainstay.validation.search_memory import RecordMasks, StateSizes, StoredRecords

LARGEST_CHAIN: Final = 10
"""Stages of the longest chain accepted: the number of states grows like n 4^n."""


class ChainState(NamedTuple):
    """A memory state, and what of the past decides costs.

    Attributes:
        gradient: Index of the gradient that is held.
        activations: Bit i is set while a^i is stored.
        saved: Bit k is set while record k of `RecordMasks` is stored; of a plain chain,
            what stage k saved.
        has_run: Bit i is set when stage i has run, if its costs depend on that.
    """

    gradient: int
    activations: int
    saved: int
    has_run: int = 0


class _State(Protocol):
    """A state that is the last one of a path when the gradient that is held is at most 0."""

    @property
    def gradient(self) -> int: ...


_S = TypeVar("_S", bound=_State)


class Transition(NamedTuple, Generic[_S]):
    """Operations, the state that they lead to, their time in ns and the bytes in use meanwhile."""

    ops: tuple[Op, ...]
    after: _S
    time: int
    bytes: int


class _Transitions(Protocol[_S]):
    """A graph of states."""

    @property
    def start(self) -> _S:
        """The state in which schedules start."""

    def steps(self, state: _S) -> Iterator[Transition[_S]]:
        """Yield every valid operation in `state`, whatever memory it needs."""


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
    rules = ChainTransitions(profile, Discards(discards))
    return fastest_path(rules, budget, Family.ALL, rules.discards)


def least_budget(profile: ChainProfile, *, discards: Discards | str = Discards.TABLE1) -> int:
    """Return the least budget, in bytes, for which some valid schedule exists.

    Raises:
        InvalidProfileError: The chain is too long to search.
    """
    return least_peak(ChainTransitions(profile, Discards(discards)))


def fastest_path(rules: _Transitions[_S], budget: int, family: Family, discards: Discards) -> Claim:
    """Return the fastest path within `budget`, by rules that allow one family of schedules.

    Raises:
        InfeasibleBudgetError: There is none; ``error.required`` says what would do.
    """
    found = cheapest_path(rules.start, rules.steps, add_time, budget)
    if found is None:
        raise InfeasibleBudgetError(
            budget=budget,
            required=least_peak(rules),
            stages=rules.start.gradient,
            family=family,
        )
    makespan, ops = found
    return Claim(
        schedule=Schedule(ops),
        makespan=makespan,
        lower_bound=makespan,
        family=family,
        discards=discards,
    )


def least_peak(rules: _Transitions[_S]) -> int:
    """Return the least bytes that a path needs."""
    found = cheapest_path(rules.start, rules.steps, raise_peak)
    assert found is not None, "keep-all is valid for every chain"
    return found[0]


def add_time(time: int, step: Transition[Any]) -> int:
    """Return the time of a path in ns, with one step more."""
    return time + step.time


def raise_peak(peak: int, step: Transition[Any]) -> int:
    """Return the most bytes in use along a path, with one step more."""
    return max(peak, step.bytes)


def cheapest_path(
    start: _S,
    steps: Callable[[_S], Iterator[Transition[_S]]],
    extend: Callable[[int, Transition[_S]], int],
    budget: int | None = None,
    least_left: Callable[[_S], int] = lambda _: 0,
) -> tuple[int, tuple[Op, ...]] | None:
    """Return the least cost of a path to the last gradient, and the operations along it.

    Args:
        start: The state in which paths start, at no cost.
        steps: Yields every step out of a state.
        extend: Returns the cost of a path with one step more.
        budget: Bytes that no step may exceed; None for any.
        least_left: Returns a cost that the rest of no path is below, as A* asks for.
    """
    best = {start: 0}
    came_from: dict[_S, tuple[_S, tuple[Op, ...]]] = {}
    order = count(0, -1)  # of equals the latest, which is nearest to the end
    frontier = [(least_left(start), next(order), 0, start)]
    while frontier:
        _, _, cost, state = heapq.heappop(frontier)
        if cost > best[state]:
            continue
        if state.gradient <= 0:
            ops: list[Op] = []
            while state in came_from:
                state, last = came_from[state]
                ops += reversed(last)
            return cost, tuple(reversed(ops))
        for step in steps(state):
            if budget is not None and step.bytes > budget:
                continue
            next_cost = extend(cost, step)
            if next_cost < best.get(step.after, next_cost + 1):
                best[step.after] = next_cost
                came_from[step.after] = (state, step.ops)
                estimate = next_cost + least_left(step.after)
                heapq.heappush(frontier, (estimate, next(order), next_cost, step.after))
    return None


class ChainTransitions:
    """All transitions out of a memory state of a chain.

    Args:
        profile: The chain.
        discards: The rules for discards.
        every_drop: Whether ``Fn`` may run only to drop its input, its output being stored. In a
            plain chain, no optimum under any rules needs that.
        is_persistent: Whether only persistent schedules are looked at. In these a stage runs again
            if and only if its first run is not kept, which decides on environments.

    Raises:
        InvalidProfileError: The chain is too long to search, or a stage has an environment and
            schedules need not be persistent.
    """

    def __init__(
        self,
        profile: ChainProfile,
        discards: Discards,
        *,
        every_drop: bool = False,
        is_persistent: bool = False,
    ) -> None:
        if not is_persistent:
            require_no_environments(profile, "the search of all schedules")
        if len(profile) > LARGEST_CHAIN:
            raise InvalidProfileError(
                f"exhaustive search takes chains of at most {LARGEST_CHAIN} stages, "
                f"this one has {len(profile)}; use a solver"
            )
        self.profile, self.discards = profile, discards
        self.start = ChainState(gradient=len(profile), activations=1, saved=0)
        self._is_plain = profile.is_plain
        self._every_drop = every_drop or not self._is_plain
        self._records = RecordMasks(profile)
        self._sizes = StateSizes(profile)
        self._dropped = [stage.dropped_runs[::-1] for stage in profile.stages]
        self._environments = [stage.environment_bytes for stage in profile.stages]

    def steps(self, state: ChainState) -> Iterator[Transition[ChainState]]:
        """Yield every valid operation in `state`, whatever memory it needs."""
        stored = self._records.stored(state.saved)
        base = self._sizes.stored(state.gradient, state.activations, stored)
        base += self._environment_bytes(state, stored)
        for i in range(len(self.profile)):
            if (state.activations | stored.outputs) >> i & 1:
                yield from self._keeps(state, stored, i, base)
                if not stored.closed >> i & 1:
                    yield from self._drops(state, stored, i, base)
        yield from self._backwards(state, stored, base)
        if self.discards is not Discards.TABLE1:
            yield from self._discards(state, base)

    def _keeps(
        self, state: ChainState, stored: StoredRecords, i: int, base: int
    ) -> Iterator[Transition[ChainState]]:
        """Yield ``Fa`` of stage i under every option."""
        gradient, activations, saved, has_run = state
        for keep in self._records.keeps[i]:
            if keep.stages & stored.stages:
                continue
            is_first = keep.stages & self._records.counted & ~has_run != 0
            run = keep.runs[is_first]
            need = run.bytes + self._sizes.added_skips(activations | stored.outputs, keep.output)
            after = ChainState(
                gradient,
                activations,
                saved | run.bit,
                has_run | keep.stages & self._records.counted,
            )
            if self._allows(after):
                yield Transition((keep.op,), after, run.time, base + need)

    def _drops(
        self, state: ChainState, stored: StoredRecords, i: int, base: int
    ) -> Iterator[Transition[ChainState]]:
        """Yield ``Fc`` and ``Fn`` of stage i."""
        gradient, activations, saved, has_run = state
        bit = 1 << i
        is_stored = activations & bit << 1
        if is_stored and not self._every_drop:
            return
        if bit & stored.stages and self._environments[i]:
            return  # its record has the output, and to run again it would need its environment
        counted = bit & self._records.counted
        run = self._dropped[i][counted & ~has_run != 0]
        after = ChainState(gradient, activations | bit << 1, saved, has_run | counted)
        need = base + run.overhead_bytes
        if bit & ~has_run:
            need += self._environments[i]
        if not is_stored:
            need += self._sizes.added_output(activations | stored.outputs, i + 1)
            yield Transition((Op(OpKind.FORWARD_KEEP_INPUT, i),), after, run.time, need)
        if activations & bit and (i or self._is_plain):
            after = after._replace(activations=after.activations & ~bit)
            if self._allows(after):
                yield Transition((Op(OpKind.FORWARD_DROP, i),), after, run.time, need)

    def _environment_bytes(self, state: ChainState, stored: StoredRecords) -> int:
        """Return the bytes of what stages have saved that ran, and are to run again."""
        waiting = state.has_run & ~stored.stages & ((1 << state.gradient) - 1)
        return sum(size for i, size in enumerate(self._environments) if waiting >> i & 1)

    def _backwards(
        self, state: ChainState, stored: StoredRecords, base: int
    ) -> Iterator[Transition[ChainState]]:
        gradient, activations, saved, has_run = state
        for record in self._records.ending[gradient]:
            first = record.first
            has_input = (activations | stored.outputs) >> first & 1
            if saved & record.bit and (has_input or not record.needs_input):
                need = base + self._sizes.input_gradient(first, gradient)
                after = ChainState(
                    first, activations & ~record.stages, saved & ~record.bit, has_run
                )
                if self._allows(after):
                    yield Transition(
                        (Op(OpKind.BACKWARD, first),),
                        after,
                        record.backward_time,
                        need + record.backward_overhead,
                    )

    def _discards(self, state: ChainState, base: int) -> Iterator[Transition[ChainState]]:
        gradient, activations, saved, has_run = state
        # A plain chain never has a use for the loss's output.
        for i in range(1, len(self.profile) + (not self._is_plain)):
            if activations >> i & 1:
                after = ChainState(gradient, activations & ~(1 << i), saved, has_run)
                if self._allows(after):
                    yield Transition((Op(OpKind.DISCARD_ACTIVATION, i),), after, 0, base)
        for record in self._records.all:
            if saved & record.bit:
                after = ChainState(gradient, activations, saved & ~record.bit, has_run)
                if self._allows(after):
                    yield Transition((Op(OpKind.DISCARD_SAVED, record.first),), after, 0, base)

    def _allows(self, after: ChainState) -> bool:
        """Return whether the rules admit a state: a tape keeps the input of what it recorded."""
        if self.discards is not Discards.TAPE:
            return True
        stored = self._records.stored(after.saved)
        return not stored.inputs & ~(after.activations | stored.outputs)
