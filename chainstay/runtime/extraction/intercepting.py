"""The repeated blocks of a model as a chain, for models that cannot be exported.

The model runs once. Of its containers (ModuleList, Sequential, ModuleDict) the one is taken
whose children's calls form the chain with most parameters: what a block returns is, by
identity, what the next one takes, beside tensors without gradient that the first one took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.binding import version_of
from chainstay.runtime.extraction.blocks import (
    BlockStage,
    InterceptedChain,
    SharedSlot,
    StateSlot,
    Template,
)
from chainstay.runtime.extraction.calls import device_of, require_module_and_tuple
from chainstay.runtime.extraction.values import Value
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.probe import dropping

__all__ = ["intercept"]


def intercept(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
) -> InterceptedChain:
    """Find the blocks of `model` that can be run as stages, and what they pass on.

    The model runs once on the sample, its hooks included, and is left as it was but for
    attributes that its forward assigns.

    Args:
        model: Any module with a list of blocks that are called one after another.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.

    Raises:
        UnsupportedModelError: The calls of no two blocks form a chain.

    Example:
        >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        >>> [stage.name for stage in intercept(model, (torch.zeros(2, 8),)).stages]
        ['0', '1', '2']
    """
    kwargs = dict(sample_kwargs or {})
    require_module_and_tuple(model, sample_args)
    device = device_of(model, sample_args, kwargs)
    with undisturbed(model.modules(), device), torch.enable_grad(), dropping():
        calls = _recorded(model, sample_args, kwargs)
    runs = [run for group in calls.values() for run in _runs(group)]
    chain = max(runs, key=_weight, default=())
    if len(chain) < 2:
        raise UnsupportedModelError(
            f"no blocks of {type(model).__name__} form a chain: in none of its lists of modules "
            "does a block take just what the one before returns; pass a list of stages instead"
        )
    return _assembled(model, chain)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One call of a block; holds its tensors, so that identities stay what they are.

    Attributes:
        name: Path of the block in the model.
        block: The user's module.
        forward: What calling it does.
        inputs: Leaves of its arguments.
        input_spec: How they nest.
        outputs: Leaves of what it returned.
        output_spec: How they nest.
        versions_taken: Of the inputs by identity, as counted before the call.
        versions_left: Of inputs and outputs, as counted after it.
    """

    name: str
    block: nn.Module
    forward: Callable[..., Any]
    inputs: list[Any]
    input_spec: TreeSpec
    outputs: list[Any]
    output_spec: TreeSpec
    versions_taken: dict[int, int]
    versions_left: dict[int, int]

    def is_repeatable(self) -> bool:
        """Whether it left its inputs as they were, so that it can run on them again."""
        return all(self.versions_left[key] == count for key, count in self.versions_taken.items())

    def state_inputs(self) -> list[torch.Tensor]:
        """Distinct tensors among the inputs that require a gradient."""
        return _distinct(leaf for leaf in self.inputs if _wants_gradient(leaf))

    def side_inputs(self) -> list[torch.Tensor]:
        """Distinct other tensors among the inputs."""
        tensors = _distinct(leaf for leaf in self.inputs if isinstance(leaf, torch.Tensor))
        return [tensor for tensor in tensors if not tensor.requires_grad]

    def tensor_outputs(self) -> list[torch.Tensor]:
        """Distinct tensors among the outputs."""
        return _distinct(leaf for leaf in self.outputs if isinstance(leaf, torch.Tensor))


