"""A model with a batch to train it on, built from the options of the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.models.named_models import BuiltModel, ModelSpec, build_model
from chainstay.cli.options import ACCELERATORS
from chainstay.cli.terminal import spinner
from chainstay.errors import UnknownDeviceError, UnsupportedModelError, type_with_article
from chainstay.runtime.devices.device import accelerator_at, accelerator_count, default_device
from chainstay.runtime.stage.loss_stage import loss_in
from chainstay.runtime.stage.states import tensors_in

if TYPE_CHECKING:
    from chainstay.runtime.estimate import DeviceModel

SEED: Final = 20
_SHAPE: Final = re.compile(r"([1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*)(?::([a-z]+[0-9]+))?")
_TYPES: Final = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8")
}
_MOST_ELEMENTS: Final = 2**40


@dataclass(frozen=True, slots=True)
class Target:
    """The device on which the model is to be trained.

    Attributes:
        device: Device of tensors; ``meta`` if nothing is run.
        sheet: Data sheet of a device that need not be here; None for a real one.
    """

    device: torch.device
    sheet: DeviceModel | None = None

    @classmethod
    def from_name(cls, name: str | None) -> Target:
        """Return the device that `name` means.

        Raises:
            CommandLineError: It is an accelerator that is not here.
            UnknownDeviceError: There is no such device.
        """
        if name is None:
            return cls(default_device())
        if name == "cpu":
            return cls(torch.device("cpu"))
        kind, _, index = name.partition(":")
        if kind in ACCELERATORS and re.fullmatch("[0-9]*", index):
            count = accelerator_count(kind)
            if int(index or 0) >= count:
                raise CommandLineError(
                    f"--device {name}: this machine has {count} {kind.upper()} devices; "
                    "use --device cpu, or plan for one by its data sheet: --device A100-80GB"
                )
            return cls(torch.device(kind, int(index or 0)))
        # Estimating takes a while to import, and is needed for data sheets only.
        from chainstay.runtime.estimate.devices import device_model

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
        accelerator = accelerator_at(self.device)
        if accelerator is not None:
            return accelerator.name()
        threads = torch.get_num_threads()
        return f"the CPU, {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and a call of it that gives a loss.

    Attributes:
        name: Name of the model, as on the command line.
        model: The model, in training mode.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        loss: Function from the output to a scalar; ``None`` if the output has its own loss.
        target: The device.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor] | None
    target: Target

    @property
    def title(self) -> str:
        """The model, its batch and device, for people."""
        tensors = tensors_in((self.args, dict(self.kwargs)))
        first = "no tensor"
        if tensors:
            shape = " x ".join(map(str, tensors[0].shape)) or "a number"
            first = f"{shape} {str(tensors[0].dtype).removeprefix('torch.')}"
        return f"{self.name} on {first}, {self.target}"

    def step(self) -> torch.Tensor:
        """Run forward and loss, and return the loss to be differentiated."""
        return self.loss_of(self.model(*self.args, **self.kwargs))

    def loss_of(self, output: object) -> torch.Tensor:
        """Return the scalar to be minimised.

        Raises:
            UnsupportedModelError: The loss is no tensor.
        """
        loss = self.loss(output) if self.loss is not None else loss_in(output)
        if not isinstance(loss, torch.Tensor | None):
            raise UnsupportedModelError(
                f"the loss returns {type_with_article(loss)}, must return one number: add up "
                "what it has"
            )
        return loss if loss is not None else default_loss(output)


def build_workload(
    text: str, inputs: Sequence[str] | None, device: str | None, dtype: str
) -> Workload:
    """Build the model and a batch.

    Args:
        text: Name of the model.
        inputs: Shapes of the arguments, as text; None for the usual ones.
        device: Name of the device; ``None`` for the usual one, or, for the user's own model,
            for the one on which its function put it.
        dtype: Data type of parameters and inputs.

    Raises:
        CommandLineError: `text` names no model, or `inputs` are none for it.
        UnsupportedModelError: The model cannot be built.
        UnknownDeviceError: There is no such device.
    """
    target = Target.from_name(device)
    shapes = [_parse_input(shape) for shape in inputs or ()]
    spec, kind = ModelSpec.parse(text), getattr(torch, dtype)
    torch.manual_seed(SEED)
    runs = target.sheet is None or spec.family == "file"  # else parameters need no memory
    place = nullcontext() if runs else torch.device("meta")
    with spinner(f"building {text}"), place:
        built = build_model(spec)
    model = built.model
    if kind is not torch.float32:
        model.to(kind)
    if spec.family == "file" and (device is None or target.sheet is not None):
        own = next((parameter.device for parameter in model.parameters()), target.device)
        target = target if target.sheet is not None else Target(own)
    else:
        model.to(target.device)
    args, kwargs = _call(built, shapes, target.device, kind)
    loss = built.loss
    if loss is None and built.config is None:  # models of Hugging Face have their own
        loss = default_loss
    return Workload(name=text, model=model, args=args, kwargs=kwargs, loss=loss, target=target)


def default_loss(output: object) -> torch.Tensor:
    """Return a loss for an output of which only the tensors are known.

    Cross-entropy against the first class where there are scores for classes, as of images,
    pixels or tokens; of others the mean square.
    """
    known = dict(output) if isinstance(output, Mapping) else output
    leaves = [tensor for tensor in tensors_in(known) if tensor.is_floating_point()]
    if not leaves:
        raise CommandLineError(
            f"the model's output, {type_with_article(output)}, has no tensor that could be "
            "trained; let your function return (model, args, kwargs, loss)"
        )
    return torch.stack([_loss_of_scores(leaf) for leaf in leaves]).sum()


def _loss_of_scores(scores: torch.Tensor) -> torch.Tensor:
    if scores.dim() in (2, 4) and scores.shape[1] > 1:
        shape = (scores.shape[0], *scores.shape[2:])
        targets = torch.zeros(shape, dtype=torch.long, device=scores.device)
        return functional.cross_entropy(scores.float(), targets)
    return scores.float().square().mean()


def _call(
    built: BuiltModel,
    shapes: list[tuple[tuple[int, ...], str]],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if built.config is not None:
        # Needs transformers, which only Hugging Face models do.
        from chainstay.cli.models.hf_models import default_shape, make_batch

        if len(shapes) > 1:
            raise CommandLineError(f"{len(shapes)} --input options; a Hugging Face model takes one")
        shape = shapes[0][0] if shapes else default_shape(built.model, built.config)
        return (), make_batch(built.model, built.config, shape, device, dtype)
    if built.args is not None and not shapes:
        return tree_map_only(  # type: ignore[no-any-return]  # torch does not say
            torch.Tensor, lambda tensor: tensor.to(device), (built.args, dict(built.kwargs))
        )
    if shapes:
        return tuple(_tensor(built.model, *shape, device, dtype) for shape in shapes), built.kwargs
    if built.image_size is None:
        raise CommandLineError(
            "the shape of a batch is not known; write --input 32x3x224x224, or let your function "
            "return (model, args)"
        )
    return (torch.randn((8, *built.image_size), device=device, dtype=dtype),), {}


def _tensor(
    model: nn.Module, shape: tuple[int, ...], kind: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return random numbers, or tokens for models that begin with an embedding."""
    first = next((module for module in model.modules() if not list(module.children())), None)
    embedding = first if isinstance(first, nn.Embedding) else None
    chosen = _TYPES[kind] if kind else torch.int64 if embedding else dtype
    if chosen.is_floating_point:
        return torch.randn(shape, device=device, dtype=chosen)
    most = embedding.num_embeddings if embedding else 2
    return torch.randint(most, shape, device=device).to(chosen)


def _parse_input(text: str) -> tuple[tuple[int, ...], str]:
    """Return the shape and the data type, which may be empty.

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
    elements = math.prod(shape)
    if elements > _MOST_ELEMENTS:
        raise CommandLineError(f"--input {text} has {elements} elements, at most {_MOST_ELEMENTS}")
    return shape, kind
