"""Builds the simulated accelerator and registers it as ``torch.device("sim")``.

A process that has registered it keeps it to its end, so tests on it run in processes of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
import types
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import torch
from torch.utils import backend_registration, cpp_extension

__all__ = ["Extension", "RealDevice", "obstacle", "register"]

_FOLDER = Path(__file__).parent
_NAME = "chainstay_sim"
_TORCH = (2, 9)
"""The first torch whose `torch.accelerator` has the memory of devices of others."""


class Extension(Protocol):
    """Settings and findings of a device."""

    def set_link(self, bytes_per_s: float) -> None:
        """Let transfers take their time; with 0 they are as fast as memory."""

    def set_kernel_us(self, us: float) -> None:
        """Let each kernel take so many microseconds longer."""

    def set_capacity(self, size: int) -> None:
        """Give each device so many bytes."""

    def capacity(self) -> int:
        """Return the bytes of each device."""
        ...

    def races(self) -> list[str]:
        """Return what was not ordered since the last call."""
        ...

    def host_waits(self) -> dict[str, int]:
        """Return how often the host has waited since the last call, by what made it wait."""
        ...


class RealDevice:
    """A device that goes at its own pace and finds nothing out."""

    def set_link(self, bytes_per_s: float) -> None:
        """Do nothing."""

    def set_kernel_us(self, us: float) -> None:
        """Do nothing."""

    def set_capacity(self, size: int) -> None:
        """Do nothing."""

    def capacity(self) -> int:
        """Return nothing of use."""
        return 0

    def races(self) -> list[str]:
        """Return nothing: who wants to know runs the simulated device."""
        return []

    def host_waits(self) -> dict[str, int]:
        """Return nothing, likewise."""
        return {}


def obstacle() -> str:
    """Return why the device cannot be built here; empty if it can."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if _compiler() is None:
        return "needs a C++ compiler (g++ or clang++)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "needs Python's C headers"
    if version < _TORCH:
        return f"the simulated device needs torch {_TORCH[0]}.{_TORCH[1]}, this is {version}"
    return ""


def register() -> Extension:
    """Return the extension, after which there are devices ``sim:0`` and ``sim:1``."""
    extension = _loaded(_built())
    backend_registration.rename_privateuse1_backend("sim")
    extension.register()
    torch._register_device_module("sim", _device_module(extension))
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    return cast("Extension", extension)


def _compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def _built() -> Path:
    """Return the built library, whose name is a digest of what it was built from."""
    sources = b"".join(file.read_bytes() for file in sorted(_FOLDER.glob("*.[hc]*")))
    text = f"{torch.__version__} {sysconfig.get_platform()} {sysconfig.get_python_version()}"
    digest = hashlib.sha256(sources + text.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"chainstay-sim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest}.so"
    with (folder / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process, however that ends
        if not library.is_file():
            unfinished = library.with_suffix(".unfinished")
            includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
            folders = cpp_extension.library_paths()
            command = [
                str(_compiler()),
                *("-O1", "-shared", "-fPIC", "-std=c++20", f"-DTORCH_EXTENSION_NAME={_NAME}"),
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                *(f"-isystem{path}" for path in includes),
                str(_FOLDER / "device.cpp"),
                *(f"-L{path}" for path in folders),
                *("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"),
                *("-o", str(unfinished)),
            ]
            subprocess.run(command, check=True)
            unfinished.rename(library)
    return library


def _loaded(library: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _device_module(extension: Any) -> ModuleType:
    """Return ``torch.sim``, with what torch and the package look for in such a module."""

    def index_of(device: object) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(str(device)).index if device is not None else None
        return int(extension.current_device()) if index is None else index

    def memory_info(device: object = None) -> tuple[int, int]:
        total = extension.capacity()
        return total - torch.accelerator.memory_reserved(index_of(device)), total

    def get_rng_state(device: object = None) -> torch.Tensor:
        state: torch.Tensor = extension.generator(index_of(device)).get_state()
        return state

    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        extension.generator(index_of(device)).set_state(state)

    def manual_seed_all(seed: int) -> None:
        for index in range(extension.device_count()):
            extension.generator(index).manual_seed(seed)

    module = types.ModuleType("torch.sim")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _lazy_init=lambda: None,  # without it, torch 2.11 takes devices for not initialised
        _is_in_bad_fork=lambda: False,
        device_count=extension.device_count,
        current_device=extension.current_device,
        manual_seed=manual_seed_all,
        manual_seed_all=manual_seed_all,
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        get_device_name=lambda device=None: f"simulated accelerator {index_of(device)}",
        mem_get_info=memory_info,
    )
    return module
