"""Canonical persistent schedules of small joins by exhaustive search.

Only the structure of these schedules is taken from `chainstay.dp.join.canonical`: which moves
there are, and in which order they are undone. What an operation needs, takes and leaves behind, and
whether it is a first run, is as the exhaustive search of all schedules has it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count, permutations
from typing import Any

from chainstay.profiles import JoinProfile
from chainstay.schedule import Op, OpKind
from chainstay.validation.join.states import ByteTransitions, JoinState, JoinTransition

Agenda = tuple[Any, ...]
"""What is still to do: operations, parts ``(chain, s, t)`` and rests ``(positions, tail)``."""


class CanonicalSearch:
    """All canonical persistent schedules of a join."""

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...]) -> None:
        self.chains = profile.chains
        self.k = len(profile.branches)
        self.has_tail = profile.tail is not None
        self.rules = ByteTransitions(profile, keep)
        self.ends = tuple(map(len, profile.branches))
        self.steps: dict[JoinState, dict[tuple[Op, ...], JoinTransition]] = {}
        self.start = (self.rules.start, (((0,) * self.k, len(profile.closing)),))

    def optimum(self, budget: int) -> int | None:
        """Return the least time within `budget`, in ns; None if nothing fits."""
        best, number = {self.start: 0}, count(0, -1)
        frontier = [(0, 0, 0, self.start)]
        while frontier:
            _, _, time, state = heapq.heappop(frontier)
            if time > best[state]:
                continue
            if not state[1]:
                return time
            for step, after in self._after(*state):
                if step is not None and step.bytes > budget:
                    continue
                later = time + (step.time if step else 0)
                if later < best.get(after, later + 1):
                    best[after] = later
                    left = self.rules.least_left(after[0])
                    heapq.heappush(frontier, (later + left, next(number), later, after))
        return None

    def least_budget(self) -> int:
        """Return the least bytes in which a schedule fits."""
        first = self.rules.stored(self.start[0])
        best, number = {self.start: first}, count(0, -1)
        frontier = [(first, 0, self.start)]
        while True:
            peak, _, state = heapq.heappop(frontier)
            if not state[1]:
                return peak
            for step, after in self._after(*state):
                higher = max(peak, step.bytes if step else 0)
                if higher < best.get(after, higher + 1):
                    best[after] = higher
                    heapq.heappush(frontier, (higher, next(number), after))

    def _after(
        self, memory: JoinState, agenda: Agenda
    ) -> Iterator[tuple[JoinTransition | None, tuple[JoinState, Agenda]]]:
        item, rest = agenda[0], agenda[1:]
        if isinstance(item, Op):
            step = self._step(memory, item)
            yield step, (step.after, rest)
            return
        for items in self._part(*item) if len(item) == 3 else self._rest(*item):
            yield None, (memory, (*items, *rest))

    def _step(self, memory: JoinState, op: Op) -> JoinTransition:
        if memory not in self.steps:
            found = self.steps[memory] = {}
            for step in self.rules.steps(memory, None):
                found.setdefault(step.ops, step)
        ops: tuple[Op, ...] = (op,)
        if op.branch is None and not self.has_tail:
            ops = (Op(OpKind.TURN),) if op.kind is OpKind.BACKWARD else ()
        return self.steps[memory][ops]

    def _part(self, chain: int, s: int, t: int) -> Iterator[Agenda]:
        for keep in self._kept(chain, s):
            yield (keep, *([(chain, s + 1, t)] if s < t else []), self._op("B", chain, s))
        for k in range(s + 1, t + 1):
            yield (*self._sweep(chain, s, k), (chain, k, t), (chain, s, k - 1))

    def _rest(self, at: tuple[int, ...], tail: int) -> Iterator[Agenda]:
        if at == self.ends:
            yield ((self.k, 0, tail - 1),)
        ahead = [j for j in range(self.k) if at[j] < self.ends[j]]
        for j in ahead:
            s = at[j]
            for keep in self._kept(j, s):
                moved = (*at[:j], s + 1, *at[j + 1 :])
                yield (keep, (moved, tail), self._op("B", j, s))
            for e in range(s + 1, self.ends[j] + 1):
                yield (*self._sweep(j, s, e), ((*at[:j], e, *at[j + 1 :]), tail), (j, s, e - 1))
        for i in range(1, tail):
            for order in permutations(ahead):
                to_join = [op for j in order for op in self._sweep(j, at[j], self.ends[j])]
                to_join.append(self._op("Fc", self.k, 0))
                to_join += [self._op("Da", j, self.ends[j]) for j in ahead]
                for stage in range(1, i):
                    to_join += [self._op("Fc", self.k, stage), self._op("Da", self.k, stage)]
                yield (*to_join, (self.k, i, tail - 1), (at, i))

    def _kept(self, chain: int, s: int) -> Iterator[Op]:
        for number in range(len(self.chains[chain].stages[s].all_options)):
            yield self._op("Fa", chain, s, number)

    def _sweep(self, chain: int, s: int, end: int) -> Iterator[Op]:
        for stage in range(s, end):
            yield self._op("Fc", chain, stage)
            if stage > s:
                yield self._op("Da", chain, stage)

    def _op(self, kind: str, chain: int, stage: int, option: int = 0) -> Op:
        return Op(OpKind(kind), stage, chain if chain < self.k else None, option)
