"""Devices as a roofline: arithmetic and memory traffic per second, and what a launch costs.

Throughputs are dense (no structured sparsity) with 32-bit accumulation, in floating-point
operations per second, and bandwidths are in bytes per second, all from NVIDIA's public data
sheets at boost clock: https://www.nvidia.com/en-us/data-center/ (each product's "datasheet")
and the Ada and Ampere GA102 architecture white papers for GeForce. Kernels reach a share of
them only; the shares assumed are fields of `DeviceModel`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from chainstay.errors import UnknownDeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """The speed of a device.

    Attributes:
        name: The device's name, for people.
        memory_bytes: The bytes of its memory, for people; no estimate depends on it.
        bandwidth: The bandwidth of its memory in bytes per second.
        float32: Speed of arithmetic in full precision, in floating-point operations per second.
        tf32: The same speed for 32-bit matrix products where torch allows TF32.
        float16: The same speed for 16-bit floats.
        bfloat16: The same speed for bfloat16.
        compute_efficiency: Share of the arithmetic that large matrix products reach.
        bandwidth_efficiency: Share of the bandwidth that other kernels reach.
        launch_ns: The time that every kernel takes besides, in ns.
        dispatch_ns: The time that the host takes to issue one operator, in ns.
        fuses_attention: Its attention with dropout is one kernel that saves no weights, as on
            GPUs; if not, the weights are made and saved, as on CPUs.

    Raises:
        ValueError: A figure is not a positive number, or an efficiency is above 1.

    Example:
        >>> mine = DeviceModel(name="mine", memory_bytes=8 * 2**30, bandwidth=4e11, float32=1e13)
        >>> mine.bfloat16 == mine.tf32 == mine.float32  # what is not told is no faster
        True
    """

    name: str
    memory_bytes: int
    bandwidth: float
    float32: float
    tf32: float = 0
    float16: float = 0
    bfloat16: float = 0
    compute_efficiency: float = 0.7
    bandwidth_efficiency: float = 0.8
    launch_ns: int = 3000
    dispatch_ns: int = 20_000
    fuses_attention: bool = True

    def __post_init__(self) -> None:
        for name in ("tf32", "float16", "bfloat16"):
            object.__setattr__(self, name, getattr(self, name) or self.float32)
        for field in fields(self):
            if field.name not in ("name", "fuses_attention"):
                _require_figure(field.name, getattr(self, field.name))

    def kernel_ns(self, *, flops: float, throughput: float, moved_bytes: float) -> int:
        """Return the time of one kernel in ns, rounded up: the longer of arithmetic and traffic.

        `throughput` is in operations a second, by the data sheet.
        """
        computing = flops / (throughput * self.compute_efficiency)
        moving = moved_bytes / (self.bandwidth * self.bandwidth_efficiency)
        return self.launch_ns + math.ceil(max(computing, moving) * 1e9)

    def stage_ns(self, *, kernels_ns: int, operators: int) -> int:
        """Return the time of a stage's run in ns: the longer of its kernels and of issuing them.

        The host issues operators while the device computes, so one of both waits for the other.
        """
        return max(kernels_ns, operators * self.dispatch_ns)


def _require_figure(name: str, value: object) -> None:
    """Refuse what is no throughput, size, efficiency or time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    figure = float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is one
    is_share = name.endswith("efficiency")
    least_allowed = figure >= 0 if name in ("launch_ns", "dispatch_ns") else figure > 0
    if not least_allowed or not figure <= (1.0 if is_share else _MOST):
        limit = "above 0 and up to 1" if is_share else "a positive number"
        raise ValueError(f"{name} is {value!r}, must be {limit}")


_MOST: Final = 1e24
"""The largest figure: far above all devices, and finite."""

_DATA_SHEETS: Final = (
    # name, memory in GB as sold, bandwidth in GB/s, and TFLOP/s in float32, TF32, float16 and
    # bfloat16. Where a device has no unit for a type, that of float32 counts: torch computes
    # in float32 then. H100, H200 and V100 are those with SXM sockets.
    ("A100-40GB", 40.0, 1555.0, 19.5, 156.0, 312.0, 312.0),
    ("A100-80GB", 80.0, 2039.0, 19.5, 156.0, 312.0, 312.0),
    ("H100", 80.0, 3350.0, 67.0, 494.7, 989.4, 989.4),
    ("H100-PCIe", 80.0, 2000.0, 51.2, 378.0, 756.0, 756.0),
    ("H200", 141.0, 4800.0, 67.0, 494.7, 989.4, 989.4),
    ("L4", 24.0, 300.0, 30.3, 60.0, 121.0, 121.0),
    ("L40S", 48.0, 864.0, 91.6, 183.0, 362.0, 362.0),
    ("A10", 24.0, 600.0, 31.2, 62.5, 125.0, 125.0),
    ("T4", 16.0, 320.0, 8.1, 8.1, 65.0, 8.1),
    ("V100-32GB", 32.0, 900.0, 15.7, 15.7, 125.0, 15.7),
    ("RTX 3090", 24.0, 936.0, 35.6, 35.6, 71.0, 71.0),
    ("RTX 4090", 24.0, 1008.0, 82.6, 82.6, 165.2, 165.2),
)

DEVICES: Final[Mapping[str, DeviceModel]] = MappingProxyType(
    {
        name: DeviceModel(
            name=name,
            memory_bytes=int(memory * 1e9),
            bandwidth=bandwidth * 1e9,
            float32=float32 * 1e12,
            tf32=tf32 * 1e12,
            float16=float16 * 1e12,
            bfloat16=bfloat16 * 1e12,
        )
        for name, memory, bandwidth, float32, tf32, float16, bfloat16 in _DATA_SHEETS
    }
)
"""Known devices by name."""


def device_model(device: str | DeviceModel) -> DeviceModel:
    """The device called `device`, in any case; a `DeviceModel` is one already.

    Raises:
        UnknownDeviceError: Nothing here is called so; the text lists what is.

    Example:
        >>> device_model("a100-80gb").bandwidth
        2039000000000.0
    """
    if isinstance(device, DeviceModel):
        return device
    known = {name.lower(): model for name, model in DEVICES.items()}
    if str(device).lower() not in known:
        raise UnknownDeviceError(
            f"device is {device!r}, must be one of {', '.join(DEVICES)}; for another one give its "
            "figures: DeviceModel(name=..., memory_bytes=..., bandwidth=..., float32=...)"
        )
    return known[str(device).lower()]
