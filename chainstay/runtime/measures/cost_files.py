"""Files with measured costs: one per model, call and machine, as JSON.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from types import CellType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import distributed, nn
from torch.utils._pytree import tree_flatten

from chainstay import documents
from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.files import write_file
from chainstay.profiles import Skip
from chainstay.runtime.capture.trials.compiled_calls import compiler_of
from chainstay.runtime.capture.trials.model_forward import own_forward
from chainstay.runtime.devices.accelerator import allocator_settings
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.backend_settings import backend_settings, kernel_libraries
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.stage_cost import OptionCost, StageCost
from chainstay.runtime.stage.chain_stage import ChainStage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_T = TypeVar("_T")
_R = TypeVar("_R", bound="DataclassInstance")

_DIGITS: Final = 16
_KIND: Final = "chain-account"
_VERSION: Final = 12
_SEAL: Final = ("chainstay", "version", "digest")


@dataclass(frozen=True, slots=True)
class AccountFile:
    """The file for the costs of one subject, whether or not it exists.

    Attributes:
        path: The file's path in the directory of the cache.
        names: The names of the subject's stages.
    """

    path: Path
    names: tuple[str, ...]

    def read(self) -> Account | None:
        """Return the costs in the file, if they are sound.

        Warns:
            UserWarning: Something is there, and it is not.
        """
        return read_sealed(self.path, _KIND, _VERSION, lambda found: _account(found, self.names))

    def write(self, account: Account) -> None:
        """Replace what is there, at once.

        Warns:
            UserWarning: The directory cannot be written to.
        """
        write_sealed(self.path, _KIND, _VERSION, asdict(account))


def require_cache(cache: object) -> None:
    """Refuse a cache that could not be written, before anything is measured.

    Raises:
        ValueError: It is no path of a directory, or none can be made or written to there.
    """
    if cache is None:
        return
    is_usable = False
    if isinstance(cache, str | os.PathLike):
        path = Path(cache).expanduser().absolute()
        there = next(place for place in (path, *path.parents) if place.exists())
        is_usable = there.is_dir() and os.access(there, os.W_OK)
    if not is_usable:
        given = str(cache) if isinstance(cache, os.PathLike) else cache
        raise ValueError(f"cache is {given!r}, must be a directory that can be written or made")


def path_in(directory: str | os.PathLike[str], signature: str) -> Path:
    """Return the path in `directory` of the file for `signature`."""
    digest = hashlib.sha256(signature.encode()).hexdigest()
    return Path(directory).expanduser() / f"{digest}.json"


def write_sealed(path: Path, kind: str, version: int, body: Mapping[str, object]) -> None:
    """Write a document with a digest of its own fields, at once.

    Warns:
        UserWarning: The directory cannot be made, or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, documents.dump(kind, version, {**body, "digest": _digest(body)}))
    except OSError as failure:
        warnings.warn(f"{path} is not written: {failure}; choose another cache", stacklevel=3)


