"""The calls of a model's modules during its forward, and the choice of blocks among them.

Tensors are told apart by numbers, so that none is held for the sake of its identity; a tensor
changed in place is another one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.blocks.entrances import block_handler, entered, run_plainly
from chainstay.runtime.capture.cuts.stage_names import (
    container_of,
    listed_children,
    modules_around,
    outermost,
)
from chainstay.runtime.capture.trials.compiled_calls import compiler_of, outside_compiled
from chainstay.runtime.execute.handles import TELLS_HOOKS, present_hooks
from chainstay.runtime.stage.states import state_bytes, tensors_in, version_of


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor among the arguments or results of a call.

    Attributes:
        number: Tells the object from others.
        version: How often it had been changed in place.
        requires_grad: Whether it required a gradient at that time.
        is_parameter: Whether it is a parameter of some module.
        storage_bytes: Bytes of the memory that it lies in.
    """

    number: int
    version: int
    requires_grad: bool
    is_parameter: bool
    storage_bytes: int


@dataclass(slots=True)
class TensorNumbers:
    """Numbers tensors as they are met, without holding them."""

    numbers: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    unused: Iterator[int] = field(default_factory=count)

    def seen(self, tensor: torch.Tensor) -> SeenTensor:
        """Return `tensor` as it is now."""
        if tensor not in self.numbers:
            self.numbers[tensor] = next(self.unused)
        return SeenTensor(
            number=self.numbers[tensor],
            version=version_of(tensor),
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, nn.Parameter),
            storage_bytes=_storage_bytes(tensor),
        )

    def all_seen(self, value: object) -> tuple[SeenTensor, ...]:
        """Return the distinct tensors in `value`, in order."""
        return tuple(dict.fromkeys(map(self.seen, tensors_in(value))))


@dataclass(frozen=True, slots=True)
class BlockCall:
    """One call of a module.

    Attributes:
        name: Path of the module in the model.
        block: The module.
        inputs: Distinct tensors among its arguments.
        outputs: Distinct tensors in what it returned.
    """

    name: str
    block: nn.Module
    inputs: tuple[SeenTensor, ...]
    outputs: tuple[SeenTensor, ...]

    @property
    def taken(self) -> tuple[SeenTensor, ...]:
        """Distinct tensors among the inputs that require a gradient."""
        return tuple(tensor for tensor in self.inputs if tensor.requires_grad)

    @property
    def is_stage(self) -> bool:
        """Whether it makes a tensor that has a gradient, and is given no trained parameter.

        ``nn.Identity`` makes none.
        """
        makes = any(tensor.requires_grad and tensor not in self.inputs for tensor in self.outputs)
        return makes and not any(tensor.is_parameter for tensor in self.taken)


