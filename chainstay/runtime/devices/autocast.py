"""Autocast's settings: it halves what is saved, and adds copies of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from chainstay.runtime.devices.device import default_device
from chainstay.runtime.devices.kernel_watch import KernelWatch


@dataclass(frozen=True, slots=True)
class Autocast:
    """Autocast's settings where it is on.

    Attributes:
        dtype: The low precision.
        has_cache: Whether it keeps its copies of the weights until it ends.
    """

    dtype: torch.dtype
    has_cache: bool

    @classmethod
    def now(cls, device: torch.device) -> Autocast | None:
        """The present settings for `device`; ``None`` where autocast is off."""
        if not torch.is_autocast_enabled(device.type):
            return None
        return cls(torch.get_autocast_dtype(device.type), torch.is_autocast_cache_enabled())

    @classmethod
    def on_gpu(cls) -> Autocast | None:
        """Return the present settings for the accelerator, or for CUDA where none is here."""
        here = default_device()
        return cls.now(torch.device("cuda") if here.type == "cpu" else here)

    @staticmethod
    def entered(settings: Autocast | None, device: torch.device) -> AbstractContextManager[object]:
        """Return a context in which autocast has these settings on `device`; ``None`` for off."""
        if settings == Autocast.now(device):
            return nullcontext()
        if settings is None:
            return torch.autocast(device.type, enabled=False)
        return torch.autocast(device.type, settings.dtype, cache_enabled=settings.has_cache)

    def __str__(self) -> str:
        return f"autocast to {self.dtype} with{'' if self.has_cache else 'out'} its cache"


@dataclass(slots=True)
class _Copies:
    """Autocast's copies of weights on one device, which stay until its outermost context ends.

    Attributes:
        probe: A weight of our own: while there is a copy of it, no context has ended.
        copy: That copy.
        versions: How often each weight had been changed when it was met first, by identity.
    """

    probe: torch.Tensor
    copy: StorageWeakRef | None = None
    versions: dict[int, int] = field(default_factory=dict)

    def begin_anew_where_gone(self) -> None:
        """Forget all that was met in a context that has ended."""
        if self.copy is not None and not self.copy.expired():
            return
        saved: list[torch.Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(saved.append, lambda copy: copy)
        with torch.enable_grad(), hooks:
            torch.mm(self.probe, self.probe)
        self.copy = StorageWeakRef(saved[0].untyped_storage())
        self.versions.clear()


_COPIES: Final[dict[torch.device, _Copies]] = {}


def has_outdated_copies(weights: Iterable[torch.Tensor], device: torch.device) -> bool:
    """Whether one of `weights` was changed since it was met first in this context of autocast.

    Autocast then goes on with the copy that it made before, if it has one; whoever casts the
    weight anew gets other numbers.
    """
    autocast = Autocast.now(device)
    if autocast is None or not autocast.has_cache:
        return False
    if device not in _COPIES:
        _COPIES[device] = _Copies(torch.ones(1, 1, device=device, requires_grad=True))
    copies = _COPIES[device]
    copies.begin_anew_where_gone()
    return any(
        copies.versions.setdefault(id(weight), weight._version) != weight._version  # noqa: SLF001  # torch tells it no other way
        for weight in weights
    )


@dataclass(eq=False)
class CopiesOfWeights(KernelWatch):
    """A context that serves autocast's copies of weights, in place of its cache.

    It may be entered many times: a copy is made once, and stays as long as this object does. Each
    run inside gets copies with autograd nodes of their own, as a step's first run does. Copies from
    the cache would have the nodes of an earlier run, which autograd goes back through last: the
    gradients of weights would be made after the activations have gone, and not beside them.

    Attributes:
        dtype: The low precision.
    """

    dtype: torch.dtype
    _made: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by identity
    _had_cache: bool = False

    @property
    def bytes(self) -> int:
        """The bytes of all copies."""
        return sum(copy.untyped_storage().nbytes() for _, copy in self._made.values())

    def __enter__(self) -> Self:
        super().__enter__()
        self._had_cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_autocast_cache_enabled(self._had_cache)
        super().__exit__(*error)

    def run(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a kernel; one that casts a weight gives an alias of the copy that is there."""
        if func is not torch.ops.aten._to_copy.default or "device" in kwargs:  # noqa: SLF001  # the operator's own name
            return func(*args, **kwargs)
        (weight,) = args
        is_weight = weight.is_leaf and weight.requires_grad and weight.dtype == torch.float32
        if not is_weight or kwargs.get("dtype") != self.dtype:
            return func(*args, **kwargs)
        if id(weight) not in self._made:
            self._made[id(weight)] = weight, func(*args, **kwargs)
        return torch.ops.aten.alias(self._made[id(weight)][1])
