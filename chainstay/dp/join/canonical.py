r"""Joins of any stages: the canonical persistent program (THEORY, Join; after [BHPS20]).

A schedule is *canonical persistent* if it is made as follows. Each branch has a checkpoint,
at first its input. Time and again, one branch moves on: it records its next stage (``Fa``, under
any of its options), or runs to a stage s' and keeps ``a^{s'}`` as its new checkpoint. Once all are
at their ends, the tail runs, forward and backward; then what the branches moved over is run
backward, the last move first: a recorded stage by its ``B``, a part from a checkpoint by the
persistent program for chains (`chainstay.dp.recursion`). With J for what remains,
m the memory besides the checkpoints, and positions as in `sizes`::

    J(q, m) = min over branches j at stage s of
        w_k + J(q: s+1, inside ā_k; m - ā_k)         for every option k whose Fa and B fit
        u[s..s'-1] + J(q: s', m - a_{s'}) + C_j(s, s'-1, m + Σ_{i≠j} (start_i - keep_i))
    J(all at their ends, m) = C_tail(m)

where ``start_i`` is the checkpoint of branch i, gone by the time its moves are undone, and
``keep_i`` the gradient, and saved data that contains the checkpoint, which are not. *With a
tail of several stages* the program may also cut it: all branches run to their ends and the
tail to its stage i with nothing kept, the tail from there is solved at once, and all starts
again with the tail prefix. As in `recursion`, overheads replace times.

*Options need no state.* Of a checkpoint inside saved data, J asks only for ``start_i - keep_i``,
and the saved data is in both: what is left is the gradient, whatever the option. The saved data of
a move is taken from m when it is made, and is there until its own ``B``.

*Nor do kinds of runs.* While the tail is whole, nothing ahead of the positions has run; once it
has been cut, everything has. So forwards of J are first runs iff the tail is whole; those of
C_j(s, s'-1, ·) never are, as the move ran over all of s..s'-1; those of a part of the tail are iff
it reaches the loss (``docs/derivations/options.md``). *Nor do half-summed gradients*, which every
state knows (`half_sums`): C_j is solved once for each case of what the other branches have done.

It is exact among canonical persistent schedules, not among all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.chain.recursion_arrays import recursion_arrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import at_first_interpreted
from chainstay.dp.join.half_sums import HalfSums, half_sums
from chainstay.dp.join.kernels import (
    NEVER,
    BranchParts,
    CostsByKind,
    Overheads,
    fill_least_memory,
    fill_overheads,
    fill_parts,
    need_up_to_the_join,
)
from chainstay.dp.join.sizes import (
    JoinCosts,
    is_small,
    join_costs,
    join_sizes,
    positions_of,
    recursions_by_case,
    states_of,
)
from chainstay.dp.recursion import Decide, Recursion, assemble, unfold
from chainstay.dp.table import Table
from chainstay.profiles import JoinProfile
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs

_NARROW: Final = 2**29
"""The overhead that stands for infeasible in 32 bits: three of it still fit."""
_WIDE: Final = 2**60


@dataclass(frozen=True, slots=True)
class _Part:
    """Stages s..t of a chain (None: the tail) to be solved with m bytes besides its input."""

    chain: int | None
    s: int
    t: int
    m: int
    case: int = -1


@dataclass(frozen=True, slots=True)
class _Rest:
    """The rest of the join: a state, stages of the tail, and m bytes besides checkpoints."""

    state: int
    tail: int
    m: int


_Item: TypeAlias = Op | _Part | _Rest


@dataclass(frozen=True, slots=True)
class _Move:
    """A decision: it needs `floor` bytes itself and takes `cost` ns more than its items."""

    floor: int
    cost: int
    items: tuple[_Item, ...]


class _CanonicalProgram:
    """The moves of each state, and the schedule of those that a subclass chooses.

    Attributes:
        profile: The join.
        sizes: Its sizes.
        costs: What its forwards cost by kind of run.
        base_time: What overheads are added to, in ns: no schedule of these takes less.
        rerun_time: The overhead, in ns, of running all stages once, whatever the options.
        sums: Its half-summed gradients.
        recursions: The recursions of the branches in each case, and of the tail.
        inputs: Bytes of the branches' inputs together.
        is_sparing: Whether `schedule` prefers moves that store less, not those that run less again.
    """

    is_sparing = False

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...], sums: HalfSums) -> None:
        self.profile, self.sums = profile, sums
        self.sizes = join_sizes(profile, keep, sums)
        recursions = tuple(map(Recursion.from_profile, profile.chains))
        self.base_time = sum(recursion.base_time for recursion in recursions)
        self.rerun_time = sum(
            max(int(kind.elapsed[-1] + kind.extra.sum()) for kind in (chain.first, chain.again))
            for chain in recursions
        )
        self.recursions = recursions_by_case(profile, recursions, sums)
        first = again = join_costs(profile, recursions, is_first=False)
        if any(chain.first is not chain.again for chain in recursions):
            first = join_costs(profile, recursions, is_first=True)
        ahead = self._ahead(again)
        self.costs = CostsByKind(
            first, again, ahead if first is again else self._ahead(first), ahead
        )
        self.inputs = sum(branch.input_bytes for branch in profile.branches)

    def schedule(self, m: int) -> Schedule:
        """Return the schedule from the start, with m bytes besides the branches' inputs."""
        whole = _Rest(0, len(self.profile.closing), m)
        return unfold(whole, self._decided)  # type: ignore[arg-type]  # mypy sees no part in it

    def is_chosen(self, rest: _Rest, move: _Move) -> bool:
        """Return whether this move attains what the tables hold."""
        raise NotImplementedError

    def decide(self, case: int) -> Decide:
        """Return the decisions within a chain in one of its cases."""
        raise NotImplementedError

    def _decided(self, item: _Part | _Rest) -> Iterable[_Item]:
        """Return what a part of a chain, or the chosen move of a state, consists of, in order."""
        if isinstance(item, _Part):
            return self._solved(item)
        return next(move for move in self._moves(item) if self.is_chosen(item, move)).items

    def _solved(self, part: _Part) -> Iterator[Op]:
        """Yield the operations of a part of a chain."""
        recursion, span = self.recursions[part.case], (part.s, part.t)
        decided = assemble(recursion, part.m, self.decide(part.case), span)
        for op in decided:
            if part.chain is not None or self.profile.tail is not None:
                yield Op(op.kind, op.stage, part.chain, op.option)
            elif op.kind is OpKind.BACKWARD:
                yield Op(OpKind.TURN)

    def _moves(self, rest: _Rest) -> Iterator[_Move]:
        """Yield all moves of a state."""
        sizes, k = self.sizes, len(self.profile.branches)
        positions = positions_of(rest.state, sizes)
        stored = [int(sizes.stored[j, positions[j]]) for j in range(k)]
        freed = [stored[j] - int(sizes.held[j, positions[j]]) for j in range(k)]
        if all(positions[j] >= 2 * sizes.lengths[j] - 1 for j in range(k)):
            yield _Move(0, 0, (_Part(None, 0, rest.tail - 1, rest.m),))
        for j in range(k):
            if positions[j] < 2 * sizes.lengths[j] - 1:
                own = list(self._moves_of(rest, j, positions[j], sum(freed) - freed[j]))
                yield from reversed(own) if self.is_sparing else own
        yield from self._tail_cuts(rest, positions)

    def _moves_of(self, rest: _Rest, j: int, place: int, beside: int) -> Iterator[_Move]:
        """Yield the moves of branch j: record its next stage, or run on to a later checkpoint."""
        sizes, costs, m = self.sizes, self.costs_of(rest), rest.m
        gradient = int(sizes.tail_gradient[rest.tail])
        s, stride, case = (place + 1) // 2, int(sizes.strides[j]), int(sizes.case[j, rest.state])
        after = rest.state + (2 * s + 2 - place) * stride
        for o in range(costs.start[j, s], costs.start[j, s + 1]):
            to_go_back = costs.keep_backward[j, o] + sizes.backward[case, s] - beside
            floor = max(gradient + costs.keep_forward[j, o], to_go_back)
            recorded = _Rest(after, rest.tail, m - int(costs.saved[j, o]))
            forward = Op(OpKind.FORWARD_KEEP_ALL, s, j, int(costs.number[j, o]))
            items = (forward, recorded, Op(OpKind.BACKWARD, s, j))
            yield _Move(int(floor), int(costs.extra[j, o]), items)
        for e in range(s, int(sizes.lengths[j])):
            cut = _Rest(
                rest.state + (2 * e + 1 - place) * stride,
                rest.tail,
                m - int(sizes.activation[j, e + 1]),
            )
            yield _Move(
                gradient + int(costs.transit[j, s, e]),
                int(costs.elapsed[j, e + 1] - costs.elapsed[j, s]),
                (*forwards_dropping_inputs(s, e, j), cut, _Part(j, s, e, m + beside, case)),
            )

    def _tail_cuts(self, rest: _Rest, positions: list[int]) -> Iterator[_Move]:
        """Yield the moves that cut the tail."""
        sizes, costs, p = self.sizes, self.costs_of(rest), rest.tail
        order = np.zeros(len(positions), dtype=np.int64)
        need = int(need_up_to_the_join(sizes, costs, np.array(positions), order))
        ends = {
            j: int(sizes.lengths[j])
            for j in order.tolist()
            if positions[j] < 2 * sizes.lengths[j] - 1
        }
        to_join = [
            op
            for j, end in ends.items()
            for op in forwards_dropping_inputs((positions[j] + 1) // 2, end - 1, j)
        ]
        to_join.append(Op(OpKind.FORWARD_KEEP_INPUT, 0))
        to_join += [Op(OpKind.DISCARD_ACTIVATION, end, j) for j, end in ends.items()]
        is_first = costs is self.costs.first
        ahead = self.costs.ahead_first if is_first else self.costs.ahead_again
        cost = int(ahead[rest.state])
        for i in range(1, p):
            if i > 1:
                need = max(need, int(costs.tail_transit[i - 1]))
                to_join.append(Op(OpKind.FORWARD_DROP, i - 1))
            behind = _Part(None, i, p - 1, rest.m - int(sizes.tail_activation[i]))
            yield _Move(
                int(sizes.tail_gradient[p]) + need,
                cost + int(costs.tail_elapsed[i]),
                (*to_join, behind, _Rest(rest.state, i, rest.m)),
            )

    def costs_of(self, rest: _Rest) -> JoinCosts:
        """Return the costs of forwards in a state: first runs until the tail is cut."""
        return self.costs.first if rest.tail == len(self.profile.closing) else self.costs.again

    def _ahead(self, costs: JoinCosts) -> Array:
        """Return the overhead, in ns, of the forwards of all branches from each state on."""
        ahead = np.zeros((), dtype=np.int64)
        for j, length in enumerate(self.sizes.lengths):
            stages = (np.arange(2 * length + 1) + 1) // 2
            ahead = np.add.outer(ahead, costs.elapsed[j, length] - costs.elapsed[j, stages])
        return ahead.reshape(-1)


class LeastMemoryProgram(_CanonicalProgram):
    """The least memory in which the join can run at all, and a schedule for it.

    Attributes:
        root: The least bytes besides the branches' inputs.

    Complexity:
        O(states k n t) time, with states = Π (2 n_j + 1).
    """

    def __init__(self, profile: JoinProfile, keep: tuple[bool, ...]) -> None:
        super().__init__(profile, keep, half_sums(profile))
        self._least_memories = [LeastMemory(recursion) for recursion in self.recursions]
        tails = len(profile.closing)
        n = max(map(len, profile.branches))
        parts = np.zeros((len(self.sizes.backward), n, n), dtype=np.int64)
        for part, memory in zip(parts, self._least_memories, strict=False):
            part[: len(memory.table), : len(memory.table)] = memory.table
        self._least = np.full((tails, states_of(profile)), NEVER, dtype=np.int64)
        with at_first_interpreted(when=is_small(profile)):
            tail_parts = self._least_memories[-1].table
            fill_least_memory(self._least, self.sizes, self.costs, parts, tail_parts)
        self.root = int(self._least[-1, 0])

    def is_chosen(self, rest: _Rest, move: _Move) -> bool:
        """Return whether everything in the move fits."""
        return rest.m >= move.floor and all(map(self._fits, move.items))

    def decide(self, case: int) -> Decide:
        """Return the decisions of `LeastMemory` within a chain."""
        return self._least_memories[case].decide

    def _fits(self, item: _Item) -> bool:
        """Return whether an item fits in its memory."""
        match item:
            case _Part():
                return item.m >= int(self._least_memories[item.case].table[item.s, item.t])
            case _Rest():
                return item.m >= int(self._least[item.tail - 1, item.state])
            case Op():
                return True


class OverheadProgram(_CanonicalProgram):
    """Least overheads for every memory up to `memory`, inputs of the branches included.

    Args:
        profile: The join, its sizes in the unit of `memory`.
        keep: For each branch, whether the gradient of its input stays until the end.
        sums: Its half-summed gradients in that unit.
        memory: Units, the inputs of the branches included.
        attained: An overhead that some schedule within `memory` is known to have, in ns.
            Where it is not too large, half of the table's memory is enough.

    Attributes:
        room: Units of `memory` besides the inputs.

    Complexity: O(states Σ n memory t) time, O(states memory t) memory.
    """

    def __init__(
        self,
        profile: JoinProfile,
        keep: tuple[bool, ...],
        sums: HalfSums,
        memory: int,
        *,
        attained: int | None = None,
    ) -> None:
        super().__init__(profile, keep, sums)
        self.room = memory - self.inputs
        wide, tails = memory + 1, len(profile.closing)
        total = self.rerun_time
        # No forward runs more often than there are stages.
        largest = total * (profile.stages + 1) if attained is None else max(total, attained)
        is_narrow = largest < _NARROW
        self._never = _NARROW if is_narrow else _WIDE
        dtype: type[np.signedinteger] = np.int32 if is_narrow else np.int64
        self._tables: list[Table] = []
        parts = self._parts(dtype, wide)
        self._tables.append(Table.fill(self.recursions[-1], memory))
        tail_parts = np.full((tails, tails, wide), self._never, dtype=dtype)
        for s, rows in enumerate(self._tables[-1].rows):
            tail_parts[s, s:] = np.minimum(rows, self._never)
        self._values: Overheads = np.full(
            (tails, states_of(profile), wide), self._never, dtype=dtype
        )
        with at_first_interpreted(when=is_small(profile)):
            fill_overheads(self._values, self.sizes, self.costs, parts, tail_parts)

    @property
    def root(self) -> int | None:
        """The least overhead, in ns; None if nothing fits."""
        return self.overhead(self.room)

    def overhead(self, m: int) -> int | None:
        """Return the least overhead, in ns, in m units besides the inputs; None if nothing fits."""
        return self._of_rest(_Rest(0, len(self.profile.closing), m))

    def is_chosen(self, rest: _Rest, move: _Move) -> bool:
        """Return whether the move attains the overhead in the table."""
        if rest.m < move.floor:
            return False
        total = move.cost
        for item in move.items:
            match item:
                case _Part():
                    total += self._tables[item.case].overhead(item.s, item.t, item.m)
                case _Rest():
                    found = self._of_rest(item)
                    if found is None:
                        return False
                    total += found
        return total == self._of_rest(rest)

    def decide(self, case: int) -> Decide:
        """Return the decisions of `Table` within a chain."""
        return self._tables[case].decide

    def _of_rest(self, rest: _Rest) -> int | None:
        """Return the overhead in the table, in ns; None if nothing fits."""
        if rest.m < 0:
            return None
        found = int(self._values[rest.tail - 1, rest.state, rest.m])
        return None if found >= self._never else found

    def _parts(self, dtype: type[np.signedinteger], wide: int) -> BranchParts:
        """Return the parts of all branches, which are tables, too."""
        cases, n = self.sizes.backward.shape
        part_of, count = np.zeros((cases, n, n), dtype=np.int64), 1
        for case, recursion in enumerate(self.recursions[:-1]):
            s, e = np.triu_indices(recursion.stages)
            part_of[case, s, e] = count + np.arange(len(s))
            count += len(s)
        parts = BranchParts(np.full((count, wide), self._never, dtype=dtype), part_of)
        parts.overheads[0] = 0
        with at_first_interpreted(when=is_small(self.profile)):
            for case, recursion in enumerate(self.recursions[:-1]):
                fill_parts(parts, case, recursion_arrays(recursion).again)
                spans = (part_of[case, s, s : recursion.stages] for s in range(recursion.stages))
                table = tuple(parts.overheads[span[0] : span[-1] + 1] for span in spans)
                self._tables.append(Table(recursion, table))
        return parts
