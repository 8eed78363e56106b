"""Settings of torch's kernels, which decide the last bits of a result, and the default type.

They belong to the whole process. Whoever sets them around the forward only would have another
kernel in a recomputation, which runs in the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from chainstay.errors import PlanMismatchError

BackendSettings = tuple[object, ...]
"""Values of all settings; to be compared and entered again."""

_SET: Final[Mapping[str, str]] = {
    "_get_mkldnn_enabled": "_set_mkldnn_enabled",
    "_get_mkldnn_deterministic": "_set_mkldnn_deterministic",
    "_get_cudnn_enabled": "_set_cudnn_enabled",
    "_get_cudnn_benchmark": "_set_cudnn_benchmark",
    "_get_cudnn_deterministic": "_set_cudnn_deterministic",
    "_get_flash_sdp_enabled": "_set_sdp_use_flash",
    "_get_mem_efficient_sdp_enabled": "_set_sdp_use_mem_efficient",
    "_get_math_sdp_enabled": "_set_sdp_use_math",
    "_get_cudnn_sdp_enabled": "_set_sdp_use_cudnn",
    "get_default_dtype": "_set_default_dtype",
}
"""What reads a setting, and what changes it."""

_SWITCHES: Final = tuple(
    (getattr(torch._C, read), getattr(torch._C, write))  # noqa: SLF001  # where torch.backends looks
    for read, write in _SET.items()
    if hasattr(torch._C, read) and hasattr(torch._C, write)  # noqa: SLF001  # where torch.backends looks
)

_READ_PRECISION: Final[Any] = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001  # as above

_PLACES: Final = (
    (("mkldnn", "matmul"), ("mkldnn", "conv"), ("cuda", "matmul"), ("cuda", "conv"))
    if _READ_PRECISION
    else ()
)
"""Where a precision of float32 can be set one by one, by torch 2.9 and later."""


def backend_settings() -> BackendSettings:
    """Return the present settings of torch's backends."""
    return (*[read() for read, _ in _SWITCHES], *_precisions())


def kernel_libraries() -> str:
    """Return the versions of the libraries that an accelerator's kernels come from."""
    cudnn = torch.backends.cudnn.version()
    return f"CUDA {torch.version.cuda}, HIP {torch.version.hip}, cuDNN {cudnn}"


@contextmanager
def entered_settings(settings: BackendSettings) -> Iterator[None]:
    """Inside, they are as they were.

    Raises:
        PlanMismatchError: A precision was changed that cannot be set for a while.
    """
    present = backend_settings()
    try:
        _enter(settings)
        if backend_settings() != settings:
            raise PlanMismatchError(
                "the precision of float32 (torch.backends.*.fp32_precision) was changed between "
                "forward and backward, but stages run again; change it between steps only"
            )
        yield
    finally:
        _enter(present)


def _enter(settings: BackendSettings) -> None:
    for (read, write), value in zip(_SWITCHES, settings, strict=False):
        if read() != value:
            write(value)
    precision: Any = settings[len(_SWITCHES)]
    if precision not in (None, _precisions()[0]):
        torch.set_float32_matmul_precision(precision)


def _precisions() -> tuple[str | None, ...]:
    """Return the precisions of float32: the general one, ``None`` if untold, then by place."""
    try:
        general = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set in both ways
        general = None
    places = [_READ_PRECISION(*place) for place in _PLACES]
    return (general, *["ieee" if precision == "none" else precision for precision in places])
