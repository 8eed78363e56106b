"""Handles in the autograd graph, in place of the tensors that a stage saves.

=========  ===================================  =======================================
pack hook  of                                   leaves in the graph
=========  ===================================  =======================================
`Dropped`  a first run whose saved data goes    a handle for every tensor
`Kept`     a first run whose saved data stays,  the tensors, and a handle for each that
           while its input may go               lies in the input's storage
                                                or may go to the host
`Capture`  a recomputation                      nothing; it fills the handles of the
                                                first run
=========  ===================================  =======================================

The graph keeps a first run's pack hook, so it must hold no tensor itself.

A stage often saves its input: whole, reshaped, or a part of it. When the input may go before
the stage's backward, such a tensor must not hold it. It is remembered as the place where it
lies in the input's storage (`_Alias`), and laid over the input again once that has been made anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.stage.states import (
    MemoryLayout,
    State,
    address_of,
    changed_in_place_error,
    never_recomputed_error,
    version_of,
)

_BE_DETERMINISTIC: Final = "a stage must do the same each time it runs on the same input"


class CapturedEverythingError(BaseException):
    """Ends a recomputation whose remaining work nobody needs; no ``except Exception`` sees it."""


class Absent(Protocol):
    """A tensor that may be away."""

    def restored(self) -> torch.Tensor:
        """The tensor, brought back if need be."""
        ...


class OffloadPolicy(Protocol):
    """Knows which tensors may go away."""

    def stand_in(self, tensor: torch.Tensor) -> Absent | None:
        """Return the stand-in for `tensor`, or ``None`` if it has to stay."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a running stage, told apart from other tensors without holding it.

    Attributes:
        addresses: The addresses of its tensors' storages; good as long as somebody else holds the
            input.
        layouts: How its tensors lie there.
    """

    addresses: tuple[int, ...]
    layouts: tuple[MemoryLayout, ...]

    @classmethod
    def of(cls, state: State) -> Source:
        """Return the source that `state` is."""
        return cls(tuple(map(address_of, state)), tuple(map(MemoryLayout.of, state)))

    def alias(self, tensor: torch.Tensor) -> _Alias | None:
        """Return the place of `tensor` in the input's storages, or ``None`` if it is not there."""
        if tensor.layout != torch.strided or address_of(tensor) not in self.addresses:
            return None
        position = self.addresses.index(address_of(tensor))
        return _Alias(position, self.layouts[position], MemoryLayout.of(tensor))


@dataclass(frozen=True, slots=True)
class _Alias:
    """A tensor that shares its storage with one in a stage's input.

    Attributes:
        position: The position of that tensor in the input.
        source: How that lies in the storage.
        place: How the other one does.
    """

    position: int
    source: MemoryLayout
    place: MemoryLayout

    def over(self, state: State) -> torch.Tensor:
        """The same tensor in the storage of the input made anew.

        Raises:
            PlanMismatchError: `state` does not lie in memory as the first input did.
        """
        owner = state[self.position]
        present = MemoryLayout.of(owner)
        if not present.is_same_place(self.source):
            raise PlanMismatchError(
                f"an input {self.source} is {present} when made anew; {_BE_DETERMINISTIC}"
            )
        return self.place.over(owner)


class _Handle:
    """Stands in the graph for a tensor that was dropped, and holds it once it is back."""

    __slots__ = ("__weakref__", "alias", "dtype", "prepare", "shape", "stage", "tensor")

    def __init__(self, stage: int, prepare: Callable[[], None], tensor: torch.Tensor) -> None:
        self.stage = stage
        self.prepare = prepare
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.tensor: torch.Tensor | Absent | None = None
        self.alias: _Alias | None = None

    def restored(self) -> torch.Tensor:
        """The tensor, made again if need be.

        Raises:
            PlanMismatchError: It could not be.
        """
        if self.tensor is None:
            self.prepare()
        if self.tensor is None:
            raise never_recomputed_error(f"stage {self.stage}")
        return unpack(self.tensor)


