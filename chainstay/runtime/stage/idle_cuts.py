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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

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


class FreedBytes(NamedTuple):
    """Bytes of a stage's input that are gone in plain training.

    Attributes:
        after_run: Those that are gone once it has run, as no backward reads them.
        before_backward: Those that it passes on, and that are gone when its backward begins: only
            stages behind it save them, or none.
    """

    after_run: int
    before_backward: int


def freed_bytes(
    stages: Sequence[ChainStage], source: State, shared: Sequence[Any]
) -> tuple[FreedBytes, ...]:
    """Return what is gone in plain training of each stage's input; `source` and the output stay.

    What a stage changes in place is its output then. Views of weights count, too: a stage is probed
    on a copy of its input, so that they are in its overheads. The chain is run once, without the
    loss.
    """
    cuts = list(cuts_of(stages, source, shared))
    held = cuts[-1].passed if cuts else frozenset[int]()
    return tuple(
        FreedBytes(0, 0)
        if stage.effects.changes_input
        else FreedBytes(
            cut.idle_bytes, sum(size for key, size in cut.unsaved.items() if key not in held)
        )
        for stage, cut in zip(stages, cuts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """The input of stage `index`.

    Attributes:
        index: The stage.
        bytes: All of it.
        idle_bytes: What is saved by neither side and not passed on: without the cut soon gone.
        is_beside_cheap: Whether a stage in front of it or behind it multiplies no matrices.
        passed: Addresses of the stage's output.
        unsaved: Bytes of what is passed on, and saved by no stage so far, by address.
    """

    index: int
    bytes: int
    idle_bytes: int
    is_beside_cheap: bool
    passed: frozenset[int]
    unsaved: Mapping[int, int]


def cuts_of(stages: Sequence[ChainStage], source: State, shared: Sequence[Any]) -> Iterator[Cut]:
    """Yield every cut, found in one run; only one stage's graph is alive at once."""
    state, kept = detached(source), set(map(address_of, source))  # the caller keeps that
    was_cheap = False
    for index, stage in enumerate(stages):
        packed, products = list[weakref.ref[torch.Tensor]](), _Products()
        with _watched(packed), products:
            output = run_stage(stage, index, state, shared)
        passed = frozenset(map(address_of, output))
        saved = {address_of(tensor) for known in packed if (tensor := known()) is not None}
        unsaved = [tensor for tensor in state if address_of(tensor) not in kept | saved]
        idle = [tensor for tensor in unsaved if address_of(tensor) not in passed]
        is_cheap = not products.are_there
        yield Cut(
            index=index,
            bytes=state_bytes(state),
            idle_bytes=state_bytes(idle),
            is_beside_cheap=was_cheap or is_cheap,
            passed=passed,
            unsaved={address_of(t): state_bytes((t,)) for t in unsaved if address_of(t) in passed},
        )
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
