"""The two ends of a stage that is run alone, as its neighbours in a chain would be.

The stage's input hangs below a node that swallows the input's gradients, its output below
a node that makes the output's gradients, so that both live exactly as long as in the
backward of a whole chain, where a neighbour consumes or produces them. Chains are
probed from the end, so that every stage gets its gradients in the memory layout in which
the stage after it leaves them: a transposed one costs a copy, an expanded one no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from chainstay.runtime.measures.shared_bytes import LeafUses
from chainstay.runtime.stage.states import (
    MemoryLayout,
    State,
    address_of,
    is_among,
    replaced,
    wanting_gradients,
)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The layout in memory of a state's gradients.

    Attributes:
        layouts: One per tensor; ``None`` for a tensor that gets no gradient.
        storages: Equal numbers for gradients that lie in one storage.
        lasting: Those, by index, that others hold until the backward of the state is over, as a
            residual connection around a block does.
        held: Those, by index, of tensors that the caller holds, as the model returns them: one that
            gets no gradient keeps what its part of the graph saved.
    """

    layouts: tuple[MemoryLayout | None, ...]
    storages: tuple[int, ...]
    lasting: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()

    @classmethod
    def of(cls, gradients: tuple[torch.Tensor | None, ...]) -> Gradients:
        """Return the layout of `gradients`."""
        addresses = [
            -1 - index if gradient is None else address_of(gradient)
            for index, gradient in enumerate(gradients)
        ]
        return cls(
            tuple(
                None if gradient is None else MemoryLayout.of(gradient) for gradient in gradients
            ),
            tuple(addresses.index(address) for address in addresses),
        )

    @classmethod
    def usual(cls, state: State, device: torch.device | None = None) -> Gradients:
        """A dense gradient for everything that wants one, by default where that is."""
        layouts = (MemoryLayout.usual(tensor) if tensor.requires_grad else None for tensor in state)
        return cls(
            tuple(
                layout if layout is None or device is None else replace(layout, device=device)
                for layout in layouts
            ),
            tuple(range(len(state))),
        )

    def with_known(self, known: Mapping[int, torch.Tensor | None]) -> Gradients:
        """Return these layouts, but for those of the gradients that are known, by index.

        Gradients that are not plain strided tensors leave the layout that is here.
        """
        layouts, storages = list(self.layouts), list(self.storages)
        first: dict[int, int] = {}
        for index, gradient in known.items():
            if gradient is None:
                layouts[index] = None
            elif type(gradient) is torch.Tensor and gradient.layout == torch.strided:
                layouts[index] = MemoryLayout.of(gradient)
                storages[index] = first.setdefault(address_of(gradient), index)
        return Gradients(tuple(layouts), tuple(storages))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes per tensor, those of a shared storage with the first tensor that lies there."""
        return tuple(
            layout.storage_bytes if layout is not None and storage == index else 0
            for index, (layout, storage) in enumerate(zip(self.layouts, self.storages, strict=True))
        )

    @property
    def allocated_bytes(self) -> int:
        """The bytes that the allocator hands out for all of them."""
        return sum(self.sizes)

    def allocate(self) -> list[torch.Tensor]:
        """Gradients that lie like this, one for each tensor that gets one."""
        owners: dict[int, torch.Tensor] = {}
        made = []
        for layout, storage in zip(self.layouts, self.storages, strict=True):
            if layout is not None:
                if storage not in owners:
                    owners[storage] = layout.allocate_storage()
                made.append(layout.over(owners[storage]))
        return made


def swallow(
    state: State, receive: Callable[[tuple[torch.Tensor | None, ...]], None] | None = None
) -> State:
    """`state` as a stage in mid-chain gets it: no leaves, their gradients go on below.

    What hangs below is an empty leaf: the state itself would be held by the graph. `receive` gets
    the gradients of all tensors before they are forgotten.
    """
    wanting = wanting_gradients(state)
    if not wanting:
        return state
    count = len(state)  # the node, which may outlive the backward, must not hold the state itself

    def receive_all(gradients: tuple[torch.Tensor | None, ...]) -> None:
        if receive is not None:
            known = dict(zip(wanting, gradients, strict=True))
            receive(tuple(known.get(index) for index in range(count)))

    anchor = torch.empty(0, device=state[wanting[0]].device, requires_grad=True)
    tensors = (state[index].detach() for index in wanting)
    passed = _Receiver.apply(receive_all, anchor, *tensors)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return replaced(state, wanting, passed)


def noting(state: State, reached: Callable[[], None]) -> State:
    """`state` as it is; `reached` is called once its gradients have been computed."""
    wanting = wanting_gradients(state)
    if not wanting:
        return state
    passed = _Receiver.apply(lambda _: reached(), None, *(state[index] for index in wanting))  # type: ignore[no-untyped-call]  # torch does not annotate it
    return replaced(state, wanting, passed)


class _Receiver(torch.autograd.Function):
    """Hands tensors on, and gives their gradients to `receive` before it hands them back."""

    @staticmethod
    def forward(
        ctx: Any,
        receive: Callable[[tuple[torch.Tensor | None, ...]], None],
        anchor: torch.Tensor | None,  # noqa: ARG004  # makes outputs want gradients if nothing else does
        *tensors: torch.Tensor,
    ) -> State:
        ctx.receive = receive
        ctx.set_materialize_grads(False)  # what gets no gradient gets no memory
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.receive(gradients)
        return None, None, *gradients


def seeded(
    state: State,
    gradients: Gradients,
    uses: LeafUses | None = None,
    last: torch.Tensor | None = None,
) -> torch.Tensor:
    """A scalar whose backward allocates `gradients` for the state, and for leaves in `uses`.

    `last` is what `waiting_for` gave, if anything is to wait.
    """
    uses = uses or LeafUses()
    wanting = (tensor for tensor, known in zip(state, gradients.layouts, strict=True) if known)
    waits = () if last is None else (last,)
    root: torch.Tensor = _Seed.apply(gradients, uses, *wanting, *uses.behind, *waits)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return root


class _Seed(torch.autograd.Function):
    """Makes gradients when backward reaches it, not before."""

    @staticmethod
    def forward(
        ctx: Any, gradients: Gradients, uses: LeafUses, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.made, ctx.uses, ctx.count = gradients, uses, len(tensors)
        dtype, device = tensors[0].dtype.to_real(), tensors[0].device
        return torch.zeros((), dtype=dtype, device=device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG004  # autograd calls it so; the gradient is 1
        made = ctx.made.allocate()
        wanted = [index for index, layout in enumerate(ctx.made.layouts) if layout is not None]
        # The node lives until the whole backward is over, and what it holds.
        ctx.lasting = [made[wanted.index(index)] for index in ctx.made.lasting]
        for leaf in ctx.uses.behind:
            total = torch.zeros_like(leaf)
            # Autograd adds to a view of something else, as this one is, out of place.
            made.append(total.view_as(total) if is_among(leaf, ctx.uses.copied) else total)
            del total
        return None, None, *made, *(None for _ in range(ctx.count - len(made)))


def waiting_for(leaves: tuple[torch.Tensor, ...], device: torch.device) -> torch.Tensor:
    """A node that has the gradients of `leaves` wait for it, and runs when all others have run.

    That is so for those made after it, if the backward of `seeded` begins at the same time.
    """
    node: torch.Tensor = _Wait.apply(device, *leaves)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return node


class _Wait(torch.autograd.Function):
    """Sends no gradient; whoever sums gradients waits for it all the same."""

    @staticmethod
    def forward(ctx: Any, device: torch.device, *leaves: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(leaves)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:  # noqa: ARG004  # autograd calls it so; there is no gradient
        return None, *(None for _ in range(ctx.count))