def read_sealed(path: Path, kind: str, version: int, parsed: Callable[[Fields], _T]) -> _T | None:
    """Return what `parsed` makes of the fields of a file, if it is there and sound.

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


def record_from(kind: type[_R], found: Fields, **others: Any) -> _R:
    """Return a record of class `kind`, as `dataclasses.asdict` wrote it.

    `others` are its fields that are no numbers, lists of numbers, texts or flags.
    """
    readers: dict[str, Callable[[str], object]] = {
        "int": found.integer,
        "tuple[int, ...]": found.integers,
        "str": found.string,
        "bool": found.boolean,
    }
    plain = [field for field in fields(kind) if field.type in readers]
    return kind(**{field.name: readers[str(field.type)](field.name) for field in plain}, **others)


def cost_from(found: Fields) -> StageCost:
    """Return the costs of a stage, as `dataclasses.asdict` wrote them."""
    options = (record_from(OptionCost, option) for option in found.children("options"))
    return record_from(StageCost, found, options=tuple(options))


def _account(document: Fields, names: tuple[str, ...]) -> Account:
    """The account of stages of these names.

    Raises:
        InvalidProfileError: It is of others, or has numbers that no chain has.
    """
    account = record_from(
        Account,
        document,
        stages=tuple(map(cost_from, document.children("stages"))),
        skips=tuple(record_from(Skip, skip) for skip in document.children("skips")),
    )
    if tuple(cost.name for cost in account.stages)[: len(names)] != names:
        raise InvalidProfileError(f"{_KIND} document: it is of other stages")
    account.profile()  # refuses numbers that no chain has
    return account


def signature_of(subject: Subject, autocast: Autocast | None) -> str:
    """All that times and sizes of a chain depend on, as text."""
    return "\n".join(_lines(subject, autocast))


def signature_around(model: nn.Module, call: object, loss: str) -> str:
    """Return a text that times and sizes of a model around its blocks depend on."""
    return "\n".join([*_lines_around(model, call), loss])


def _lines_around(model: nn.Module, call: object) -> Iterator[str]:
    if distributed.is_available() and distributed.is_initialized():
        yield f"process {distributed.get_rank()} of {distributed.get_world_size()}"
    leaves, spec = tree_flatten(call)
    yield f"{spec}"
    for leaf in leaves:
        yield _text_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
    for path, module in model.named_modules():
        yield f"module {path}: {module.extra_repr()} {module.training}"
        for kind in type(module).__mro__:
            yield f"{kind.__qualname__} {_code_of(vars(kind).get('forward'))}"
        own = own_forward(module)
        yield f"own {_code_of(getattr(own, '__func__', own))}"
        yield f"compiled {compiler_of(module) is not None}"
        for name, value in sorted(vars(module).items()):
            if isinstance(value, bool | int | float | str):
                yield f"{name}: {value!r}"
            elif name.endswith("_hooks") and isinstance(value, Mapping):
                yield from (f"{name}: {getattr(h, '__qualname__', h)}" for h in value.values())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"{name}: {_text_of(tensor)}"


def _code_of(function: object) -> str:
    """Return what a function does, as far as its code and plain values in its closure tell."""
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(type(function))
    plain = (bool, int, float, str, bytes, type(None))
    cells = getattr(function, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if cell != CellType()]
    values = [value for value in (*code.co_consts, *held) if isinstance(value, plain)]
    return f"{code.co_code.hex()} {code.co_names} {values}"


def digest_of(stage: ChainStage) -> str:
    """A digest of all that the stage computes."""
    text = "\n".join([stage.name, *(part.text for part in stage.parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _lines(subject: Subject, autocast: Autocast | None) -> Iterator[str]:
    device = subject.device
    name = device_at(device).name()
    yield f"chainstay {_own_version()}, torch {torch.__version__}"
    yield f"{torch.get_num_threads()} threads"
    yield f"{device.type} {name} {platform.machine()} {platform.node()}"
    yield f"{autocast}"
    yield f"deterministic {torch.are_deterministic_algorithms_enabled()}"
    yield f"kernels {backend_settings()}, {kernel_libraries()}, allocator {allocator_settings()}"
    for tensor in (*subject.source, *subject.counted):
        yield _text_of(tensor)
    for stage in subject.stages:
        yield f"stage {stage.name}, {'the loss' if stage.is_loss else 'of the model'}"
        yield from (part.text for part in stage.parts)
        yield from (_text_of(subject.shared[position]) for position in stage.effects.reads)


def _text_of(value: object) -> str:
    """Return the layout of a tensor as text; numbers differ from call to call and are left out."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    strides = value.stride() if value.layout == torch.strided else value.layout
    return f"{value.shape} {strides} {value.dtype} {value.requires_grad}"


def _own_version() -> str:
    try:
        return metadata.version("chainstay")
    except metadata.PackageNotFoundError:
        return "not installed"