def _wants_gradient(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _recorded(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, list[_Call]]:
    """Calls of every container's children, by the container's path, in order."""
    calls: dict[str, list[_Call]] = {}
    with _recording(model, calls):
        model(*args, **kwargs)
    return calls


@contextmanager
def _recording(model: nn.Module, calls: dict[str, list[_Call]]) -> Iterator[None]:
    children = [
        (path, f"{path}.{name}" if path else name, child, child._compiled_call_impl)  # noqa: SLF001
        for path, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        for name, child in module.named_children()
    ]
    try:
        for path, name, child, _ in children:
            found = calls.setdefault(path, [])
            forward = child._compiled_call_impl or child._call_impl  # noqa: SLF001
            child._compiled_call_impl = _Recorder(found, name, child, forward)  # noqa: SLF001
        yield
    finally:
        for _, _, child, compiled in reversed(children):
            child._compiled_call_impl = compiled  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Stands in for a block while the model runs."""

    found: list[_Call]
    name: str
    block: nn.Module
    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the block's own
        """Call the block and take notes."""
        inputs, input_spec = tree_flatten((args, dict(sorted(kwargs.items()))))
        taken = _versions(inputs)
        result = self.forward(*args, **kwargs)
        outputs, output_spec = tree_flatten(result)
        self.found.append(
            _Call(
                name=self.name,
                block=self.block,
                forward=self.forward,
                inputs=inputs,
                input_spec=input_spec,
                outputs=outputs,
                output_spec=output_spec,
                versions_taken=taken,
                versions_left=_versions([*inputs, *outputs]),
            )
        )
        return result


def _versions(leaves: Iterable[object]) -> dict[int, int]:
    return {id(leaf): version_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _runs(calls: Sequence[_Call]) -> list[tuple[_Call, ...]]:
    """Longest stretches of calls that form a chain, of blocks called once that can run again."""
    counts = {call.name: 0 for call in calls}
    for call in calls:
        counts[call.name] += 1
    runs: list[tuple[_Call, ...]] = []
    for call in calls:
        if counts[call.name] > 1 or not call.is_repeatable():
            continue
        if runs and _continues(runs[-1], call):
            runs[-1] += (call,)
        else:
            runs.append((call,))
    return runs


def _continues(run: tuple[_Call, ...], call: _Call) -> bool:
    """Whether `call` takes all that the run's last call returns, and else what the first took."""
    passed = {(id(each), run[-1].versions_left[id(each)]) for each in run[-1].tensor_outputs()}
    taken = {(id(each), call.versions_taken[id(each)]) for each in call.state_inputs()}
    known = {id(tensor) for tensor in run[0].side_inputs()}
    return taken == passed and {id(tensor) for tensor in call.side_inputs()} <= known


def _weight(run: tuple[_Call, ...]) -> tuple[bool, int, int]:
    parameters = sum(parameter.numel() for call in run for parameter in call.block.parameters())
    return len(run) >= 2, parameters, len(run)


def _assembled(model: nn.Module, calls: Sequence[_Call]) -> InterceptedChain:
    shared = {id(tensor): index for index, tensor in enumerate(calls[0].side_inputs())}
    states = [calls[0].state_inputs(), *(call.tensor_outputs() for call in calls)]
    stages = []
    for call, before, after in zip(calls, states[:-1], states[1:], strict=True):
        stages.append(
            BlockStage(
                name=call.name,
                block=call.block,
                forward=call.forward,
                inputs=_template(call.inputs, call.input_spec, before, shared),
                output=_template(call.outputs, call.output_spec, after, {}),
            )
        )
    return InterceptedChain(
        model=model,
        stages=tuple(stages),
        boundaries=tuple(
            tuple(_values(states, cut, ["input", *(call.name for call in calls)]))
            for cut in range(len(states))
        ),
    )


def _template(
    leaves: Sequence[object],
    spec: TreeSpec,
    state: Sequence[torch.Tensor],
    shared: Mapping[int, int],
) -> Template:
    positions = {id(tensor): index for index, tensor in enumerate(state)}

    def slot(leaf: object) -> object:
        if id(leaf) in positions:
            return StateSlot(positions[id(leaf)])
        return SharedSlot(shared[id(leaf)]) if isinstance(leaf, torch.Tensor) else leaf

    return Template(tuple(map(slot, leaves)), spec)


def _values(
    states: Sequence[Sequence[torch.Tensor]], cut: int, makers: Sequence[str]
) -> Iterator[Value]:
    """The tensors of one state, described."""
    for index, tensor in enumerate(states[cut]):
        cuts = [other for other, state in enumerate(states) if any(x is tensor for x in state)]
        storage = tensor.untyped_storage()
        yield Value(
            name=f"{makers[cuts[0]]}.{index}",
            shape=tensor.shape,
            dtype=tensor.dtype,
            device=tensor.device,
            storage=storage.data_ptr(),
            storage_bytes=storage.nbytes(),
            requires_grad=tensor.requires_grad,
            is_external=False,
            first_cut=cuts[0],
            last_cut=cuts[-1],
        )
