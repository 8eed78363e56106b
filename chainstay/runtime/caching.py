"""What was measured, in files: one per model, call and machine, as JSON.

A file's name is a digest of everything that times and sizes depend on: the operators and
modules of every stage, shapes, types and strides of what they read and of the call, training
flags, autocast, device, threads, the versions of torch and chainstay. Values of tensors are
not in it. Where the model's own forward runs around its blocks, all its modules are looked at,
with their hooks and the plain values that they hold, and every process has files of its own.
Files are written at once or not at all; one that is
damaged is ignored with a warning, and replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import Final, TypeVar

import torch
from torch import distributed, fx, nn
from torch.utils._pytree import tree_flatten

from chainstay import documents
from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.files import write_text
from chainstay.profiles import Skip
from chainstay.runtime.accounting import Account, StageCost
from chainstay.runtime.costs import Subject
from chainstay.runtime.extraction.blocks import BlockStage
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.mode import Mode
from chainstay.runtime.stages import ChainStage

__all__ = [
    "AccountFile",
    "cost_from",
    "digest_of",
    "path_in",
    "read_sealed",
    "signature_around",
    "signature_of",
    "write_sealed",
]

T = TypeVar("T")

_DIGITS: Final = 16
_KIND: Final = "chain-account"
_VERSION: Final = 4
_NUMBERS: Final = tuple(field.name for field in fields(StageCost) if field.name != "name")
_PLAIN: Final = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_SEAL: Final = ("chainstay", "version", "digest")
_SKIP_NUMBERS: Final = tuple(field.name for field in fields(Skip))


@dataclass(frozen=True, slots=True)
class AccountFile:
    """Where the costs of one subject are, or will be.

    Attributes:
        path: In the directory of the cache.
        names: Of the subject's stages.
    """

    path: Path
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, signature: str, names: Iterable[str], directory: str | os.PathLike[str]
    ) -> AccountFile:
        """That of what has `signature` and stages of these names, in `directory`."""
        return cls(path_in(directory, signature), tuple(names))

    def read(self) -> Account | None:
        """What is there, if it is sound.

        Warns:
            UserWarning: Something is there, and it is not.
        """
        return read_sealed(self.path, _KIND, _VERSION, lambda found: _account(found, self.names))

    def write(self, account: Account) -> None:
        """Replace what is there, at once.

        Raises:
            OSError: The directory cannot be written to.
        """
        body = {
            "input_bytes": account.input_bytes,
            "input_gradient_bytes": account.input_gradient_bytes,
            "stages": [asdict(cost) for cost in account.stages],
            "skips": [asdict(skip) for skip in account.skips],
        }
        write_sealed(self.path, _KIND, _VERSION, body)


def path_in(directory: str | os.PathLike[str], signature: str) -> Path:
    """Where in `directory` the file of what has `signature` is."""
    digest = hashlib.sha256(signature.encode()).hexdigest()
    return Path(directory).expanduser() / f"{digest}.json"


def write_sealed(path: Path, kind: str, version: int, body: Mapping[str, object]) -> None:
    """Write a document with a digest of its own fields, at once.

    Raises:
        OSError: The directory cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, documents.dump(kind, version, {**body, "digest": _digest(body)}))


