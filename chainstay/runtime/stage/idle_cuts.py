"""Cuts that cost more than they give: the state there is saved by neither side.

By the papers' model saved data has its stage's output, as if every backward read it or its
reader's did. Autograd keeps of a state what the graphs on its two sides save, and nothing
else: a normalisation's output in front of an activation function that saves its own, or
what goes into a sum, is gone once the stage behind has run. A chain cut there seems to need
it until its backward. Joined into one stage, both sides cost what they really do: for good where
the cut is no good place to start again from, otherwise as an option that keeps stages as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch

from chainstay.runtime.stage.chain_stage import ChainStage, fused
from chainstay.runtime.stage.stage_errors import run_stage
from chainstay.runtime.stage.states import State, address_of, detached, state_bytes

_SHARE: Final = 6
"""A cut is given up where at least one part in so many of its state is idle."""
_LONGEST: Final = 16
"""The most stages of a span: of the idle bytes between more, a sixteenth is left."""


def merge_idle_cuts(
    stages: Sequence[ChainStage], source: State, shared: Sequence[Any] = ()
) -> tuple[ChainStage, ...]:
    """Run the chain once and join stages where much of what passes is saved by nobody.

    A cut whose state is smaller than one beside it stays: it is a good place to start
    again from. So does that in front of the loss, whose state is the caller's.

    Raises:
        UnsupportedModelError: A stage fails on its input, or gives no tensor.
    """
    cuts = list(_cuts(stages, source, shared))[1:]
    groups = [stages[0]]
    before = state_bytes(source)
    for cut, behind in pairwise([*cuts, None]):
        assert cut is not None, "only the last one is followed by nothing"
        stage = stages[cut.index]
        after = behind.bytes if behind else 0
        is_idle = cut.idle_bytes * _SHARE >= cut.bytes > 0
        if is_idle and not stage.is_loss and cut.bytes >= max(before, after):
            groups[-1] = fused([groups[-1], stage])
        else:
            groups.append(stage)
            before = cut.bytes
    return tuple(groups)


def idle_bytes(
    stages: Sequence[ChainStage], source: State, shared: Sequence[Any] = ()
) -> list[int]:
    """Return the bytes of each stage's input that are saved by neither side and not passed on.

    The chain is run once, and arguments are as for `merge_idle_cuts`.
    """
    return [cut.idle_bytes for cut in _cuts(stages, source, shared)]


def spans_over_idle_cuts(idle: Sequence[int], least: int) -> list[tuple[int, int]]:
    """Return the first and last of two, four, eight ... stages that are worth keeping as one.

    `idle` is as `idle_bytes` gives it; from `least` idle bytes on, a cut counts.

    Example:
        >>> spans_over_idle_cuts([0, 9, 9, 9, 0, 9], 1)
        [(0, 1), (0, 3), (2, 3), (4, 5)]
    """
    spans: set[tuple[int, int]] = set()
    first = 0
    for behind in range(1, len(idle) + 1):
        if behind < len(idle) and idle[behind] >= max(least, 1):
            continue
        length = 2
        while length <= _LONGEST and length < 2 * (behind - first):
            starts = range(first, behind - 1, length)
            spans.update((start, min(start + length, behind) - 1) for start in starts)
            length *= 2
        first = behind
    return sorted(spans)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The input of stage `index`."""

    index: int
    bytes: int
    idle_bytes: int  # saved by neither side and not passed on: without the cut soon gone


def _cuts(stages: Sequence[ChainStage], source: State, shared: Sequence[Any]) -> Iterator[_Cut]:
    """Every cut, found in one run; only one stage's graph is alive at once."""
    state, kept = detached(source), set(map(address_of, source))  # the caller keeps that
    for index, stage in enumerate(stages):
        saved = set[int]()
        with _watched(saved):
            output = run_stage(stage, index, state, shared)
        passed = set(map(address_of, output))
        idle = [tensor for tensor in state if address_of(tensor) not in kept | saved | passed]
        yield _Cut(index, state_bytes(state), state_bytes(idle))
        kept = (kept | saved) & passed
        state = detached(output)


def _watched(saved: set[int]) -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which the addresses of what graphs save go into `saved`."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:
            saved.add(address_of(tensor))
        return tensor.detach()  # itself would be a circle through its node, never to be collected

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
