"""A model with a batch to train it on, from what stands on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from chainstay.cli.endings import CommandLineError
from chainstay.cli.models import Built, Spec, build
from chainstay.cli.terminal import busy
from chainstay.errors import UnknownDeviceError
from chainstay.runtime.estimating import DeviceModel
from chainstay.runtime.estimating.devices import device_model

__all__ = ["Target", "Workload", "made"]

SEED: Final = 20
_SHAPE: Final = re.compile(r"([1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*)(?::([a-z]+[0-9]+))?")
_TYPES: Final = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8")
}
_MOST_ELEMENTS: Final = 2**40


@dataclass(frozen=True, slots=True)
class Target:
    """Where the model is to be trained.

    Attributes:
        device: Where tensors are: ``meta`` where nothing is run.
        sheet: Of a device that need not be here.
    """

    device: torch.device
    sheet: DeviceModel | None = None

    @classmethod
    def of(cls, name: str | None) -> Target:
        """The device that `name` means.

        Raises:
            CommandLineError: It is a CUDA device that is not here.
            UnknownDeviceError: There is no such device.
        """
        if name is None:
            return cls(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        if name == "cpu":
            return cls(torch.device("cpu"))
        if re.fullmatch(r"cuda(:[0-9])?", name):
            index = int(name[5:] or 0)
            if index >= torch.cuda.device_count():
                raise CommandLineError(
                    f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; "
                    "use --device cpu, or plan for one by its data sheet: --device A100-80GB"
                )
            return cls(torch.device("cuda", index))
        try:
            return cls(torch.device("meta"), device_model(name))
        except UnknownDeviceError as error:
            known = str(error).partition("must be ")[2].partition(";")[0]
            raise UnknownDeviceError(
                f"--device is {name!r}, must be cpu, cuda, cuda:1 or {known}"
            ) from None

    def __str__(self) -> str:
        if self.sheet is not None:
            return f"{self.sheet.name} (estimated)"
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = torch.get_num_threads()
        return f"the CPU, {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and a call of it that gives a loss.

    Attributes:
        name: As it stands on the command line.
        model: In training mode.
        args: Of the call.
        kwargs: Of the call.
        loss: From the output to a scalar; ``None`` where the output has its own.
        target: Where.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor] | None
    target: Target

    @property
    def title(self) -> str:
        """For people: what is trained on what, where."""
        leaves = tree_leaves((self.args, dict(self.kwargs)))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        first = f"{_shape(tensors[0])} {_short(tensors[0].dtype)}" if tensors else "no tensor"
        return f"{self.name} on {first}, {self.target}"

    def step(self) -> torch.Tensor:
        """Forward and loss, to be differentiated."""
        return self.loss_of(self.model(*self.args, **self.kwargs))

    def loss_of(self, output: object) -> torch.Tensor:
        """The scalar to be minimised."""
        from chainstay.runtime.losses import loss_in

        loss = self.loss(output) if self.loss is not None else loss_in(output)
        return loss if loss is not None else usual_loss(output)


def made(text: str, inputs: Sequence[str] | None, device: str | None, dtype: str) -> Workload:
    """Build the model and a batch.

    Args:
        text: What names the model.
        inputs: Shapes.
        device: Where it is to be; ``None`` for the usual place, of the user's own model for
            where its function put it.
        dtype: Of parameters and inputs.

    Raises:
        CommandLineError: `text` names no model, or `inputs` are none for it.
        UnsupportedModelError: The model cannot be built.
        UnknownDeviceError: There is no such device.
    """
    target = Target.of(device)
    shapes = [_parsed(each) for each in inputs or ()]
    spec, kind = Spec.parse(text), getattr(torch, dtype)
    torch.manual_seed(SEED)
    with busy(f"building {text}"), _place(spec, target):
        built = build(spec)
    model = built.model
    if kind is not torch.float32:
        model.to(kind)
    if spec.family == "file" and (device is None or target.sheet is not None):
        own = next((each.device for each in model.parameters()), target.device)
        target = target if target.sheet is not None else Target(own)
    else:
        model.to(target.device)
    args, kwargs = _call(built, shapes, target.device, kind)
    loss = built.loss
    if loss is None and not _has_loss(built):
        loss = usual_loss
    return Workload(name=text, model=model, args=args, kwargs=kwargs, loss=loss, target=target)


def usual_loss(output: object) -> torch.Tensor:
    """Something to minimise where nothing is known of the output but its tensors.

    Cross-entropy against the first class where there are scores for classes, as of images,
    pixels or tokens; of others the mean square.
    """
    leaves = [each for each in _tensors(output) if each.is_floating_point()]
    if not leaves:
        raise CommandLineError(
            f"the model's output, a {type(output).__name__}, has no tensor that could be trained; "
            "let your function return (model, args, kwargs, loss)"
        )
    return torch.stack([_usual_loss(each) for each in leaves]).sum()


def _usual_loss(scores: torch.Tensor) -> torch.Tensor:
    if scores.dim() in (2, 4) and scores.shape[1] > 1:
        targets = torch.zeros(
            (scores.shape[0], *scores.shape[2:]), dtype=torch.long, device=scores.device
        )
        return functional.cross_entropy(scores.float(), targets)
    return scores.float().square().mean()


def _tensors(output: object) -> list[torch.Tensor]:
    known: object = dict(output) if isinstance(output, Mapping) else output
    return [each for each in tree_leaves(known) if isinstance(each, torch.Tensor)]


def _has_loss(built: Built) -> bool:
    return built.config is not None


def _place(spec: Spec, target: Target) -> AbstractContextManager[object]:
    """Where parameters are made: without memory if nothing is to be run."""
    if target.sheet is not None and spec.family != "file":
        return torch.device("meta")
    return nullcontext()


def _call(
    built: Built,
    shapes: list[tuple[tuple[int, ...], str]],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if built.config is not None:
        from chainstay.cli.heads import batch_for, usual_shape

        if len(shapes) > 1:
            raise CommandLineError(f"{len(shapes)} --input options; a Hugging Face model takes one")
        shape = shapes[0][0] if shapes else usual_shape(built.model, built.config)
        return (), batch_for(built.model, built.config, shape, device, dtype)
    if built.args is not None and not shapes:
        return tree_map_only(  # type: ignore[no-any-return]  # torch does not say
            torch.Tensor, lambda tensor: tensor.to(device), (built.args, dict(built.kwargs))
        )
    if shapes:
        return tuple(_tensor(built.model, *each, device, dtype) for each in shapes), built.kwargs
    if built.image_size is None:
        raise CommandLineError(
            "of what shape is a batch? Write --input 32x3x224x224, or let your function return "
            "(model, args)"
        )
    return (torch.randn((8, *built.image_size), device=device, dtype=dtype),), {}


def _tensor(
    model: nn.Module, shape: tuple[int, ...], kind: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Random numbers; for models that begin by looking tokens up, tokens."""
    first = next((each for each in model.modules() if not list(each.children())), None)
    embedding = first if isinstance(first, nn.Embedding) else None
    chosen = _TYPES[kind] if kind else torch.int64 if embedding else dtype
    if chosen.is_floating_point:
        return torch.randn(shape, device=device, dtype=chosen)
    return torch.randint(embedding.num_embeddings if embedding else 2, shape, device=device).to(
        chosen
    )


def _parsed(text: str) -> tuple[tuple[int, ...], str]:
    """Shape and type, which may be empty.

    Raises:
        CommandLineError: It is no shape.
    """
    match = _SHAPE.fullmatch(text)
    kind = match[2] or "" if match else ""
    if match is None or (kind and kind not in _TYPES):
        raise CommandLineError(
            f"--input is {text!r}, must be sizes such as 32x3x224x224, or with a type, as in "
            f"4x512:int64 (of {', '.join(_TYPES)})"
        )
    shape = tuple(map(int, match[1].split("x")))
    elements = 1
    for size in shape:
        elements *= size
    if elements > _MOST_ELEMENTS:
        raise CommandLineError(f"--input {text} has {elements} elements, at most {_MOST_ELEMENTS}")
    return shape, kind


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
