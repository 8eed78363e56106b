"""Times of operators on a device, from shapes alone.

Matrix products, convolutions and attention are counted by torch's own formulas (those of
`torch.utils.flop_counter`); whatever else runs moves its inputs and outputs through memory
once. Views and uninitialised memory are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from chainstay.runtime.estimate.devices import DeviceModel
from chainstay.runtime.stage.states import address_of, tensors_in

_aten: Final = torch.ops.aten

_COUNTED_LIKE: Final = {
    # Stand-ins are on the CPU; their attention is what flash attention is elsewhere.
    _aten._scaled_dot_product_flash_attention_for_cpu: (  # noqa: SLF001  # torch.ops has these names alone
        _aten._scaled_dot_product_flash_attention  # noqa: SLF001  # torch.ops has these names alone
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (  # noqa: SLF001  # torch.ops has these names alone
        _aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001  # torch.ops has these names alone
    ),
}
_UNINITIALISED: Final = frozenset(
    {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
)
_WRITE_ONLY: Final = frozenset(
    {_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.zero_, _aten.fill_}
)
_READ_IN_PART: Final = frozenset(
    {_aten.embedding, _aten.gather, _aten.index, _aten.index_select, _aten.take}
)
"""They read as much of their first argument as they return."""

_CONVOLUTIONS: Final = frozenset({_aten.convolution, _aten.convolution_backward})


def operator_ns(
    device: DeviceModel,
    operator: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: object,
) -> int:
    """Time of one call of `operator` in ns, by the shapes of what it took and gave."""
    packet = operator.overloadpacket
    moved = _moved_bytes(operator, args, kwargs, result)
    if moved == 0 or packet in _UNINITIALISED:
        return 0
    count = flop_registry.get(_COUNTED_LIKE.get(packet, packet))
    flops = count(*args, **kwargs, out_val=result) if count else 0
    throughput = _throughput(device, packet, tensors_in((args, kwargs)))
    return device.kernel_ns(flops=flops, throughput=throughput, moved_bytes=moved)


def _throughput(device: DeviceModel, packet: object, tensors: Iterable[torch.Tensor]) -> float:
    """Arithmetic per second in the type of the first real tensor."""
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
    if dtype == torch.bfloat16:
        return device.bfloat16
    if dtype == torch.float16:
        return device.float16
    if packet in _CONVOLUTIONS:
        allows_tf32 = bool(torch.backends.cudnn.allow_tf32)
    else:
        allows_tf32 = torch.get_float32_matmul_precision() != "highest"
    return device.tf32 if allows_tf32 else device.float32


def _moved_bytes(
    operator: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: object,
) -> int:
    """Bytes read and written; 0 for a view."""
    if torch.Tag.inplace_view in operator.tags:
        return 0
    given = tensors_in((args, kwargs))
    sources = {address_of(tensor) for tensor in given}
    changes = operator._schema.is_mutable  # noqa: SLF001  # what an operator says of itself
    written = sum(
        _size(tensor)
        for tensor in tensors_in(result)
        if changes or address_of(tensor) not in sources
    )
    if not written or operator.overloadpacket in _WRITE_ONLY:
        return written
    if operator.overloadpacket in _READ_IN_PART:
        given[0] = tensors_in(result)[0]
    return written + sum({address_of(tensor): _size(tensor) for tensor in given}.values())


def _size(tensor: torch.Tensor) -> int:
    """Bytes of its elements, those of an expanded tensor counted once."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
