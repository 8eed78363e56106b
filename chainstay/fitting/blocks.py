"""A model's own forward, its blocks run by a plan: where there is no full graph of the model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

import torch
from torch import nn

from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.fitting.planner import Planner, StageSource, listed_shapes
from chainstay.runtime.capture.blocks.calls import (
    present_checkpoint,
    require_not_checkpointed,
)
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.blocks.entrances import block_handler, open_entrance, run_itself
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.cuts.stage_names import modules_around
from chainstay.runtime.capture.dynamo import MOST_SHAPES, NothingToPlanError
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.compiled_calls import compiler_of
from chainstay.runtime.capture.trials.world import RandomNumbers
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.sharding import is_sharded
from chainstay.runtime.devices.thread_value import ThreadValue
from chainstay.runtime.execute.block_executor import BlockRun, PlannedBlocks
from chainstay.runtime.measures.blocks.around_blocks import UnreachedBlocksError
from chainstay.runtime.measures.blocks.block_costs import blocks_again, find_blocks, peak_around

_MOST_LOOKS: Final = 8
"""How often calls of one kind are planned again because they ran other blocks."""

_MOST_IN_VAIN: Final = 8
"""New numbers or shapes in a row without a new plan, after which such are no longer looked at."""

_MOST_KNOWN: Final = 64
"""Numbers or shapes whose blocks are looked at, for calls that are otherwise alike."""


_Known = TypeVar("_Known")


@dataclass(slots=True)
class _Variants(Generic[_Known]):
    """What is known of calls that differ in one respect only: in shapes or in numbers.

    Attributes:
        known: What is known, by the shapes or the numbers.
        in_vain: How many new ones in a row had blocks that there was a plan for.
        largest: The most elements that the tensors of a call had whose blocks were looked at.
    """

    known: dict[Hashable, _Known] = field(default_factory=dict)
    in_vain: int = 0
    largest: int = 0

    def find(self, key: Hashable, size: int = 0) -> _Known | None:
        """Return what is known for `key`, or of the latest one where new ones do not matter."""
        may_matter = self.in_vain < _MOST_IN_VAIN and len(self.known) < _MOST_KNOWN
        if may_matter or key in self.known or size > self.largest:
            return self.known.get(key)
        return list(self.known.values())[-1]


@dataclass(slots=True)
class _Kind:
    """Calls that look alike from outside."""

    planned: PlannedBlocks | None  # `None` if such calls run plainly
    looks: int = 1  # how often its blocks were looked for
    is_outgrown: bool = False  # a call has run blocks that the plan does not know
    random: RandomNumbers | None = None  # before the call that outgrew the plan, if known
    told: set[Hashable] = field(default_factory=set)  # blocks of calls that people were told of
    looked_at: set[Hashable] = field(default_factory=set)  # those that no plan has all the same


@dataclass(slots=True, eq=False)
class BlockForward:
    """Runs a model's own forward, and its blocks by a plan.

    Attributes:
        planner: Has the settings and the budget.
        device: The model's device.
        reason: Why it goes by blocks, for people.
        graphs: The graphs of its blocks.
        alike: Kinds of calls: by training mode, autocast and the largest tensor, then by all
            shapes, then by numbers.
        known: Plans by the graphs of the blocks.
        peaks: The most bytes that a step took outside of these blocks when they were planned.
        lists: The children of the lists that blocks are in, and of all modules around these, what
            torch.compile has made of them, and forwards of their own, when a plan was made last.
        unreached: Paths of modules that no gradient of the loss reaches.
    """

    planner: Planner
    device: torch.device
    reason: str
    graphs: BlockGraphs = field(init=False)
    alike: dict[Hashable, _Variants[_Variants[_Kind]]] = field(default_factory=dict)
    known: dict[Hashable, PlannedBlocks] = field(default_factory=dict)
    peaks: dict[Hashable, int] = field(default_factory=dict)
    lists: dict[nn.Module, tuple[object, ...]] = field(default_factory=dict)
    unreached: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.graphs = BlockGraphs(self.planner.name, self.device)

    def __call__(self, call: Call, kind: _Kind, *, is_new: bool = False) -> Any:
        """Return the model's output, its blocks run by the plan of its kind, if there is one.

        Args:
            call: The call.
            kind: Its kind, by `known_kind` or `plan_for`.
            is_new: Whether that was found just now, by `plan_for`.
        """
        if kind.planned is None:
            return call()
        run = BlockRun(kind.planned.schedule)
        checked, around = not is_sharded(call.model), present_checkpoint()
        # Where the plan has all modules, no random numbers let a call run more of them.
        may_grow = checked and bool(run.schedule.blocks.uncalled) and kind.looks < _MOST_LOOKS
        before = RandomNumbers.now(self.device) if may_grow else None

        def handler(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            try:
                require_not_checkpointed(around)
                return self.graphs.call(block, (args, kwargs), run.block, checked=checked)
            except UnsupportedModelError:
                run.others += 1
                run.called.append(type(block).__qualname__)
                return run_itself(block, args, kwargs)

        with block_handler.set_to(handler), running.set_to(self):
            output = call()
        run.end()
        if run.others or run.changed or not run.called:
            self._outgrown(call, run, kind, before, is_new=is_new)
        return output

    def use(self, planned: PlannedBlocks) -> None:
        """Go by another plan of the same blocks in place of the one made last."""
        key, before = list(self.known.items())[-1]
        self.known[key] = planned
        for kind in self._kinds():
            if kind.planned is before:
                kind.planned = planned

    def _kinds(self) -> list[_Kind]:
        groups = (numbers for shapes in self.alike.values() for numbers in shapes.known.values())
        return [kind for numbers in groups for kind in numbers.known.values()]

    def open_entrances(self, model: nn.Module) -> None:
        """Let calls of the blocks that there are plans for be run by these, and others be seen."""
        modules, around = dict(model.named_modules()), list[nn.Module]()
        for planned in self.known.values():
            blocks = planned.schedule.blocks
            for name in (*[stage.name for stage in blocks.stages], *blocks.uncalled):
                if name in modules:  # the lists may have been others when that plan was made
                    open_entrance(modules[name])
                around += [modules[path] for path in modules_around(name) if path in modules]
        self.lists = {module: _children(module) for module in around}

    def known_kind(self, call: Call) -> _Kind | None:
        """Return the kind of `call`, if it is known how such a call runs."""
        if any(_children(module) != before for module, before in self.lists.items()):
            for known in self._kinds():
                known.is_outgrown = known.planned is not None
        similar = self.alike.get(self._look_of(call))
        alike = None if similar is None else similar.find(_shapes_of(call), _size_of(call))
        kind = None if alike is None else alike.find(_numbers_of(call))
        return None if kind is None or kind.is_outgrown else kind

    def plan_for(self, call: Call) -> _Kind:
        """Return the kind of `call`, with a plan unless it goes by none."""
        similar = self.alike.setdefault(self._look_of(call), _Variants())
        shapes, size, numbers = _shapes_of(call), _size_of(call), _numbers_of(call)
        alike = similar.find(shapes, size)
        if alike is None:
            alike = similar.known[shapes] = _Variants()
            similar.largest = max(similar.largest, size)
        kind = alike.find(numbers)
        if kind is None and alike.known:
            kind = alike.known[numbers] = self._kind_of_numbers(call, alike)
        elif kind is None:
            plans = len(self.planner.plans)
            kind = alike.known[numbers] = _Kind(self._planned(call, is_new=True))
            is_known = kind.planned is not None and len(self.planner.plans) == plans
            similar.in_vain = similar.in_vain + 1 if is_known else 0
        elif kind.is_outgrown:
            kind.looks += 1
            with suppress(UnsupportedModelError):  # too few blocks: the plan before holds for them
                planned = self._planned(call, is_new=False, random=kind.random)
                if planned is None:
                    kind.looks = _MOST_LOOKS  # blocks that have changed go on running alone
                kind.planned = planned or kind.planned
            kind.is_outgrown = False
            self.open_entrances(call.model)  # the lists as they are now
        return kind

    def _kind_of_numbers(self, call: Call, alike: _Variants[_Kind]) -> _Kind:
        """Return the kind of a call whose numbers are new; its blocks may be others."""
        planned, plans = list(alike.known.values())[-1].planned, len(self.planner.plans)
        if planned is not None:
            with suppress(UnsupportedModelError):  # too few blocks: the plan before holds for them
                planned = self._planned(call, is_new=False) or planned
        alike.in_vain = alike.in_vain + 1 if len(self.planner.plans) == plans else 0
        return _Kind(planned)

    def _planned(
        self, call: Call, *, is_new: bool, random: RandomNumbers | None = None
    ) -> PlannedBlocks | None:
        """Return a plan for the blocks of `call`: a known one, or else a new one.

        With `random`, for those that it would run if the generators were in these states.
        ``None`` if there is nothing to plan, if new shapes run plainly, or if blocks that there was
        a plan for now save more than the budget has room for.
        """
        if is_new and not self.planner.admits(listed_shapes(call.tensors)):
            return None
        host = Host(call, self.device)
        host.random = random or host.random
        while True:
            try:
                return self._planned_blocks(host, is_new=is_new)
            except NothingToPlanError:
                return None
            except UnreachedBlocksError as refusal:  # these run by themselves from now on
                self.unreached += refusal.names

    def _planned_blocks(self, host: Host, *, is_new: bool) -> PlannedBlocks | None:
        """Return a plan for the blocks of a model; see `_planned`.

        Raises:
            NothingToPlanError: Nothing that the model returns has a gradient.
            UnreachedBlocksError: No gradient of the loss reaches some blocks.
        """
        planner, call = self.planner, host.call
        shapes = listed_shapes(call.tensors)
        around = find_blocks(host, self.graphs, self.unreached, may_vary=is_new)
        key = around.chain.key
        known = self.known.get(key)
        # Processes that share parameters would not agree about the bytes.
        peak = 0 if is_sharded(call.model) else peak_around(around)
        if known is not None and peak > self.peaks[key] + known.solution.budget // 100:
            known = None  # its blocks are these, but the model takes more around them
        again = None if known is None else blocks_again(around, known.schedule)
        if known is not None and again is not None:
            self.known[key] = replace(known, schedule=again)
        else:
            try:
                planned = planner.maker.of_blocks(around, is_first=not planner.plans)
            except InfeasibleBudgetError as refusal:
                if known is not None and not is_new:
                    return None
                raise planner.at_shapes(refusal, shapes, self._told(around.chain)) from None
            blocks = planned.schedule.blocks
            first, last = blocks.stages[0].name, blocks.stages[-1].name
            origin = f"by blocks ({first} to {last}){self._reason(blocks)}\n"
            key = blocks.key
            self.known.pop(key, None)  # the plan made last is at the end
            self.known[key], self.peaks[key] = replace(planned, origin=origin), peak
            if len(self.known) > MOST_SHAPES:
                oldest = next(iter(self.known))
                del self.known[oldest], self.peaks[oldest]
                self.alike.clear()
            planner.add(self.known[key], shapes, call, self.device)
        self.open_entrances(call.model)
        return self.known[key]

    def _told(self, blocks: BlockChain) -> str:
        """Return a sentence on why the model has no finer stages; empty if blocks are asked for."""
        if self.planner.settings.by == "blocks" and not blocks.expanded:
            return ""
        reason = self._reason(blocks)
        return (
            f" Its blocks, with what runs around them, are the stages, not its operators{reason}."
        )

    def _reason(self, blocks: BlockChain) -> str:
        """Return why it goes by blocks, and why some of these are expanded."""
        expanded = [
            name if reason in self.reason else f"{name}: {reason}"
            for name, reason in blocks.expanded
        ]
        if not expanded:
            return self.reason
        return f"{self.reason}; some are expanded into the modules inside: {'; '.join(expanded)}"

    def _outgrown(
        self, call: Call, run: BlockRun, kind: _Kind, before: RandomNumbers | None, *, is_new: bool
    ) -> None:
        """A call has run blocks that its plan does not know, or not as they are now, or none.

        Layers may have been left out at random (LayerDrop): with the generators' states `before`
        this call, what is planned next is what it ran, and else what the next call runs.
        """
        blocks = tuple(run.called)
        is_unplanned = bool(run.others) or not blocks
        if is_new and is_unplanned and kind.random is None:
            kind.looked_at.add(blocks)
        may_plan = kind.looks < _MOST_LOOKS and not is_sharded(call.model)
        others = [planned for planned in self.known.values() if planned is not kind.planned]
        known = [planned for planned in others if planned.schedule.blocks.includes(blocks)]
        then = "others like it will, too"
        if known and run.others:
            kind.planned = max(known, key=lambda planned: len(planned.profile))
            then = "the next one goes by the plan for such calls"
        elif may_plan and blocks not in kind.looked_at:
            kind.is_outgrown, kind.random = True, before
            then = "the next one is planned anew"
        if is_unplanned and blocks not in kind.told and len(kind.told) <= _MOST_LOOKS:
            kind.told.add(blocks)
            unknown = f"{run.others} blocks that its plan does not have (or not for such tensors)"
            ran = unknown if blocks else "none of its blocks by the plan"
            self.planner.settings.say(
                f"this call of {self.planner.name} ran {ran}, so it may have needed more than the "
                f"budget; {then}"
            )

    def _look_of(self, call: Call) -> Hashable:
        """Return a key that tells kinds of calls apart before they are made.

        Other shapes are looked at at all times if they are not to be planned, and by processes
        that share parameters, which look together.
        """
        largest = max(call.tensors, key=torch.Tensor.numel, default=None)
        exact = self.planner.settings.on_new_shape != "plan" or is_sharded(call.model)
        return (
            call.model.training,
            isinstance(next(call.model.parameters(), None), nn.Parameter),  # or functional_call's
            any(parameter.requires_grad for parameter in call.model.parameters()),
            Autocast.now(self.device),
            tuple((t.dim(), t.dtype, t.requires_grad) for t in call.tensors),
            _shapes_of(call) if exact or largest is None else str(tuple(largest.shape)),
        )


def _shapes_of(call: Call) -> tuple[str, ...]:
    return tuple([str(tuple(tensor.shape)) for tensor in call.tensors])


def _size_of(call: Call) -> int:
    return sum([tensor.numel() for tensor in call.tensors])


def _numbers_of(call: Call) -> tuple[Hashable, ...]:
    """Return the numbers, texts and flags that tell kinds of calls apart.

    Processes that share parameters look at blocks together, and may be given different ones.
    """
    return () if is_sharded(call.model) else call.numbers


def _children(module: nn.Module) -> tuple[object, ...]:
    """Return the modules right inside of a module, and what was put in the place of their calls."""
    children = tuple(module._modules.values())  # noqa: SLF001  # `children` leaves out doubles, slowly
    own = [vars(child) for child in children if child is not None]
    return children + tuple([calls.get(name) for calls in own for name in _CALLS])


_CALLS: Final = ("_compiled_call_impl", "forward")
"""Attributes by which a module's calls may run something else than its class has."""


def blocks_needed(call: Call, by: StageSource) -> str:
    """Return why a graph of the whole model is not even looked for; empty if it is.

    Raises:
        UnsupportedModelError: A graph is asked for, and there is none.
    """
    reason = ""
    if is_sharded(call.model):
        reason = "its parameters are spread over several processes"
    elif any(compiler_of(module) for module in call.model.modules() if module is not call.model):
        reason = "some of its modules are compiled by torch.compile"
    if reason and by in ("graph", "export"):
        raise UnsupportedModelError(
            f"{type(call.model).__name__} has no graph as a whole, because {reason}; "
            "use by='blocks'"
        )
    return reason or ("as asked for" if by == "blocks" else "")


running: Final = ThreadValue[BlockForward | None](None)
"""Whose model's own forward runs: where it calls the model, that is part of the same call."""


def blocks_for(planner: Planner, call: Call, reason: str) -> BlockForward:
    """Return a forward by blocks, without a plan yet."""
    if planner.settings.memory.is_offload_asked:
        raise UnsupportedModelError(
            f"this {planner.name} cannot be offloaded stage by stage: it goes by blocks "
            f"({reason}); leave offload=True out"
        )
    return BlockForward(planner, call.device, f": {reason}")
