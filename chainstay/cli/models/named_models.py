"""Models by name, with random weights: nothing is ever downloaded.

``torchvision:NAME?key=value&...``, ``timm:NAME?...``, ``hf:TYPE?...`` and ``FILE.py:FUNCTION?...``;
what follows the question mark goes to the model's constructor, configuration or function.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from chainstay.cli.exit_codes import CommandLineError, likely_names
from chainstay.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The name of a model on the command line.

    Attributes:
        family: ``"torchvision"``, ``"timm"``, ``"hf"`` or ``"file"``.
        name: Name in that family; for a file, of the function.
        settings: Keyword arguments of the constructor.
        path: Path of the file; None for other families.
    """

    family: str
    name: str
    settings: Mapping[str, Any]
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Read a name from the command line.

        Raises:
            CommandLineError: It is none of the four forms.
        """
        head, _, query = text.partition("?")
        settings = dict(_settings(query, text))
        family, colon, name = head.partition(":")
        if colon and name and family in _FAMILIES:
            return cls(family, name, settings)
        path, colon, function = head.rpartition(":")
        if colon and path.endswith(".py") and function.isidentifier():
            return cls("file", function, settings, Path(path).expanduser())
        if head.endswith(".py"):
            raise CommandLineError(
                f"MODEL is {text!r}, a file without a function; write {head}:function, with the "
                "function that returns the model"
            )
        raise CommandLineError(
            f"MODEL is {text!r}, must be torchvision:NAME, timm:NAME, hf:TYPE or "
            f"path/to/file.py:function{_hint(head)}"
        )


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model, and what its constructor tells about its call.

    Attributes:
        model: The model, in training mode.
        args: Positional arguments of a call, if the function returned any.
        kwargs: Keyword arguments of a call, if the function returned any.
        loss: Function from the output to a scalar, if the function returned one.
        image_size: Channels, height and width, if the model is made for images.
        config: Configuration of a Hugging Face model.
    """

    model: nn.Module
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Any] | None = None
    image_size: tuple[int, int, int] | None = None
    config: Any = None


def build_model(spec: ModelSpec) -> BuiltModel:
    """Build the model that `spec` names.

    Raises:
        CommandLineError: There is no such model, library, file or function.
        UnsupportedModelError: Its constructor fails.
    """
    settings = f" with {dict(spec.settings)}" if spec.settings else ""
    failure = f"{spec.path or spec.family}:{spec.name} cannot be built{settings}"
    with _explained_failures(failure, spec.path):
        return _FAMILIES[spec.family](spec)


def _torchvision(spec: ModelSpec) -> BuiltModel:
    models = _library("torchvision.models", "torchvision")
    _require_known(spec.name, models.list_models(), "torchvision")
    model = models.get_model(spec.name, weights=None, **_backbone(spec))
    if spec.name in models.list_models(module=models.video):
        return BuiltModel(model.train())  # the number of frames is up to its user
    side = spec.settings.get("image_size", 299 if "inception" in spec.name else 224)
    return BuiltModel(model.train(), image_size=(3, side, side))


def _backbone(spec: ModelSpec) -> Mapping[str, Any]:
    """Return settings with which no model downloads the weights of its backbone."""
    nested = ("rcnn", "retinanet", "fcos", "ssd", "lab", "fcn", "lraspp")
    has_backbone = any(part in spec.name for part in nested)
    return {**({"weights_backbone": None} if has_backbone else {}), **spec.settings}


def _timm(spec: ModelSpec) -> BuiltModel:
    timm = _library("timm", "timm")
    _require_known(spec.name, timm.list_models(), "timm")
    model = timm.create_model(spec.name, pretrained=False, **spec.settings)
    channels, height, width = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    side = spec.settings.get("img_size", (height, width))
    height, width = side if isinstance(side, list | tuple) else (side, side)
    size = (spec.settings.get("in_chans", channels), height, width)
    return BuiltModel(model.train(), image_size=size)


