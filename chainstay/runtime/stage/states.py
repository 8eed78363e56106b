"""States that stages pass on: tuples of tensors, and where these lie in memory.

A tensor that a stage does not touch passes through as the same object, so that states which
share it hold its memory once. Tensors may also lie in one storage; copies keep that so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from chainstay.errors import PlanMismatchError
from chainstay.runtime.devices.memory import allocated_bytes

_alias: Final = torch.ops.aten.alias.default

State = tuple[torch.Tensor, ...]
"""All that a stage needs from the stages before it."""


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Size and place of a tensor in its storage; values play no part.

    Attributes:
        size: The size of the tensor, per dimension.
        stride: The stride of the tensor, per dimension.
        offset: Elements of the storage in front of it.
        storage_bytes: The bytes of the whole storage.
        dtype: The type of its elements.
        device: The device of the storage.
        is_conjugate: The tensor reads as the conjugate of what lies there.
        is_negative: Whether it reads its storage as the negative.
    """

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    storage_bytes: int
    dtype: torch.dtype
    device: torch.device
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemoryLayout:
        """The layout of `tensor`."""
        return cls(
            size=tensor.size(),
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
            storage_bytes=tensor.untyped_storage().nbytes(),
            dtype=tensor.dtype,
            device=tensor.device,
            is_conjugate=tensor.is_conj(),
            is_negative=tensor.is_neg(),
        )

    def is_that_of(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lies like this."""
        return (
            tensor.shape == self.size
            and tensor.stride() == self.stride
            and tensor.dtype is self.dtype
            and tensor.untyped_storage().nbytes() == self.storage_bytes
            and tensor.storage_offset() == self.offset
            and tensor.device == self.device
            and tensor.is_conj() is self.is_conjugate
            and tensor.is_neg() is self.is_negative
        )

    @classmethod
    def usual(cls, tensor: torch.Tensor) -> MemoryLayout:
        """Dense, in the order of the tensor's own dimensions in memory."""
        like = torch.empty_like(tensor, device="meta")
        return replace(cls.of(like), device=tensor.device)

    def is_same_place(self, other: MemoryLayout) -> bool:
        """Whether every element lies where it does in `other`: a dimension of one has no steps."""
        strides = zip(self.size, self.stride, other.stride, strict=False)
        return replace(self, stride=other.stride) == other and all(
            size == 1 or mine == theirs for size, mine, theirs in strides
        )

    def __str__(self) -> str:
        return (
            f"{tuple(self.size)} {self.dtype} with stride {self.stride}, {self.offset} elements "
            f"into {self.storage_bytes} bytes"
        )

    def allocate_storage(self) -> torch.Tensor:
        """Memory for it, all ones."""
        elements = self.storage_bytes // self.dtype.itemsize
        return torch.ones(elements, dtype=self.dtype, device=self.device)

    def over(self, owner: torch.Tensor) -> torch.Tensor:
        """A tensor that lies like this in the storage of `owner`."""
        tensor = torch.empty(0, dtype=self.dtype, device=owner.device)
        tensor.set_(owner.untyped_storage(), self.offset, self.size, self.stride)
        if self.is_conjugate:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_negative else tensor  # noqa: SLF001  # no public way


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return all tensors in nested tuples, lists and dicts, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def detached(state: State) -> State:
    """The same memory without the graph that made it, wanting gradients as before."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in state)


def non_leaves(state: State) -> State:
    """The same memory as a stage in mid-chain gets it: autocast keeps its copies of leaves.

    Strides stay, those of dimensions of one too, by which kernels are chosen; views change these.
    """
    return tuple(_alias(tensor) if tensor.requires_grad else tensor for tensor in state)


def changeable(state: State, values: State) -> State:
    """Return `values` in place of `state`, as a stage in mid-chain gets them: to be changed."""
    wanting = wanting_gradients(state)
    given = tuple(values[index] for index in wanting)
    made = _Changeable.apply(given, *(state[index] for index in wanting))  # type: ignore[no-untyped-call]  # torch does not annotate it
    return replaced(values, wanting, made)


def wanting_gradients(state: State) -> tuple[int, ...]:
    """Return the positions of the tensors that want gradients."""
    return tuple([index for index, tensor in enumerate(state) if tensor.requires_grad])


def replaced(state: State, positions: Sequence[int], tensors: Iterable[torch.Tensor]) -> State:
    """Return a state with other tensors at these positions."""
    known = dict(zip(positions, tensors, strict=True))
    return tuple([known.get(index, tensor) for index, tensor in enumerate(state)])


class _Changeable(torch.autograd.Function):
    """Hands gradients on. Its results are neither leaves nor views of leaves."""

    @staticmethod
    def forward(ctx: Any, values: State, *state: torch.Tensor) -> State:  # noqa: ARG004  # autograd calls it so
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG004  # autograd calls it so
        return None, *gradients


def version_of(tensor: torch.Tensor) -> int:
    """Return how often `tensor` was changed in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  # documented


def changed_in_place_error(what: str, needed_by: str = "") -> PlanMismatchError:
    """Return the error for a tensor that is not what it was in the forward."""
    needed = f", but {needed_by} needs it again" if needed_by else ""
    return PlanMismatchError(
        f"{what} was changed in place between forward and backward{needed}; change a clone of it, "
        "or run the backward first"
    )


def never_recomputed_error(stage: str) -> PlanMismatchError:
    """Return the error for what a stage saved and a failed recomputation did not make again."""
    return PlanMismatchError(
        f"what {stage} saved was not recomputed, because an earlier recomputation failed; run the "
        "forward again"
    )


def layouts_of(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return how tensors lie in memory, equal numbers for those in one storage; numbers as such."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return tuple(
        (
            MemoryLayout.of(value) if value.layout == torch.strided else value.layout,
            storages.setdefault(address_of(value), len(storages)),
            objects.setdefault(id(value), len(objects)),
            value.requires_grad,
            type(value),
            isinstance(value, torch.nn.Parameter),
        )
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for value in values
    )


def devices_of(state: State) -> tuple[torch.device, ...]:
    """Return where each tensor is: some may be on the host of the model's device."""
    return tuple(tensor.device for tensor in state)


def copied(state: State, devices: Iterable[torch.device] | None = None) -> State:
    """Return a state with the same values in memory of its own, on `devices` or where it is.

    Tensors that share memory share that of the copy.
    """
    owners: dict[int, torch.Tensor] = {}
    copies = []
    for tensor, device in zip(state, devices or devices_of(state), strict=True):
        address = address_of(tensor)
        if address in owners:
            copy = MemoryLayout.of(tensor).over(owners[address])
        else:
            copy = owners[address] = _copy_with_storage(tensor, device)
        copies.append(copy.requires_grad_(tensor.requires_grad))
    return tuple(copies)


def _copy_with_storage(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy that lies in one of the whole storage; most tensors fill theirs, as buffers."""
    is_plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if is_plain and tensor.nbytes == tensor.untyped_storage().nbytes():
        return tensor.detach().to(device, copy=True)
    return MemoryLayout.of(tensor).over(whole_storage(tensor).to(device, copy=True))


def cut(state: State, widths: Iterable[int]) -> tuple[State, ...]:
    """Parts of `state`, each so many tensors wide."""
    ends = accumulate(widths, initial=0)
    return tuple(state[start:end] for start, end in pairwise(ends))


def state_bytes(state: Iterable[torch.Tensor]) -> int:
    """Return the bytes that the allocator hands out, every storage counted once."""
    parts = (part for tensor in state for part in _with_storage(tensor))
    return sum({address_of(part): allocated_bytes(part) for part in parts}.values())


def _with_storage(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor, or those that a sparse one consists of."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()  # noqa: SLF001  # the public ones want it coalesced
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def address_of(tensor: torch.Tensor) -> int:
    """Tells the storage of `tensor` from others, as long as somebody holds it."""
    storage = _with_storage(tensor)[-1].untyped_storage()
    if not isinstance(tensor, FakeTensor):
        return storage.data_ptr()
    address: int = storage._cdata  # noqa: SLF001  # of the storage itself: it has no memory
    return address


def nodes_below(outputs: Iterable[torch.Tensor], oldest: int = 0) -> list[Any]:
    """Return the nodes of the autograd graph of `outputs`, in a fixed order.

    Those that are older than number `oldest` are left out, and what is below them.
    """
    found: dict[Any, None] = {}
    pending: list[Any] = [tensor.grad_fn for tensor in outputs]
    for node in pending:  # grows meanwhile
        if node is None or node in found or node._sequence_nr() < oldest:  # noqa: SLF001  # no public way
            continue
        found[node] = None
        pending += [below for below, _ in node.next_functions]
    return list(found)


def variables_below(outputs: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the leaves that this graph sends gradients to, by identity."""
    found = (getattr(node, "variable", None) for node in nodes_below(outputs))
    return {id(leaf): leaf for leaf in found if leaf is not None}


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are alike bit for bit, as far as numbers tell: NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()  # noqa: PLR0124  # NaN
    )


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a strided tensor as bytes, row by row: shape (bytes,).

    A tensor of one number is contiguous whatever its stride, which `view` does not accept.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def sums_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sums over rows and columns of a strided tensor's bytes in a square, as int64.

    They are where the tensor is, and few: about twice the root of its bytes.
    """
    flat = bytes_of(tensor)
    width = max(isqrt(len(flat)), 1)
    inside = len(flat) // width * width
    square = flat[:inside].view(-1, width)
    return torch.cat([square.sum(0), square.sum(1), flat[inside:]])


def is_among(tensor: torch.Tensor, state: State) -> bool:
    """Whether `tensor` is one of the objects in `state`."""
    return any(tensor is other for other in state)


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes behind `tensor`, in the same memory."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())