def read_sealed(path: Path, kind: str, version: int, parsed: Callable[[Fields], T]) -> T | None:
    """What `write_sealed` wrote, if it is there and sound.

    Args:
        path: Of the file.
        kind: Of the document.
        version: Of the document.
        parsed: Makes something of its fields, or raises an `InvalidProfileError`.

    Warns:
        UserWarning: Something is there, and it is not sound.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return parsed(_unsealed(documents.parse(text, kind, version, InvalidProfileError), kind))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, InvalidProfileError) as damage:
        warnings.warn(f"{path} is ignored: {damage}; the model is measured anew", stacklevel=3)
        return None


def _unsealed(document: Fields, kind: str) -> Fields:
    body = {k: v for k, v in document.values.items() if k not in _SEAL}
    if document.string("digest") != _digest(body):
        raise InvalidProfileError(f"{kind} document: its digest does not fit what it holds")
    return document


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def cost_from(found: Fields) -> StageCost:
    """What a stage costs, as `dataclasses.asdict` wrote it."""
    numbers = {each: found.integer(each) for each in _NUMBERS}
    return StageCost(name=found.string("name"), **numbers)


def _account(document: Fields, names: tuple[str, ...]) -> Account:
    """The account of stages of these names.

    Raises:
        InvalidProfileError: It is of others, or has numbers that no chain has.
    """
    account = Account(
        input_bytes=document.integer("input_bytes"),
        input_gradient_bytes=document.integer("input_gradient_bytes"),
        stages=tuple(map(cost_from, document.children("stages"))),
        skips=tuple(
            Skip(**{each: skip.integer(each) for each in _SKIP_NUMBERS})
            for skip in document.children("skips")
        ),
    )
    if tuple(cost.name for cost in account.stages)[: len(names)] != names:
        raise InvalidProfileError(f"{_KIND} document: it is of other stages")
    account.profile()  # refuses numbers that no chain has
    return account


def signature_of(subject: Subject, mode: Mode) -> str:
    """All that times and sizes of a chain depend on, as text."""
    return "\n".join(_lines(subject, mode))


def signature_around(model: nn.Module, call: object, loss: object) -> str:
    """All that times and sizes of a model around its blocks depend on, as text.

    Args:
        model: As it runs.
        call: Its arguments, nested in any way.
        loss: From its output to a number; ``None`` if it is not known.
    """
    return "\n".join(_lines_around(model, call, loss))


def _lines(subject: Subject, mode: Mode) -> Iterator[str]:
    device = subject.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    yield f"chainstay {_own_version()}, torch {torch.__version__}"
    yield f"{torch.get_num_threads()} threads"
    yield f"{device.type} {name} {platform.machine()} {platform.node()}"
    yield f"{mode.autocast}, {mode.training}"
    yield f"deterministic {torch.are_deterministic_algorithms_enabled()}"
    for tensor in (*subject.source, *subject.shared):
        yield _tensor(tensor)
    for stage in subject.stages:
        yield from _stage(stage)


def _lines_around(model: nn.Module, call: object, loss: object) -> Iterator[str]:
    if distributed.is_available() and distributed.is_initialized():
        yield f"process {distributed.get_rank()} of {distributed.get_world_size()}"
    leaves, spec = tree_flatten(call)
    yield f"{spec}"
    for leaf in leaves:
        yield _tensor(leaf) if isinstance(leaf, torch.Tensor) else _value(leaf)
    for held in (model, loss):
        yield from _callable(held)
        if isinstance(held, nn.Module):
            yield from _holdings(held)


def _holdings(model: nn.Module) -> Iterator[str]:
    """Of all its modules: hooks, plain values, tensors, a forward of their own."""
    for path, module in model.named_modules():
        yield f"module {path}"
        for name, value in sorted(vars(module).items()):
            if name.endswith("hooks") and isinstance(value, Mapping):
                for hook in value.values():
                    yield name
                    yield from _code(inspect.unwrap(hook))
            elif not callable(value):
                yield f"{name}: {_value(value)}"
        if "forward" in vars(module):
            yield from _code(inspect.unwrap(module.forward))
        if module._compiled_call_impl is not None:  # noqa: SLF001  # no other way to know
            yield "compiled"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"{name}: {_tensor(tensor)}"


def _value(value: object) -> str:
    """By its type, and by the plain values in it: those of a configuration, for example."""
    if isinstance(value, _PLAIN):
        return repr(value)
    held = vars(value) if hasattr(value, "__dict__") else value
    if isinstance(held, Mapping):
        inside = [f"{name}={_value_inside(each)}" for name, each in held.items()]
        return f"{type(value)}: {sorted(inside)}"
    if isinstance(value, list | tuple):
        return f"{type(value)}: {[_value_inside(each) for each in value]}"
    return f"{type(value)}"


def _value_inside(value: object) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value)}"


def digest_of(stage: ChainStage) -> str:
    """Of all that the stage computes, and of the tensors that it reads from modules."""
    return hashlib.sha256("\n".join(_stage(stage)).encode()).hexdigest()[:_DIGITS]


def _stage(stage: ChainStage) -> Iterator[str]:
    yield f"stage {stage.name}, {'the loss' if stage.is_loss else 'of the model'}"
    for part in stage.parts:
        if isinstance(part, GraphStage):
            yield from _graph(part.program.body)
        elif isinstance(part, BlockStage):
            yield from _callable(part.block)
        else:
            yield from _callable(getattr(part, "function", part))
    for module, place, tensor in stage.tensors():
        yield f"{type(module).__qualname__}.{place}: {_tensor(tensor)}"


def _own_version() -> str:
    try:
        return metadata.version("chainstay")
    except metadata.PackageNotFoundError:
        return "not installed"


def _tensor(tensor: torch.Tensor) -> str:
    return f"{tensor.shape} {tensor.stride()} {tensor.dtype} {tensor.requires_grad}"


def _graph(body: fx.GraphModule) -> Iterator[str]:
    yield body.code
    for module in body.modules():
        inner = getattr(getattr(module, "function", None), "__self__", None)
        if isinstance(inner, fx.GraphModule):
            yield f"{module!r}"
            yield from _graph(inner)


def _callable(function: object) -> Iterator[str]:
    """A module with all inside, or a function, by what it says and by its code."""
    if not isinstance(function, nn.Module):
        yield from _code(inspect.unwrap(function) if callable(function) else function)
        return
    yield repr(function)
    for kind in dict.fromkeys(type(module) for module in function.modules()):
        yield from _code(kind.forward)


def _code(function: object) -> Iterator[str]:
    if isinstance(function, partial):
        yield f"{_value(function.args)} {_value(function.keywords)}"
        yield from _code(function.func)
        return
    yield getattr(function, "__qualname__", "")  # wherever it was imported from
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        yield _tensor(held) if isinstance(held, torch.Tensor) else f"{type(held)}"
        if isinstance(held, bool | int | float | str | None):
            yield repr(held)
    for name in ("__defaults__", "__kwdefaults__"):
        yield _value(getattr(function, name, None))
    code = getattr(function, "__code__", None)
    pending = [code] if isinstance(code, CodeType) else []
    while pending:
        code = pending.pop()
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
        plain = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
        yield f"{code.co_code.hex()} {code.co_names} {plain}"