def _hugging_face(spec: ModelSpec) -> BuiltModel:
    _library("transformers", "transformers")
    # Needs transformers, which only Hugging Face models do.
    from chainstay.cli.models.hf_models import build_config, model_with_head

    config = build_config(spec.name, spec.settings)
    return BuiltModel(model_with_head(config).train(), config=config)


def _own_model(spec: ModelSpec) -> BuiltModel:
    assert spec.path is not None
    module = _module_at(spec.path)
    function = getattr(module, spec.name, None)
    if isinstance(function, nn.Module):
        raise CommandLineError(
            f"{spec.path}:{spec.name} is a model itself, must be a function that returns one, so "
            "that each run has its own"
        )
    if not callable(function):
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        some = f"did you mean {' or '.join(own[:3])}?" if own else "it has none"
        hint = likely_names(spec.name, own, some)
        raise CommandLineError(f"{spec.path} has no function {spec.name!r}; {hint}")
    made = function(**spec.settings)
    parts = made if isinstance(made, tuple) else (made,)
    model, args, kwargs, loss = (*parts, None, None, None, None)[:4]
    if not isinstance(model, nn.Module) or len(parts) > 4:
        raise CommandLineError(
            f"{spec.path}:{spec.name} returned something of type {type(made).__name__}, must "
            "return a model, or a tuple (model, args, kwargs, loss), of which the last two may be "
            "left out"
        )
    if args is not None and not isinstance(args, tuple):
        args = (args,)
    return BuiltModel(model, args, dict(kwargs or {}), loss)


_FAMILIES: Final[Mapping[str, Callable[[ModelSpec], BuiltModel]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    "file": _own_model,
}


def _settings(query: str, text: str) -> Iterator[tuple[str, Any]]:
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise CommandLineError(
                f"MODEL is {text!r}: {part!r} is no setting; write ?name=value&name=value"
            )
        try:
            yield name, ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            yield name, value


def _library(module: str, package: str) -> ModuleType:
    _mend_torchvision()
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise CommandLineError(
            f"{package} cannot be imported ({missing}); run: pip install {package}"
        ) from missing


def _mend_torchvision() -> None:
    """Let torchvision be imported whose operators were built for another torch.

    Its wheel on PyPI is for CUDA, and beside a torch for CPUs its import fails, and with it that
    of timm and transformers, though few models have these operators.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as cause:
        if "torchvision::" not in str(cause):
            raise
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                _OPERATORS.define(
                    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )


_OPERATORS: Final = torch.library.Library("torchvision", "FRAGMENT")


def _require_known(name: str, known: list[str], family: str) -> None:
    if name not in known:
        hint = likely_names(name, known, f"it has {len(known)} others")
        raise CommandLineError(f"{family} has no model {name!r}; {hint}")


def _hint(head: str) -> str:
    """Return what may have been meant by a name without a family."""
    if Path(head).exists():
        return f"; for a function of a file write {head}:function"
    return f"; for example torchvision:{head}" if head.isidentifier() else ""


def _module_at(path: Path) -> ModuleType:
    """Import a file as a module that can import its neighbours."""
    if not path.is_file():
        raise CommandLineError(f"there is no file {path}; write path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    with _explained_failures(f"{path} cannot be imported", path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _explained_failures(failure: str, path: Path | None) -> Iterator[None]:
    """Explain a constructor that fails by its last line; it may be anybody's code.

    Args:
        failure: What has failed then, for people.
        path: The file that has the constructor, if it is the user's own.
    """
    try:
        yield
    except (CommandLineError, UnsupportedModelError):
        raise
    except (Exception, SystemExit) as cause:
        frames = traceback.extract_tb(cause.__traceback__)
        frame = frames[-1]
        place = f" ({Path(frame.filename).name}, line {frame.lineno})"
        own = {Path(summary.filename).resolve() for summary in frames}
        if path is not None and path.resolve() not in own:
            place = ""  # the call does not fit, or the file is no Python: the cause says where
        raise UnsupportedModelError(f"{failure}: {type(cause).__name__}: {cause}{place}") from cause
