"""Runs of a stage with an option: what its graph holds, and replays in the backward.

Autograd's graph holds a `ReplayHandle` for every tensor that was dropped. The first of a group
that is asked for its tensor replays the group, which gives tensors to all handles that are
still alive and lets go of what the replay started from. Nobody else holds handles: what a part of
the graph that is gone would have needed is not made.

No tensor with a graph may be held here: a circle through autograd's nodes is not found by
Python's garbage collector.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field
from threading import RLock
from typing import Any, Final
from weakref import ref

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.execute.environment import (
    Environment,
    RandomStates,
    Settings,
    alone,
    random_states,
    restore_random_states,
)
from chainstay.runtime.execute.handles import (
    Absent,
    OffloadPolicy,
    Staying,
    is_parameter,
    refuse_backward,
)
from chainstay.runtime.execute.held import HeldTensor, hold, value_of
from chainstay.runtime.options.option_code import OptionCode, Origin, ReplayCode, SavedSlot
from chainstay.runtime.stage.chain_stage import Effects
from chainstay.runtime.stage.states import (
    MemoryLayout,
    State,
    never_recomputed_error,
    non_leaves,
)
from chainstay.runtime.stage.tied_gradients import add_in_place

_DRAWS: Final = Effects(draws_random=True)


class ReplayHandle:
    """Stands in the graph for a tensor that a replay makes again; an `handles.Absent`."""

    __slots__ = ("__weakref__", "group", "tensor")

    def __init__(self, group: _Group) -> None:
        self.group: _Group | None = group
        self.tensor: torch.Tensor | None = None

    def restored(self) -> torch.Tensor:
        """The tensor.

        Raises:
            PlanMismatchError: What a replay starts from was changed, or it gave something else.
        """
        group = self.group  # another thread's replay may take it away
        if self.tensor is None and group is not None:
            group.replay()
        if self.tensor is None:
            raise never_recomputed_error("a stage that is kept in part")
        return self.tensor


@dataclass(slots=True)
class OptionRun:
    """One run of a stage with an option, until its backward.

    Attributes:
        code: What to run.
        shared: The values that all stages may read.
        names: What messages call these.
        settings: The settings of the forward.
        hooks: The hooks for what operators save of which the option drops something; ``None``
            where hooks are around the whole run.
        stashes: Values that the forward has set aside.
        environment: The surroundings of the forward.
        state: What replays read of the incoming state, by position.
    """

    code: OptionCode
    shared: Sequence[Any]
    names: Sequence[str]
    settings: InitVar[Settings]
    hooks: AbstractContextManager[object] | None = None
    stashes: list[Any] = field(init=False)
    environment: Environment = field(init=False)
    state: dict[int, HeldTensor] = field(default_factory=dict)
    _groups: list[_Group] = field(init=False)
    _packed: int = 0
    _is_hooked: bool = False

    def __post_init__(self, settings: Settings) -> None:
        graph, effects = self.code.graph, self.code.replay_effects
        stage, device = graph.stage, graph.device
        self.environment = Environment.capture(stage, effects, self.shared, settings, device)
        self.stashes = [None] * self.code.stashes
        self._groups = [_Group(replay) for replay in self.code.replays]
        for group, numbers in zip(self._groups, self.code.sources, strict=True):
            group.sources = [self._groups[number] for number in numbers]

    def forward(self, state: State) -> State:
        """Return the next state; call `close` afterwards.

        Without `hooks`, call it where `packed` gets all that autograd saves.
        """
        code = self.code
        shared = [self.shared[position] for position in code.graph.composition.shared]
        output: State = code.forward(code.root, self, *state, *shared)
        if code.tied:
            add_in_place(output, state, [self.shared[position] for position in code.tied])
        return output

    def stash(self, index: int, value: Any) -> None:
        """Set a value aside: without the graph that made it, or it would be held in a circle."""
        self.stashes[index] = value.detach() if isinstance(value, torch.Tensor) else value

    def stash_random(self, index: int, kinds: tuple[str, ...]) -> None:
        """Set aside the states of the generators, on `kinds` of devices, that come next."""
        states = random_states(self.code.graph.device)
        self.stashes[index] = tuple(state for state in states if state[0].type in kinds)

    def hook(self, number: int) -> None:
        """Put the hooks around what is saved from `number` on."""
        if self.hooks is not None:
            self._packed = number
            self.hooks.__enter__()
            self._is_hooked = True

    def unhook(self, number: int) -> None:
        """Take the hooks away before saved tensor `number`.

        Raises:
            PlanMismatchError: Fewer have been saved than when the option was made.
        """
        if self.hooks is not None:
            self.unhook_all()
            self._require_packed(number)

    def unhook_all(self) -> None:
        """Take the hooks away, if they are on: an operator may have failed."""
        if self._is_hooked and self.hooks is not None:
            self._is_hooked = False
            self.hooks.__exit__(None, None, None)

    def packed(self, tensor: torch.Tensor) -> ReplayHandle | None:
        """Return the stand-in for what autograd saves next, ``None`` if that stays.

        Call it once for each saved tensor but parameters, in order.

        Raises:
            PlanMismatchError: It is not what was saved when the option was made.
        """
        code, number = self.code, self._packed
        self._packed += 1
        is_known = number < len(code.expected)
        if not is_known or (tensor.shape, tensor.dtype) != code.expected[number]:
            raise self._mismatch(f"saves a tensor {tuple(tensor.shape)} {tensor.dtype}")
        place = code.packs[number]
        return None if place is None else self._groups[place[0]].handle(place[1])

    def close(self, state: State, policy: OffloadPolicy | None = None) -> None:
        """End the forward, which got `state`; `policy` knows what of all this may go to the host.

        Raises:
            PlanMismatchError: It saved less than when the option was made.
        """
        if self.hooks is None:
            self._require_packed(len(self.code.packs))
        self.state = {i: HeldTensor.of(state[i].detach(), policy) for i in self.code.state_reads}
        groups, stashes = self._groups, self.stashes
        self._groups, self.stashes, self.hooks = [], [], None  # first: an interruption may come
        for group in groups:
            group.close(self, stashes, policy)

    def _require_packed(self, number: int) -> None:
        if self._packed != number:
            raise self._mismatch(f"saves {self._packed} tensors where it saved {number}")

    def _mismatch(self, found: str) -> PlanMismatchError:
        return PlanMismatchError(
            f"stage {self.code.graph.stage.name} {found}, which it did not when its options were "
            "measured; a stage must do the same each time it runs on inputs of one shape"
        )


@dataclass(slots=True)
class OptionPack:
    """Pack hook of a run with an option; the graph holds it, so that it lets go of the run.

    Attributes:
        run: The run, until `close`.
        stage: The stage's number in its chain, for messages.
        policy: Knows which tensors may go to the host; ``None`` where all stay.
    """

    run: OptionRun | None
    stage: int
    policy: OffloadPolicy | None

    def __call__(self, tensor: torch.Tensor) -> object:
        """Return a handle for what is dropped; the rest stays, or goes to the host."""
        if is_parameter(tensor):
            return tensor
        assert self.run is not None, "saved in the forward"
        absent: Absent | None = self.run.packed(tensor)
        if absent is None and self.policy is not None:
            absent = self.policy.stand_in(tensor)
        return absent or Staying.of(self.stage, tensor)

    def close(self) -> None:
        """Let go of the run."""
        self.run = None


class _SavingHook:
    """Pack hook of a replay: keeps what marked operators save, and has them draw as they did."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int | None], torch.Tensor] = {}
        self.present: RandomStates = ()
        self.mark = -1
        self.number = 0

    def begin(self, mark: int) -> None:
        """An operator begins, or with -1 ends."""
        self.mark, self.number = mark, 0

    def draw_from(self, states: RandomStates) -> None:
        """Put generators into these states until `draw_on`."""
        kinds = [device for device, _ in states]
        self.present = tuple(s for s in random_states(kinds[-1]) if s[0] in kinds)
        restore_random_states(states)

    def draw_on(self) -> None:
        """Put back the generators."""
        restore_random_states(self.present)
        self.present = ()

    def __call__(self, tensor: torch.Tensor) -> object:
        if is_parameter(tensor):
            return tensor
        if self.mark >= 0:
            self.found[self.mark, self.number] = tensor.detach()
            self.number += 1
        return None