@dataclass(slots=True)
class Handles:
    """The handles of one stage's first run, in the order of saving.

    Those that have died belong to parts of the graph that nobody can reach any more.
    """

    references: list[weakref.ref[_Handle]] = field(default_factory=list)

    @classmethod
    def of(cls, several: Sequence[Handles]) -> Handles:
        """Return the handles of stages that are run again as one."""
        if len(several) == 1:
            return several[0]
        return cls([reference for handles in several for reference in handles.references])

    def add(self, handle: _Handle) -> _Handle:
        """Know `handle` from now on, without holding it."""
        self.references.append(weakref.ref(handle))
        return handle

    def __getitem__(self, index: int) -> _Handle | None:
        return self.references[index]()

    @property
    def needed(self) -> int:
        """The number of tensors to save again until the last living handle has its own."""
        alive = (index for index, known in enumerate(self.references) if known() is not None)
        return max(alive, default=-1) + 1

    def lay_over(self, state: State) -> None:
        """Give the stage's input, made anew, to the handles that lie in it."""
        for reference in self.references:
            handle = reference()
            if handle is not None and handle.alias is not None:
                handle.tensor = handle.alias.over(state)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Pack hook of a first run whose saved data is dropped."""

    stage: int
    prepare: Callable[[], None]
    handles: Handles

    def __call__(self, tensor: torch.Tensor) -> object:
        """A handle; parameters stay."""
        if is_parameter(tensor):
            return tensor
        return self.handles.add(_Handle(self.stage, self.prepare, tensor))


@dataclass(frozen=True, slots=True)
class Kept:
    """Pack hook of a first run whose saved data stays, while its input goes."""

    stage: int
    prepare: Callable[[], None]
    handles: Handles
    source: Source
    policy: OffloadPolicy | None

    def __call__(self, tensor: torch.Tensor) -> object:
        """A handle if the tensor lies in the input, or may go away; others stay."""
        alias = self.source.alias(tensor)
        stand_in = None if alias or self.policy is None else self.policy.stand_in(tensor)
        if alias is None and stand_in is None:
            return Staying.of(self.stage, tensor)
        handle = self.handles.add(_Handle(self.stage, self.prepare, tensor))
        handle.alias, handle.tensor = alias, stand_in
        return handle


@dataclass(slots=True)
class Capture:
    """Pack hook of a recomputation: gives the tensors to the handles of the first run.

    Attributes:
        stage: Which runs again.
        handles: The handles of its first run; empty if nothing is to be captured.
        released: The input, if the captured tensors must not hold it.
        stops_when_done: Nobody needs the output.
        policy: Knows which tensors may go away.
        stand_in: Under an option, gives the stand-in for what autograd saves next, if it is made
            again later; see `chainstay.runtime.options`.
    """

    stage: int
    handles: Handles
    released: Source | None
    stops_when_done: bool
    policy: OffloadPolicy | None = None
    stand_in: Callable[[torch.Tensor], Absent | None] | None = None
    packed: int = 0
    needed: int = 0

    def __post_init__(self) -> None:
        self.needed = self.handles.needed

    @property
    def is_done(self) -> bool:
        """Whether every living handle has its tensor."""
        return self.packed >= self.needed

    def __call__(self, tensor: torch.Tensor) -> object:
        """Fill the next handle; parameters have none.

        Raises:
            CapturedEverythingError: Every handle is filled, and nobody needs the rest.
        """
        if is_parameter(tensor):
            return tensor
        absent = None if self.stand_in is None else self.stand_in(tensor)
        if not self.is_done:
            if (handle := self.handles[self.packed]) is not None:
                self._fill(handle, tensor, absent)
            self.packed += 1
        if self.is_done and self.stops_when_done:
            raise CapturedEverythingError
        return None

    def require_done(self) -> None:
        """Refuse a recomputation that saved less than the first run did."""
        if not self.is_done:
            raise PlanMismatchError(
                f"stage {self.stage} saved {self.packed} tensors when run again, its first run "
                f"at least {self.needed}; {_BE_DETERMINISTIC}"
            )

    def _fill(self, handle: _Handle, tensor: torch.Tensor, absent: Absent | None) -> None:
        if (tensor.shape, tensor.dtype) != (handle.shape, handle.dtype):
            raise PlanMismatchError(
                f"stage {self.stage} saved a tensor {tuple(tensor.shape)} {tensor.dtype} when "
                f"run again, its first run {tuple(handle.shape)} {handle.dtype}; "
                f"{_BE_DETERMINISTIC}"
            )
        handle.alias = self.released.alias(tensor) if self.released is not None else None
        if handle.alias is None:
            if absent is None and self.policy is not None:
                absent = self.policy.stand_in(tensor)
            handle.tensor = absent or tensor.detach()


def dropping() -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which a forward builds its graph but saves nothing except parameters."""
    return torch.autograd.graph.saved_tensors_hooks(
        lambda t: t if is_parameter(t) else None, _refuse
    )


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    if packed is None:
        raise UnsupportedModelError(
            "gradients are taken inside of the forward, which no plan can do; take them around it"
        )
    return packed


