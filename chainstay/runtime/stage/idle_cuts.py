"""Cuts that cost more than they give: the state there is idle.

By the papers' model saved data has its stage's output, as if every backward read it or its
reader's did. Autograd keeps of a state what the graphs on its two sides save, and nothing
else: a normalisation's output in front of an activation function that saves its own, or
what goes into a sum, is *idle*: it is gone once the stage behind has run. A chain cut there seems
to need it until its backward. Joined into one stage, both sides cost what they really do: for good
where the cut is no good place to start again from, otherwise as an option that keeps stages as one,
see `spans`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from chainstay.runtime.devices.kernel_watch import KernelCall, KernelWatch
from chainstay.runtime.stage.chain_stage import ChainStage, fused
from chainstay.runtime.stage.stage_errors import run_stage
from chainstay.runtime.stage.states import State, address_of, detached, state_bytes

_SHARE: Final = 6
"""A cut is given up where at least one part in so many of its state is idle."""


def merge_idle_cuts(
    stages: Sequence[ChainStage], source: State, shared: Sequence[Any] = ()
) -> tuple[ChainStage, ...]:
    """Run the chain once and join stages where much of what passes is saved by nobody.

    A cut whose state is smaller than one beside it stays: it is a good place to start
    again from. So does that in front of the loss, whose state is the caller's.

    Raises:
        UnsupportedModelError: A stage fails on its input, or gives no tensor.
    """
    cuts = list(cuts_of(stages, source, shared))[1:]
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

    What a stage changes in place is its output then. The chain is run once, without the loss.
    """
    cuts = zip(stages, cuts_of(stages, source, shared), strict=True)
    return tuple(0 if stage.effects.changes_input else cut.idle_bytes for stage, cut in cuts)


@dataclass(frozen=True, slots=True)
class Cut:
    """The input of stage `index`."""

    index: int
    bytes: int
    idle_bytes: int  # saved by neither side and not passed on: without the cut soon gone
    is_beside_cheap: bool  # whether a stage in front of it or behind it multiplies no matrices


def cuts_of(stages: Sequence[ChainStage], source: State, shared: Sequence[Any]) -> Iterator[Cut]:
    """Yield every cut, found in one run; only one stage's graph is alive at once."""
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
        yield Cut(index, state_bytes(state), state_bytes(idle), was_cheap or is_cheap)
        kept, was_cheap = (kept | saved) & passed, is_cheap
        state = detached(output)


@dataclass
class _Products(KernelWatch):
    """A look for kernels whose multiplications torch counts: products and convolutions.

    Higher-order operators, such as flexible attention, count as these.
    """

    are_there: bool = False

    def see(self, call: KernelCall) -> None:
        """Look whether it is one of these."""
        packet = getattr(call.kernel, "overloadpacket", None)  # none of a higher-order operator
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