class _Group:
    """Tensors of one run that are made again together."""

    __slots__ = ("code", "handed_on", "handles", "lock", "run", "sources", "stashes")

    def __init__(self, code: ReplayCode) -> None:
        self.code = code
        self.run: OptionRun | None = None
        self.handles: list[ref[ReplayHandle] | None] = [None] * len(code.slots)
        self.stashes: dict[int, Any] = {}
        self.sources: list[_Group] = []
        self.handed_on: dict[int, torch.Tensor] = {}
        self.lock = RLock()

    def handle(self, slot: int) -> ReplayHandle:
        """A handle for what this makes at `slot`."""
        handle = ReplayHandle(self)
        self.handles[slot] = ref(handle)
        return handle

    def close(self, run: OptionRun, stashes: Sequence[Any], policy: OffloadPolicy | None) -> None:
        """Take what the replay starts from."""
        self.run = run
        for index in self.code.reads[Origin.STASH]:
            self.stashes[index] = hold(stashes[index], policy)

    def replay(self) -> None:
        """Run the operators again and fill the handles."""
        with self.lock:
            if self.run is not None:
                for source in self.sources:
                    source.replay()
                    self.stashes.update(source.handed_on)
                self._replay(self.run)
                self.run, self.stashes, self.sources = None, {}, []

    def _replay(self, run: OptionRun) -> None:
        code, capture = self.code, _SavingHook()
        if code.needs_graph:
            results = self._recorded(run, capture)
        else:
            with torch.no_grad(), run.environment.entered(run.shared):
                results = code.function(run.code.root, capture, *self._inputs(run))
        last = (result.detach() for result in results[len(results) - len(code.handed_on) :])
        self.handed_on = dict(zip(code.handed_on, last, strict=True))
        for reference, slot in zip(self.handles, code.slots, strict=True):
            handle = None if reference is None else reference()
            if handle is not None:
                handle.tensor = self._made(run, slot, results, capture)
                handle.group = None

    def _recorded(self, run: OptionRun, capture: _SavingHook) -> tuple[torch.Tensor, ...]:
        """Run the operators as in the forward, and capture what they save."""
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(capture, refuse_backward),
            alone(_DRAWS) if self.code.draws_random else nullcontext(),
            run.environment.entered(run.shared),
        ):
            try:
                return self.code.function(run.code.root, capture, *self._inputs(run))
            finally:
                restore_random_states(capture.present)

    def _inputs(self, run: OptionRun) -> list[Any]:
        # What only other replays read may be trained by now, where optimizers run in the backward.
        needed = self.code.reads[Origin.SHARED]
        run.environment.require_unchanged(run.shared, run.names, needed)
        given, stage = [], run.code.graph.stage.name
        for source in self.code.inputs:
            match source.origin:
                case Origin.SHARED:
                    given.append(run.shared[source.index])
                case Origin.STATE:
                    value = run.state[source.index].unchanged("the input", stage)
                    given.append(_start(value, source.requires_grad))
                case Origin.STASH:
                    value = value_of(self.stashes[source.index], stage)
                    given.append(_start(value, source.requires_grad))
        return given

    def _made(
        self, run: OptionRun, slot: SavedSlot, results: Sequence[torch.Tensor], capture: _SavingHook
    ) -> torch.Tensor:
        is_result = slot.extra is None
        place = slot.source, slot.extra
        made = results[slot.source].detach() if is_result else capture.found[place]
        if slot.layout.is_that_of(made):
            return made
        layout = MemoryLayout.of(made)
        if (layout.storage_bytes, layout.dtype) != (slot.layout.storage_bytes, slot.layout.dtype):
            raise PlanMismatchError(
                f"a tensor {slot.layout} that stage {run.code.graph.stage.name} saved is {layout} "
                "when made again; a stage must do the same each time it runs on the same input"
            )
        return slot.layout.over(made)


def _start(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:  # noqa: FBT001  # as `ReplayInput` says
    """A value as the operator got it: no leaf, or autocast would keep its copy of it."""
    if not (requires_grad and torch.is_grad_enabled()):
        return tensor
    return non_leaves((tensor.detach().requires_grad_(True),))[0]  # noqa: FBT003  # torch's own
