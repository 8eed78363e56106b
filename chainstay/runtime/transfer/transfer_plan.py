"""A program list as what the host does before each computation: transfers, and waits for memory.

The simulator of a program list lets every operation wait until it can start. A runtime does
not know when that will be, and need not: it counts bytes in the order of the list, and makes
a computation (or a prefetch) wait for the oldest offloads just where its memory would not fit
beside theirs. So what is held never exceeds the budget, however fast the link is, and nothing
waits that need not.

Three differences from the list, none of which takes memory or time:

* What is issued while a computation runs is issued just before it where its data and memory
  are there already: a computing thread is busy then, and a stream's next event comes after.
* An item whose memory nobody needs while it is away is not sent.
* Nor is one that never comes back: it is let go when it has served.

A tensor that several states share stays from its making to its stage's backward.

The loss is the user's: its forward and backward are one computation here, between the end of
the model's forward and the backward of its last stage. So is what the user holds: the input,
and the model's output with what the last stage saves, stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.runtime.execute.items import Act, Action, TransferPlan
from chainstay.runtime.transfer.computations import Computation, computations_of
from chainstay.schedule import Item, Op, OpKind, Schedule, update_stored
from chainstay.units import format_bytes


def plan_transfers(
    schedule: Schedule,
    profile: ChainProfile,
    budget: int,
    *,
    overheads: Sequence[int] | None = None,
) -> TransferPlan:
    """Cut a program list into what happens before each computation.

    Args:
        schedule: Valid under free discards, with transfers between.
        profile: What the chain costs, the loss being its last stage; what cannot move is in
            its overheads, see `movable_chain`.
        budget: Bytes on the device.
        overheads: Bytes that each operation of `schedule` needs besides what is stored, in
            place of its stage's in the profile.

    Raises:
        InvalidScheduleError: An operation without the data or the memory that it needs, or one
            that this runtime cannot do.

    Complexity:
        O(len(schedule) + n m) for m items that move.
    """
    options = {op.stage: op.option for op in schedule if op.kind is OpKind.FORWARD_KEEP_ALL}
    for op in schedule:
        if op.kind is OpKind.FORWARD_KEEP_ALL and op.option != options[op.stage]:
            raise InvalidScheduleError(
                f"stage {op.stage} is kept under options {op.option} and {options[op.stage]}, and "
                "what moves is told by its stage alone; keep it under one"
            )
    computations = list(computations_of(schedule, profile, overheads))
    walk = _TransferWalk(profile, budget, computations, options)
    for position in range(len(walk.computations)):
        walk.take(position)
    actions: list[tuple[Action, ...]] = []
    for computation, some in zip(walk.computations, walk.actions, strict=True):
        actions.append(tuple(action for action in some if action.item in walk.let_go))
        actions += [()] * (len(computation.ops) - 1)
    signs = {Act.SEND: 1, Act.RELEASE: 0, Act.FETCH: -1, Act.COPY: 0}
    changes = (signs[action.act] * walk.size(action.item) for some in actions for action in some)
    return TransferPlan(
        actions=tuple(actions),
        moved=frozenset(walk.let_go),
        host_bytes=max(accumulate(changes), default=0),
        peak_bytes=walk.peak,
    )


@dataclass(slots=True)
class _TransferWalk:
    """The computations one by one, in bytes.

    Attributes:
        profile: Costs.
        budget: Bytes.
        computations: The computations with what is issued in front of each.
        options: By stage, the option under which it is kept.
        actions: What to do in front of each.
        memory: The bytes in use.
        peak: The most so far.
        gradient: The one that is held.
        stored: Items in memory.
        leaving: Items that have been sent, or have a copy on the host, and are not needed here
            for a while; oldest first.
        serves: Until which computation those are read here.
        sent: Items with a copy on the host.
        returns: How often each item is still to come back.
        let_go: Items whose memory somebody needed while they were on the host.
    """

    profile: ChainProfile
    budget: int
    computations: list[Computation]
    options: dict[int, int]
    actions: list[list[Action]] = field(default_factory=list)
    memory: int = 0
    peak: int = 0
    gradient: int = 0
    stored: set[Item] = field(default_factory=lambda: {Item("a", 0)})
    leaving: list[Item] = field(default_factory=list)
    serves: dict[Item, int] = field(default_factory=dict)
    sent: set[Item] = field(default_factory=set)
    returns: Counter[Item] = field(default_factory=Counter)
    let_go: set[Item] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.actions = [[] for _ in self.computations]
        self.gradient = len(self.profile)
        self.memory = self.profile.input_bytes + self.profile.gradient_bytes(self.gradient)
        for computation in self.computations:
            for op in computation.gap:
                if op.kind.is_prefetch:
                    self.returns[op.item] += 1
        for computation in self.computations:
            computation.gap = [op for op in computation.gap if not self._stays(op)]

    def _stays(self, op: Op) -> bool:
        """Whether what `op` moves is the caller's: the input, the output, the loss's data."""
        item = op.item
        is_inner = 0 <= item.stage < len(self.profile) - 2
        return not is_inner and (op.kind.is_transfer or self.returns[item] > 0)

    def size(self, item: Item) -> int:
        """Bytes of an item."""
        if item.kind == "a":
            return self.profile.activation_bytes(item.number)
        return self.profile.stages[item.number].all_options[self.options[item.number]].saved_bytes

    def take(self, position: int) -> None:
        """Everything up to the end of the computation at `position`."""
        computation = self.computations[position]
        for op in computation.gap:
            self._issue(op, position)
        for op in computation.ops:
            self._require_data(op, position, computation)
        need, growth = self._costs(computation)
        is_followed = position + 1 < len(self.computations)
        if computation.is_loss and is_followed:
            self._draw_forward(position, need, only_offloads=True)
        self._make_room(need, position, str(computation))
        if is_followed:
            self._draw_forward(position, need, only_offloads=False)
        self.peak = max(self.peak, self.memory + need)
        self.memory += growth
        for op in computation.ops:
            if (made := op.makes) is not None:
                self.stored.add(made)
            else:
                self.gradient = op.stage
            for item in op.frees:
                self._drop(item, position)
        for item in [i for i, last in self.serves.items() if last == position]:
            if not self.returns[item]:
                self._drop(item, position)

    def _require_data(self, op: Op, position: int, computation: Computation) -> None:
        made = {item for operation in computation.ops if (item := operation.makes) is not None}
        here = {i for i in self.stored if self.serves.get(i, position) >= position} | made
        if op.kind is OpKind.FORWARD_DROP and Item("a", op.stage) not in here:
            raise InvalidScheduleError(f"{op} needs a{op.stage} itself, which is not stored")
        for item in op.reads(here):
            if item not in here:
                where, remedy = "not stored", "make it before"
                if item in self.sent:
                    where, remedy = "on the host", f"issue P{item} before"
                raise InvalidScheduleError(
                    f"{computation} needs {item}, which is {where}; {remedy}"
                )
        if op.kind is OpKind.BACKWARD:
            if self.gradient != op.stage + 1 and not computation.is_loss:
                raise InvalidScheduleError(f"{op} needs the gradient of a{op.stage + 1} first")
            return
        if op.makes in self.stored:
            raise InvalidScheduleError(f"{op} makes what is stored")
        for item in (Item("a", op.stage + 1), Item("b", op.stage)):
            if item in self.sent and self.returns[item]:
                raise InvalidScheduleError(
                    f"{op} makes again what comes back from the host as {item}, which this runtime "
                    "cannot tell apart; use method='dp'"
                )

    def _draw_forward(self, position: int, need: int, *, only_offloads: bool) -> None:
        """Issue what comes during the computation before it, where all is there for it.

        They keep their order; only between the loss's two computations, where the second may
        wait for their memory, offloads go first.
        """
        following = self.computations[position + 1]
        waiting: list[Op] = []
        for op in following.gap:
            is_in_turn = not waiting or only_offloads
            is_wanted = op.kind.is_offload or not only_offloads
            if is_in_turn and is_wanted and self._is_ready(op, need):
                self._issue(op, position)
            else:
                waiting.append(op)
        following.gap = waiting

    def _is_ready(self, op: Op, need: int) -> bool:
        item = op.item
        if op.kind.is_offload:
            return item in self.stored
        if not op.kind.is_prefetch:
            return False
        fits = self.memory + need + self.size(item) <= self.budget
        return item in self.leaving or (item in self.let_go - self.stored and fits)

    def _issue(self, op: Op, position: int) -> None:
        item = op.item
        if op.kind.is_offload:
            self._offload(op, item, position)
        elif op.kind.is_prefetch:
            self._prefetch(op, item, position)
        else:
            if item not in self.stored:
                raise InvalidScheduleError(f"{op} drops {item}, which is not stored")
            self._drop(item, position - 1)

    def _offload(self, op: Op, item: Item, position: int) -> None:
        if item in self.sent:
            raise InvalidScheduleError(f"{op} comes a second time; the host keeps what it has")
        if item not in self.stored:
            raise InvalidScheduleError(f"{op} moves {item}, which is not stored")
        self.serves[item] = self._last_read(item, position)
        if not self.returns[item]:
            if self.serves[item] < position:
                self._drop(item, position)
            return
        self.sent.add(item)
        self.leaving.append(item)
        self.actions[position].append(Action(Act.SEND, item))

    def _prefetch(self, op: Op, item: Item, position: int) -> None:
        if item not in self.sent:
            raise InvalidScheduleError(f"{op} brings back {item}, which was not offloaded")
        if item in self.stored and item not in self.leaving:
            raise InvalidScheduleError(f"{op} brings back {item}, which is stored")
        self.returns[item] -= 1
        if item in self.leaving:
            self.leaving.remove(item)
        else:
            self._make_room(self.size(item), position, str(op))
            self.memory += self.size(item)
            self.stored.add(item)
            self.actions[position].append(
                Action(Act.COPY if self.returns[item] else Act.FETCH, item)
            )
        self.serves.pop(item, None)

    def _drop(self, item: Item, position: int) -> None:
        """Nobody reads `item` after `position` until it is made again, or comes back."""
        if item not in self.stored:
            return
        if item in self.sent and self.returns[item]:
            self.serves[item] = min(self.serves.get(item, position), position)
            if item not in self.leaving:
                self.leaving.append(item)
            return
        self.serves.pop(item, None)
        self.stored.discard(item)
        self.memory -= self.size(item)
        if item in self.leaving:
            self.leaving.remove(item)

    def _last_read(self, item: Item, position: int) -> int:
        """The last computation from `position` on that reads `item` before it comes back.

        Only operations of the stage that made it and of those beside that one touch it.
        """
        last, here = position - 1, set(self.stored)
        near = range(item.stage - 1, item.stage + 2)
        for index in range(position, len(self.computations)):
            computation = self.computations[index]
            if all(op.stage not in near for op in (*computation.gap, *computation.ops)):
                continue
            for op in computation.gap if index > position else ():
                if op.item == item and not op.kind.is_offload:
                    return last
                here.difference_update(op.frees)
                if op.kind.is_prefetch:
                    here.add(op.item)
            for op in computation.ops:
                if op.makes == item:
                    return last
                if item in op.reads(here):
                    last = index
                if item in op.frees:
                    return last
                update_stored(here, op)
        return last

    def _make_room(self, need: int, position: int, what: str) -> None:
        """Wait for the oldest transfers to the host until `need` bytes more fit."""
        while (total := self.memory + need) > self.budget:
            released = next((i for i in self.leaving if self.serves[i] < position), None)
            if released is None:
                raise InvalidScheduleError(
                    f"{what} needs {format_bytes(need)} beside {format_bytes(self.memory)} that "
                    f"nothing issued before it will free, {total - self.budget} bytes more than "
                    f"the budget of {format_bytes(self.budget)}; the input and the output are the "
                    "caller's and stay: solve for measured.offload_profile"
                )
            self.leaving.remove(released)
            self.stored.discard(released)
            self.let_go.add(released)
            self.memory -= self.size(released)
            self.actions[position].append(Action(Act.RELEASE, released))

    def _costs(self, computation: Computation) -> tuple[int, int]:
        """Bytes that a computation needs, and those that are in use more after it.

        What it removes is counted where it is removed.
        """
        need = growth = 0
        for op, overhead in zip(computation.ops, computation.overheads, strict=True):
            if (item := op.makes) is not None:
                made, gone = self.size(item), 0
            else:
                made = self.profile.gradient_bytes(op.stage)
                gone = self.profile.gradient_bytes(op.stage + 1)
            need = max(need, growth + made + overhead)
            growth += made - gone
        return need, growth
