"""From a running join to what its stages cost: each branch and the tail as a chain of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chainstay.runtime.boundary import Gradients
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import ObservedStage, Subject, observe_chain, trace_chain
from chainstay.runtime.environment import Traits
from chainstay.runtime.extracted import LossPart
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.joining.account import JoinAccount
from chainstay.runtime.joining.costs import Seen, account_for_join
from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.losses import own_loss
from chainstay.runtime.measurement import measuring, require_loss, require_repeats
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.merging import merge_idle_cuts
from chainstay.runtime.mode import Mode, titled_modules
from chainstay.runtime.progress import Progress, progress_bar
from chainstay.runtime.sharing import autocast_copies_bytes
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, detached, state_bytes

__all__ = ["MeasuredJoin", "measure_join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJoin:
    """A join and what it costs.

    Attributes:
        chain: All stages, branch by branch and then the tail, the loss excluded.
        lengths: How many of them each branch has.
        widths: How many tensors each branch's last state has.
        inputs: How many tensors each branch's first state has.
        traits: How each stage's forward touches the world.
        sums: Of each parameter or input that is used three times or more, the stages that use
            it (positions in the chain), once per use, in the order in which plain training
            runs them backward.
        account: What the stages cost, the loss included.
    """

    chain: Chain
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    inputs: tuple[int, ...]
    traits: tuple[Traits, ...]
    sums: tuple[tuple[int, ...], ...]
    account: JoinAccount


def measure_join(  # noqa: PLR0913  # all but the join and the call have defaults
    join: ExtractedJoin,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    repeats: int = 5,
    progress: bool = True,
) -> MeasuredJoin:
    """Measure time and memory of every stage of `join` on a call like its sample.

    Args:
        join: See `chainstay.extract_join`.
        sample_args: Positional arguments of the call.
        sample_kwargs: Keyword arguments, likewise.
        loss: As for `chainstay.fit`.
        repeats: The least number of timed runs of each stage; see `chainstay.measure`.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.

    Raises:
        UnsupportedModelError: A stage or the loss fails; the text names it.
        PlanMismatchError: The call is not like the one that was extracted.
        ValueError: `repeats` is no whole number or less than 1.
    """
    require_repeats(repeats)
    require_loss(loss)
    tensors = [*join.model.parameters(), *join.model.buffers(), *sample_args]
    device = next(each.device for each in tensors if isinstance(each, torch.Tensor))
    require_measurable(device)
    modules = list(join.model.modules())
    if isinstance(loss, nn.Module):
        modules += loss.modules()
    with progress_bar(wanted=progress) as bar, measuring(modules, device):
        given, shared = join.begin(sample_args, sample_kwargs or {})
        parts = _parts(join, _Surroundings(detached(given), shared, device, loss, bar))
        return _measured(join, parts, repeats)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    given: State
    shared: State
    device: torch.device
    loss: Callable[[Any], torch.Tensor] | None
    progress: Progress


def _parts(join: ExtractedJoin, around: _Surroundings) -> list[Subject]:
    """The branches and, if there is anything to measure behind them, the tail."""
    subjects = []
    met: State = ()
    for stages, source in zip(join.branches, join.split(around.given), strict=True):
        subjects.append(
            _subject([ChainStage(each.name, (each,)) for each in stages], source, around)
        )
        state = source
        with torch.enable_grad():
            for stage in stages:
                state = detached(stage(state, around.shared))
        met += state
    tail = [ChainStage(each.name, (each,)) for each in join.tail]
    function = around.loss or own_loss(join.tail, join.finish, met, around.shared)
    if function is not None:
        tail.append(ChainStage("loss", (LossPart(join.finish, function),), is_loss=True))
    if tail:
        subjects.append(_subject(tail, met, around))
    return subjects


def _subject(stages: Sequence[ChainStage], source: State, around: _Surroundings) -> Subject:
    return Subject(
        stages=merge_idle_cuts(stages, source, around.shared),
        source=source,
        shared=around.shared,
        device=around.device,
        progress=around.progress,
    )


def _measured(join: ExtractedJoin, parts: Sequence[Subject], repeats: int) -> MeasuredJoin:
    device = parts[0].device
    branches = len(join.branches)
    observed = [observe_chain(part, repeats) for part in parts]
    met: Sequence[Gradients | None] = (None,) * branches
    memories = []
    with _summing(observed):
        for own, part in reversed(list(zip(observed[branches:], parts[branches:], strict=True))):
            memories.append(trace_chain(own, part))
            met = _slices(memories[0][0].input_gradients, join.widths)
        behind = zip(observed[:branches], parts[:branches], met, strict=True)
        memories = [*(trace_chain(own, part, below) for own, part, below in behind), *memories]
    stages = [stage for part in parts for stage in part.stages if not stage.is_loss]
    modules = titled_modules(stages)
    mode = Mode.now(modules, device)
    position = {id(part): index for index, stage in enumerate(stages) for part in stage.parts}
    return MeasuredJoin(
        chain=Chain(
            stages=tuple(stages),
            layouts=tuple(TensorLayout.of(t) for part in parts[:branches] for t in part.source),
            device=device,
            mode=mode,
            modules=modules,
        ),
        lengths=tuple(len(part.stages) for part in parts[:branches]),
        widths=join.widths,
        inputs=tuple(map(len, join.inputs)),
        traits=tuple(each.traits for own in observed for each in own if not each.stage.is_loss),
        sums=tuple(tuple(_positions(stages_of_sum, position)) for stages_of_sum in join.sums),
        account=account_for_join(
            [Seen(*each) for each in zip(observed, memories, strict=True)],
            branches,
            state_bytes(each for each in parts[0].shared if each.device == device)
            + autocast_copies_bytes([s.leaves for own in observed for s in own], mode.autocast),
        ),
    )


@contextmanager
def _summing(observed: Sequence[Sequence[ObservedStage]]) -> Iterator[None]:
    """A gradient of what several stages use takes as much again, as when it is summed."""
    stages = [each for own in observed for each in own]
    uses = Counter(id(leaf) for each in stages for leaf in each.leaves)
    shared = {id(leaf): leaf for each in stages for leaf in each.leaves if uses[id(leaf)] > 1}
    hooks = [leaf.register_hook(lambda gradient: gradient + 0) for leaf in shared.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _positions(stages: Sequence[GraphStage], position: Mapping[int, int]) -> list[int]:
    return [position[id(stage)] for stage in stages]


def _slices(gradients: Gradients, widths: Sequence[int]) -> list[Gradients]:
    """Those of each branch's last state; what two branches share counts for both."""
    slices = []
    start = 0
    for width in widths:
        storages = gradients.storages[start : start + width]
        slices.append(
            Gradients(
                gradients.layouts[start : start + width],
                tuple(storages.index(storage) for storage in storages),
            )
        )
        start += width
    return slices
