"""The options of a stage: ways to keep less than autograd saves, and make the rest again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.execute.environment import Settings, in_mid_chain
from chainstay.runtime.execute.handles import (
    OffloadPolicy,
    is_parameter,
    refuse_backward,
    unpack,
)
from chainstay.runtime.options.front import pareto_front, thinned
from chainstay.runtime.options.front_hull import convex_front
from chainstay.runtime.options.generator import generate, groups_of, hooked_packs, is_recorded
from chainstay.runtime.options.graph import StageGraph
from chainstay.runtime.options.option_code import OptionCode
from chainstay.runtime.options.replay import OptionPack, OptionRun, ReplayHandle
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.states import MemoryLayout, State, bytes_of, detached

_RUN_TIME: Final = 100_000
"""What a run with an option takes besides its operators, in ns (measured, one thread).

It is that much behind large tensors, which leave nothing of the interpreter in the caches.
"""
_PACK_TIME: Final = 6_000
"""What hooks around a tensor that is saved take in forward and backward, dropped or not."""
_HOOK_TIME: Final = 2_000
"""What setting hooks and taking them away takes."""
_GROUP_TIME: Final = 80_000
"""What a replay takes besides its operators, in ns as all of these."""
_RECORDING_TIME: Final = 75_000
"""What a replay that autograd records takes more."""
_CORNERS: Final = 4
"""Corners of the hull of a front: keeping everything, and steady options."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One way to keep a stage, or several as one.

    Attributes:
        name: What it drops, for people.
        saved_bytes: The bytes that are held between forward and backward, the stage's output
            included, its input left out.
        replay_time: What its backward takes more than one that has everything, in ns; added up
            from the times of its operators.
        selection: What it keeps and what it makes again.
        code: What runs it.
        stages: How many stages of a chain it keeps together.
        is_steady: Whether it is found whatever time operators take: budgets for which there is a
            plan now can rely on it when times are measured again.
    """

    name: str
    saved_bytes: int
    replay_time: int
    selection: Selection
    code: OptionCode
    stages: int = 1
    is_steady: bool = False

    def for_stage(self, stage: ChainStage) -> Option | None:
        """Return the same option of a stage that does the same with parameters of its own."""
        if stage.parts == self.code.graph.stage.parts:
            return self
        graph = self.code.graph.for_stage(stage)
        if graph is None:
            return None
        option = option_of(graph, self.selection)
        return replace(option, stages=self.stages, is_steady=self.is_steady)

    def __deepcopy__(self, memo: dict[int, Any]) -> Option:
        """Make the option anew for a copy of its stage: copied nodes would copy their arguments.

        Those of a span are more than Python's stack can hold.
        """
        option = self.for_stage(copy.deepcopy(self.code.graph.stage, memo))
        assert option is not None, "a copy of a stage does the same"
        return option


def stage_options(
    graph: StageGraph,
    given: tuple[State, Sequence[Any]],
    most: int = 8,
    *,
    is_large: bool = False,
    is_checked: bool = True,
) -> list[Option]:
    """Return keeping everything, at most `most` other options of a stage, and the steady ones.

    A stage that `is_large` takes long to run: only one of its options is steady. The last option
    keeps the fewest bytes. Call it inside `measuring`: the stage is run once or more, to check
    that what options make again is what was saved.
    """
    corners = list(_steady_selections(graph))[-1 if is_large else 0 :]
    steady = {(choice.replayed, choice.redrawn): choice for choice in corners}
    front = thinned(selections_of(graph), most + 1)
    others = (choice for choice in front if (choice.replayed, choice.redrawn) not in steady)
    options = [option_of(graph, choice) for choice in others]
    options += [replace(option_of(graph, choice), is_steady=True) for choice in steady.values()]
    options.sort(key=lambda option: option.saved_bytes, reverse=True)
    if not is_checked:
        return options
    if options and _replays_all(options) and admitted(options[-1], given):
        return options  # what the last one makes again, others start from or make again as well
    return [option for option in options if admitted(option, given)]


def _with_hooks(graph: StageGraph, selection: Selection) -> Selection:
    """Return the selection with the runtime's own work in its time."""
    groups = groups_of(graph, selection)
    if not groups:
        return selection
    hooked = hooked_packs(graph, selection)
    hooks = _HOOK_TIME * len(hooked) + _PACK_TIME * sum(map(len, hooked))
    recorded = sum(is_recorded(graph, group, selection) for group in groups)
    own = _RUN_TIME + hooks + _GROUP_TIME * len(groups) + _RECORDING_TIME * recorded
    return replace(selection, replay_time=selection.replay_time + own)


