"""Fingerprints of calls, which say what a plan is for: see `chainstay.plans.Fingerprint`."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from chainstay.plans import Fingerprint
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.measures.cost_files import digest_of
from chainstay.runtime.stage.chain_stage import ChainStage

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_LONGEST: Final = 400
"""Characters of a description."""


def fingerprint_of(
    call: Call, device: torch.device, stages: Sequence[ChainStage] = ()
) -> Fingerprint:
    """Return the fingerprint of a plan for this call; `stages` exclude the loss."""
    model = call.model
    named = dict(model.named_modules())
    autocast = Autocast.now(device)
    return Fingerprint(
        modules={path: _module(module) for path, module in named.items()},
        parameters=dict(_tensors(model.named_parameters(remove_duplicate=False))),
        buffers=dict(_tensors(model.named_buffers(remove_duplicate=False))),
        training=_training(named),
        call=_call(call),
        stages={f"{index} ({stage.name})": digest_of(stage) for index, stage in enumerate(stages)},
        setting={
            "torch": torch.__version__,
            "device": _device(device),
            "autocast": "off" if autocast is None else str(autocast),
        },
    )


def _module(module: nn.Module) -> str:
    """Return a module's class, wherever that was imported from, and its settings."""
    settings = _ADDRESS.sub("", module.extra_repr())
    return f"{type(module).__qualname__}({settings})"[:_LONGEST]


def _tensors(named: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    known: dict[int, str] = {}
    for name, tensor in named:
        if id(tensor) in known:
            yield name, f"the same as {known[id(tensor)]}"
            continue
        known[id(tensor)] = name
        yield name, _tensor(tensor, "trained")


def _tensor(tensor: torch.Tensor, with_gradient: str) -> str:
    text = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device.type}"
    if tensor.layout != torch.strided:
        text += f", {tensor.layout}"
    elif not tensor.is_contiguous():
        text += f", strides {tensor.stride()}"
    return f"{text}, {with_gradient}" if tensor.requires_grad else text


def _training(named: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the model's own flag, and those that differ from that of the module around."""
    found = {}
    for path, module in named.items():
        parent = named.get(path.rpartition(".")[0]) if path else None
        if parent is None or parent.training != module.training:
            found[path] = "training" if module.training else "evaluation"
    return found


def _call(call: Call) -> dict[str, str]:
    leaves, _ = tree_flatten_with_path((call.args, dict(sorted(call.kwargs.items()))))
    found = {}
    for (which, *inner), leaf in leaves:
        name = f"{'args' if getattr(which, 'idx', 0) == 0 else 'kwargs'}{keystr(tuple(inner))}"
        text = _tensor(leaf, "wanting a gradient") if isinstance(leaf, torch.Tensor) else repr(leaf)
        found[name] = _ADDRESS.sub("", text)[:_LONGEST]
    return found


def _device(device: torch.device) -> str:
    accelerator = accelerator_at(device)
    name = platform.machine() if accelerator is None else accelerator.name()
    return f"{device.type}, {name}"