def refuse_backward(packed: object) -> torch.Tensor:
    """Unpack hook of runs that nobody goes back through."""
    raise AssertionError(f"backward through {packed}: nobody runs one here")


def hooks_set_aside() -> AbstractContextManager[object]:
    """Inside, hooks on saved tensors that are on already, or may be, are not called."""
    if TELLS_HOOKS and present_hooks() is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)


def present_hooks() -> Sequence[Callable[..., Any]] | None:
    """The innermost hooks on saved tensors; torch before 2.7 does not tell."""
    top = getattr(torch._C._autograd, _TOP_HOOKS, None)  # noqa: SLF001  # no public way
    return None if top is None else top(True)  # noqa: FBT003  # it takes no names


_TOP_HOOKS: Final = "_top_saved_tensors_default_hooks"

TELLS_HOOKS: Final = hasattr(torch._C._autograd, _TOP_HOOKS)  # noqa: SLF001  # likewise
"""Whether `present_hooks` tells them."""


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()  # itself would be a circle through its node, never to be collected


def require_repeatable_call(device: torch.device) -> None:
    """Refuse surroundings in which nothing can be dropped and run again.

    Hooks of the user's own on saved tensors are not given what a plan drops; those of torch change
    no values. An accelerator may choose its kernels anew, or record what it is given.

    Raises:
        PlanMismatchError: It is so.
    """
    accelerator = accelerator_at(device)
    if accelerator is not None and (obstacle := accelerator.obstacle()):
        raise PlanMismatchError(obstacle)
    own = [getattr(hook, "__module__", None) or "" for hook in present_hooks() or ()]
    if any(module.partition(".")[0] not in ("torch", "chainstay") for module in own):
        raise PlanMismatchError(
            f"torch.autograd.graph.saved_tensors_hooks of {own[0]} are on around a call that "
            "goes by a plan, which drops what they would be given; leave them out, or call "
            "chainstay.unfit(model)"
        )


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return True for a parameter; ``isinstance`` alone is slow for other tensors."""
    return type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter)


@dataclass(frozen=True, slots=True)
class Staying:
    """A tensor that stays, with the count of its changes: behind hooks autograd does not check."""

    stage: int
    tensor: torch.Tensor
    version: int

    @classmethod
    def of(cls, stage: int, tensor: torch.Tensor) -> Staying:
        """`tensor` as it is, saved by stage `stage`."""
        return cls(stage, tensor.detach(), version_of(tensor))

    def restored(self) -> torch.Tensor:
        """The tensor.

        Raises:
            PlanMismatchError: It was changed in place.
        """
        if version_of(self.tensor) != self.version:
            shape = tuple(self.tensor.shape)
            raise changed_in_place_error(f"a tensor of shape {shape} that stage {self.stage} saved")
        return self.tensor


def unpack(packed: torch.Tensor | Absent) -> torch.Tensor:
    """Unpack hook of every first run: bring back what stands in the graph for a saved tensor."""
    return packed if isinstance(packed, torch.Tensor) else packed.restored()