def _replays_all(options: Sequence[Option]) -> bool:
    """Whether the last option runs every operator again that any of them does."""
    last = options[-1].selection
    return all(
        option.selection.replayed <= last.replayed and not option.selection.redrawn
        for option in options
    )


def selections_of(graph: StageGraph) -> list[Selection]:
    """Return the front of a stage, the runtime's own work in its times."""
    front: list[Selection] = []
    for choice in pareto_front(graph.operators):
        selection = _with_hooks(graph, choice)
        while front and front[-1].replay_time >= selection.replay_time:
            front.pop()  # more bytes, and no less time
        front.append(selection)
    return front


def _steady_selections(graph: StageGraph) -> Iterator[Selection]:
    """Yield corners of the front's convex hull, as if all operators took the same time.

    They are found whatever times are measured. The last keeps the fewest bytes.
    """
    for choice in convex_front([replace(op, time=1) for op in graph.operators], _CORNERS):
        again = sorted(choice.replayed | choice.redrawn)
        time = sum(graph.operators[place].time for place in again)
        if choice.drops:
            yield _with_hooks(graph, replace(choice, replay_time=time))


def option_of(graph: StageGraph, selection: Selection) -> Option:
    """Return the option that keeps what `selection` says."""
    code = generate(graph, selection)
    dropped = [
        pack.operator
        for pack in graph.packs
        if pack.operator is not None and pack.is_dropped(selection.replayed, selection.redrawn)
    ]
    names = dict.fromkeys(graph.steps[operator].name for operator in sorted(dropped))
    return Option(
        name=f"drops {', '.join(names)}" if names else "keeps everything",
        saved_bytes=graph.fixed_bytes + selection.kept_bytes,
        replay_time=selection.replay_time,
        selection=selection,
        code=code,
    )


def run_option(
    run: OptionRun, state: State, stage: int, policy: OffloadPolicy | None = None
) -> State:
    """Run the forward of a stage with an option, the first of a step; return the next state."""
    pack = OptionPack(run, stage, policy)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    try:
        if policy is None:
            run.hooks = hooks
            output = run.forward(state)
        else:
            with hooks:  # what the option keeps may move
                output = run.forward(state)
        run.close(state, policy)
    finally:
        run.unhook_all()
        pack.close()
    return output


@dataclass(frozen=True, slots=True, eq=False)
class OptionPart:
    """A stage that is always run with an option; a `chain_stage.Part`, to be probed and timed."""

    option: Option

    @property
    def stage(self) -> ChainStage:
        """The stage itself."""
        return self.option.code.graph.stage

    @property
    def text(self) -> str:
        """A text of the computation, for a digest."""
        return "\n".join([self.option.name, *(part.text for part in self.stage.parts)])

    @property
    def effects(self) -> Effects:
        """The effects of the stage."""
        return self.stage.effects

    def __call__(self, state: State, shared: Sequence[Any]) -> State:
        """The next state; see `Part`."""
        if not self.option.selection.drops:
            return self.stage(state, shared)
        run = _sample_run(self.option, shared)
        return run_option(run, state, 0)


def admitted(option: Option, given: tuple[State, Sequence[Any]]) -> bool:
    """Whether replays give what a forward saves on this sample; call it inside `measuring`.

    Bit for bit: kernels that do not always add in the same order do not, for instance.
    """
    state, shared = given
    stage = option.code.graph.stage
    run = _sample_run(option, shared)
    saved: list[tuple[torch.Tensor, ReplayHandle]] = []

    def pack(tensor: torch.Tensor) -> None:
        if not is_parameter(tensor) and (handle := run.packed(tensor)) is not None:
            saved.append((tensor.detach(), handle))

    state = in_mid_chain(stage, detached(state))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, refuse_backward):
        output = run.forward(state)
    try:
        run.close(state)
        return all(_is_same(tensor, handle.restored()) for tensor, handle in saved)
    except (PlanMismatchError, RuntimeError, KeyError):
        return False  # a replay that fails here would fail in training
    finally:
        del output


def _sample_run(option: Option, shared: Sequence[Any]) -> OptionRun:
    names = ("an input of the model",) * len(shared)
    return OptionRun(option.code, shared, names, Settings.now(option.code.graph.device))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if MemoryLayout.of(one) != MemoryLayout.of(other):
        return False
    return torch.equal(bytes_of(one), bytes_of(other))
