"""Cuts that cost more than they give: the state there is idle, or cheap to make again.

By the papers' model saved data has its stage's output, as if every backward read it or its
reader's did. Autograd keeps of a state what the graphs on its two sides save, and nothing
else: a normalisation's output in front of an activation function that saves its own, or
what goes into a sum, is *idle*: it is gone once the stage behind has run. A chain cut there seems
to need it until its backward. Joined into one stage, both sides cost what they really do: for good
where the cut is no good place to start again from, otherwise as an option that keeps stages as one.

What an activation function gives is saved, but a stage that multiplies no matrices is *cheap* to
run again: rather than keep the states beside it, options of a span of stages make them again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch
from torch.utils.flop_counter import flop_registry

from chainstay.runtime.devices.kernel_watch import KernelWatch
from chainstay.runtime.stage.chain_stage import ChainStage, fused
from chainstay.runtime.stage.stage_errors import run_stage
from chainstay.runtime.stage.states import State, address_of, detached, state_bytes

_SHARE: Final = 6
"""A cut is given up where at least one part in so many of its state is idle."""
_LONGEST: Final = 16
"""The most stages of a span: of the idle bytes between more, a sixteenth is left."""
_SHORT: Final = 4
"""Stages of a span over cuts beside cheap stages, or twice as many; others gain next to nothing."""

Span: TypeAlias = tuple[int, int]
"""The first and last of stages that are kept as one."""


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


def freed_bytes(
    stages: Sequence[ChainStage], source: State, shared: Sequence[Any]
) -> tuple[int, ...]:
    """Return the bytes of each stage's input that are gone in plain training once it has run.

    The chain is run once, without the loss.
    """
    return tuple(cut.idle_bytes for cut in _cuts(stages, source, shared))


def spans_over_cuts(
    stages: Sequence[ChainStage],
    source: State,
    shared: Sequence[Any],
    known: Sequence[Span],
    least: int,
) -> tuple[Span, ...]:
    """Return the spans that are worth keeping as one: those `known`, and further ones.

    These are over cuts with at least so many idle bytes, and where no short span is, over cuts of
    at least so many bytes beside a cheap stage. The chain is run once.
    """
    cuts = list(_cuts(stages, source, shared))
    least = max(least, 1)
    spans = [*known, *spans_over([cut.idle_bytes >= least for cut in cuts], 2, _LONGEST)]
    short = (span for span in spans if span[1] - span[0] < 2 * _SHORT)
    inside = {stage for first, last in short for stage in range(first, last + 1)}
    is_cheap = [
        cut.is_beside_cheap and cut.bytes >= least and not inside & {cut.index - 1, cut.index}
        for cut in cuts
    ]
    spans += spans_over(is_cheap, _SHORT, 2 * _SHORT)
    return tuple(dict.fromkeys(spans))


def spans_over(is_joined: Sequence[bool], shortest: int, longest: int) -> list[Span]:
    """Return spans of `shortest` stages, of twice as many, and so on, over cuts that are joined.

    Whether the cut in front of a stage is, says `is_joined`. Where a stretch ends, spans are less.

    Example:
        >>> spans_over([False, True, True, True, False, True], 2, 16)
        [(0, 1), (0, 3), (2, 3), (4, 5)]
    """
    spans: set[Span] = set()
    first = 0
    for behind in range(1, len(is_joined) + 1):
        if behind < len(is_joined) and is_joined[behind]:
            continue
        length = shortest
        while length == shortest or (length <= longest and length < 2 * (behind - first)):
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
    is_beside_cheap: bool  # whether a stage in front of it or behind it multiplies no matrices


def _cuts(stages: Sequence[ChainStage], source: State, shared: Sequence[Any]) -> Iterator[_Cut]:
    """Every cut, found in one run; only one stage's graph is alive at once."""
    state, kept = detached(source), set(map(address_of, source))  # the caller keeps that
    was_cheap = False
    for index, stage in enumerate(stages):
        packed, products = list[weakref.ref[torch.Tensor]](), _Products()
        with _watched(packed), products:
            output = run_stage(stage, index, state, shared)
        passed = set(map(address_of, output))
        saved = {address_of(tensor) for known in packed if (tensor := known()) is not None}
        idle = [tensor for tensor in state if address_of(tensor) not in kept | saved | passed]
        is_cheap = not products.are_there
        yield _Cut(index, state_bytes(state), state_bytes(idle), was_cheap or is_cheap)
        kept, was_cheap = (kept | saved) & passed, is_cheap
        state = detached(output)


@dataclass
class _Products(KernelWatch):
    """A look for kernels whose multiplications torch counts: products and convolutions.

    Higher-order operators, such as flexible attention, count as these.
    """

    are_there: bool = False

    def see(self, kernel: Callable[..., Any], result: Any) -> None:  # noqa: ARG002  # of no interest here
        """Look whether it is one of these."""
        packet = getattr(kernel, "overloadpacket", None)  # none of a higher-order operator
        self.are_there |= packet is None or packet in flop_registry


def _watched(packed: list[weakref.ref[torch.Tensor]]) -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which what graphs save goes into `packed`, dead once its graph is.

    The address of what is gone may be that of a later tensor.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.detach()  # itself would be a circle through its node, never to be collected
        if tensor.layout == torch.strided:
            packed.append(weakref.ref(own))
        return own

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