def record_calls(model: nn.Module, run: Callable[[], object]) -> list[BlockCall]:
    """Return the calls of all modules in a model, in the order of their ends."""
    numbers, paths = TensorNumbers(), called_modules(model)
    calls: list[BlockCall] = []

    def record(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        inputs = numbers.all_seen((args, kwargs))
        with block_handler.set_to(record):  # what is in the block, too
            result = run_plainly(block, args, kwargs)
        outputs = numbers.all_seen(result)
        calls.append(BlockCall(paths[block], block, inputs, outputs))
        return result

    with entered(paths), block_handler.set_to(record):
        run()
    return calls


def called_modules(model: nn.Module) -> Mapping[nn.Module, str]:
    """Return the paths of the modules in a model whose calls can be seen."""
    seen = set(outside_compiled(model))
    return {
        module: path
        for path, module in model.named_modules()
        if path
        and module in seen
        and not isinstance(module, torch.jit.ScriptModule)
        and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    }


def compiled_blocks(model: nn.Module) -> dict[str, str]:
    """Return the reason why children of the model's containers cannot be stages, if compiled."""
    scripted = "torch.jit has compiled it, so use the module that it was made of"
    hidden = (
        "torch.compile has compiled it with the blocks inside as one; compile these one by one "
        "instead (block.compile())"
    )
    seen, listed = set(outside_compiled(model)), list(listed_children(model))
    blocks = {path for path, child in listed if child in seen}
    reasons: dict[str, str] = {}
    for path, child in listed:
        if isinstance(child, torch.jit.ScriptModule):
            reasons[path] = scripted
        elif child not in seen:
            around = modules_around(path)
            compiled = next(p for p in around if compiler_of(model.get_submodule(p)) is not None)
            if not blocks.intersection(around[: around.index(compiled) + 1]):
                reasons[compiled] = hidden
    return reasons


def require_not_checkpointed(around: object) -> None:
    """Refuse a block that the model's forward calls inside of a `torch.utils.checkpoint`.

    That would run the block's own forward in the backward, and count what this saves. A checkpoint
    that is `around` the model, as `present_checkpoint` tells it, is another matter.
    """
    present = present_checkpoint()
    if present is not None and present != around:
        raise UnsupportedModelError(
            "torch.utils.checkpoint runs it again in the backward, as a plan does; leave that out"
        )


def present_checkpoint() -> object:
    """Return what the innermost `torch.utils.checkpoint` is known by, ``None`` outside of any.

    That is its hooks on saved tensors, or its frame where torch, as 2.6, does not tell hooks.
    """
    if hooks := present_hooks():
        return hooks if hooks[0].__module__ == checkpoint.__name__ else None
    frame = None if TELLS_HOOKS else sys._getframe()  # noqa: SLF001  # as `inspect` has it
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame


def _storage_bytes(tensor: torch.Tensor) -> int:
    if str(tensor.layout).startswith("torch.sparse"):
        return state_bytes((tensor,))
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else tensor.nbytes


def follows(segment: Sequence[BlockCall], call: BlockCall) -> bool:
    """Whether `call` takes all that has a gradient of what the last call of `segment` made.

    Whatever else it takes with a gradient must be from the segment, unchanged.
    """
    passed = {tensor for tensor in segment[-1].outputs if tensor.requires_grad}
    known = {*segment[0].taken, *(tensor for before in segment for tensor in before.outputs)}
    return bool(passed) and passed <= {*call.taken} <= known


def choose_calls(
    calls: Sequence[BlockCall],
    lists: Collection[str],
    unfit: Collection[str],
    expanded: Collection[str],
) -> list[BlockCall]:
    """Return the calls to take, in order.

    There are three candidates: lists mainly of one class in which one call follows another, with
    what is in a chain with these, lists of one class only, and the largest list. The first that has
    half of the parameters of the largest candidate is taken. Modules inside of `expanded` come
    besides.

    Args:
        calls: Those of all modules.
        lists: The paths of the model's containers.
        unfit: The paths of modules that cannot be stages.
        expanded: The paths of modules of which the outermost modules inside are taken, too; ``""``
            stands for the model.
    """
    fit = [call for call in calls if call.is_stage and call.name not in unfit]
    groups: dict[str, list[BlockCall]] = {}
    for call in fit:
        if container_of(call.name) in lists:
            groups.setdefault(container_of(call.name), []).append(call)
    mainly = {path: _of_main_class(group) for path, group in groups.items()}
    chained = {
        path: _with_neighbours(group, groups[path])
        for path, group in mainly.items()
        if any(follows([one], other) for one, other in pairwise(group))
    }
    several = {path: group for path, group in groups.items() if len(group) >= 2}
    alike = {
        path: group
        for path, group in several.items()
        if len({type(call.block) for call in group}) == 1
    }
    outside = (group for path, group in several.items() if not _is_in(path, expanded))
    largest = max(outside, key=_parameters, default=[])
    found = [_finest(chained), _finest(alike), largest]
    most = max(map(_parameters, found))
    taken = {call.name for call in next(f for f in found if 2 * _parameters(f) >= most)}
    around = {outer for path in (*taken, *unfit) for outer in modules_around(path)}
    inside = [
        call.name
        for call in fit
        if _is_in(call.name, expanded) and not _is_in(call.name, taken) and call.name not in around
    ]
    taken.update(outermost(inside))
    return [call for call in fit if call.name in taken]


def _finest(groups: Mapping[str, Sequence[BlockCall]]) -> list[BlockCall]:
    """Return the calls of the finest lists with most of the parameters."""
    return [call for path, group in groups.items() if _is_chosen(path, groups) for call in group]


def _is_in(path: str, others: Collection[str]) -> bool:
    return any(outer in others for outer in modules_around(path))


def _of_main_class(group: Sequence[BlockCall]) -> Sequence[BlockCall]:
    """Return the calls of the class that most of a list's calls are of; none if there is none."""
    (kind, count), *_ = Counter(type(call.block) for call in group).most_common(1)
    return [call for call in group if type(call.block) is kind] if 2 * count > len(group) else []


def _with_neighbours(calls: Sequence[BlockCall], group: Sequence[BlockCall]) -> list[BlockCall]:
    """Return some calls of a list, and those of other classes that are in a chain with them.

    The first block of an encoder of speech is of a class of its own, and makes the largest tensors.
    """
    known = set(map(id, calls))
    is_taken = [id(call) in known for call in group]
    pairs = [i for i, (one, other) in enumerate(pairwise(group)) if follows([one], other)]
    for i in (*pairs, *reversed(pairs)):
        is_taken[i] = is_taken[i + 1] = is_taken[i] or is_taken[i + 1]
    return [call for call, taken in zip(group, is_taken, strict=True) if taken]


def _parameters(group: Sequence[BlockCall]) -> int:
    blocks = {call.block for call in group}
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def _is_chosen(path: str, candidates: Mapping[str, Sequence[BlockCall]]) -> bool:
    """Whether list `path` is one of the finest with most of the parameters."""
    outer = [other for other in modules_around(path) if other in candidates]
    return not _is_split(path, candidates) and all(_is_split(other, candidates) for other in outer)


def _is_split(path: str, candidates: Mapping[str, Sequence[BlockCall]]) -> bool:
    """Whether lists inside the blocks of list `path` are taken in its place."""
    inner = [other for other in candidates if path in modules_around(other)]
    held = sum(_parameters(candidates[other]) for other in outermost(inner))
    return bool(inner) and 2 * held >= _parameters(candidates[path])
