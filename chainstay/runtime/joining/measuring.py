"""From a running join to what its stages cost: each branch and the tail as a chain of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from chainstay.runtime.boundary import Gradients
from chainstay.runtime.caching import signature_of
from chainstay.runtime.costs import ObservedStage, Subject, observe_chain, trace_chain
from chainstay.runtime.joining.account import JoinAccount
from chainstay.runtime.joining.caching import JoinAccountFile
from chainstay.runtime.joining.costs import Seen, account_for_join
from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.joining.staging import (
    StagedJoin,
    Surroundings,
    parts_of,
    staged,
    traits_of_all,
)
from chainstay.runtime.measurement import measuring, require_loss, require_repeats
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.mode import Mode, titled_modules
from chainstay.runtime.progress import progress_bar
from chainstay.runtime.sharing import autocast_copies_bytes
from chainstay.runtime.states import detached, state_bytes

__all__ = ["MeasuredJoin", "measure_join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJoin(StagedJoin):
    """A join and what it costs.

    Attributes:
        account: What the stages cost, the loss included.
    """

    account: JoinAccount

    @classmethod
    def of(cls, stages: StagedJoin, account: JoinAccount) -> MeasuredJoin:
        """`stages`, and what they cost."""
        known = {field.name: getattr(stages, field.name) for field in fields(stages)}
        return cls(account=account, **known)


def measure_join(  # noqa: PLR0913  # all but the join and the call have defaults
    join: ExtractedJoin,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> MeasuredJoin:
    """Measure time and memory of every stage of `join` on a call like its sample.

    Args:
        join: See `chainstay.extract_join`.
        sample_args: Positional arguments of the call.
        sample_kwargs: Keyword arguments, likewise.
        loss: As for `chainstay.fit`.
        repeats: The least number of timed runs of each stage; see `chainstay.measure`.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured, as for `chainstay.fit`.

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
        parts = parts_of(join, Surroundings(detached(given), shared, device, loss, bar))
        file = None if cache is None else _file_of(join, parts, cache)
        account = None if file is None else file.read([len(part.stages) for part in parts])
        if account is not None:
            traits = tuple(traits_of_all(parts))
        else:
            seen = _observed(join, parts, repeats)
            account = _account_of(seen, parts, len(join.branches))
            traits = tuple(
                each.traits for own in seen for each in own.observed if not each.stage.is_loss
            )
            if file is not None:
                file.write(account)
        return MeasuredJoin.of(staged(join, parts, traits), account)


def _observed(join: ExtractedJoin, parts: Sequence[Subject], repeats: int) -> list[Seen]:
    """Time and memory of all stages, part by part."""
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
    return [Seen(*each) for each in zip(observed, memories, strict=True)]


def _account_of(seen: Sequence[Seen], parts: Sequence[Subject], branches: int) -> JoinAccount:
    device, shared = parts[0].device, parts[0].shared
    leaves = [each.leaves for own in seen for each in own.observed]
    autocast = Mode.now((), device).autocast
    return account_for_join(
        seen,
        branches,
        state_bytes(each for each in shared if each.device == device)
        + autocast_copies_bytes(leaves, autocast),
    )


def _file_of(
    join: ExtractedJoin, parts: Sequence[Subject], cache: str | os.PathLike[str]
) -> JoinAccountFile:
    """Where the account is, or will be."""
    stages = [stage for part in parts for stage in part.stages]
    mode = Mode.now(titled_modules(stages), parts[0].device)
    tensors = [id(tensor) for stage in stages for _, _, tensor in stage.tensors()]
    number = {each: index for index, each in enumerate(dict.fromkeys(tensors))}
    lines = [
        f"join of {[len(part.stages) for part in parts]} stages, {join.inputs}, {join.widths}",
        f"tensors {[number[each] for each in tensors]}",
        *(signature_of(part, mode) for part in parts),
    ]
    return JoinAccountFile.of("\n".join(lines), cache)


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
