"""Whether an extracted chain is the model, asked without trusting the extraction.

torch.export drops custom backwards, tensor hooks and some gradient modes without a word.
Here model and chain both run on the sample, for real. Outputs, buffers and random states
must be equal bit for bit, and the autograd graphs node for node: equal operators on equal
tensors give equal gradients. Nothing is saved for a backward, so this takes little memory.

Some models take another way to the same values when they are traced (masks that mask nothing
are left out only when values can be looked at). Where graphs differ, gradients decide; what is
saved for them is on the CPU meanwhile. Models of fake tensors have no values to compare; their
graphs must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.extraction.untouched import attributes_kept
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.probe import dropping

__all__ = ["require_same"]

_SAME_BACKWARD: Final = {"UnsafeViewBackward0": "ViewBackward0"}
"""Reshapes whose copies were made by another operator when traced; gradients are reshaped alike."""


def require_same(
    model: nn.Module,
    chain: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
) -> None:
    """Refuse a chain that does anything else than its model.

    Raises:
        UnsupportedModelError: The text says what differs.
    """
    trial = _Trial(model, args, kwargs, device)
    with attributes_kept(model) as attributes:
        expected = trial.run(model, dropping())
    if attributes.assigned:
        raise UnsupportedModelError(
            f"the forward of {type(model).__name__} assigns {', '.join(attributes.assigned[:3])}, "
            "which its stages would not; register it as a buffer and change that in place, or "
            "use intercept()"
        )
    found = trial.run(chain, dropping())
    difference = next(_differences(expected, found), None)
    if difference is None and expected.graph != found.graph:
        difference = (
            next(trial.differing_gradients(chain), None)
            if _has_values(expected.random_state)
            else "its backward is another one"
        )
    if difference is not None:
        raise UnsupportedModelError(
            f"what torch.export makes of {type(model).__name__} is not the model: {difference}; "
            "use intercept() on its blocks"
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a forward leaves behind.

    Attributes:
        outputs: Leaf by leaf, without their graph.
        graph: Node by node; see `_graph_of`.
        own_backwards: Names of `torch.autograd.Function`'s in it.
        buffers: Copies of the model's, by path.
        random_state: The CPU's, afterwards.
    """

    outputs: list[object]
    graph: list[tuple[object, ...]]
    own_backwards: list[str]
    buffers: dict[str, torch.Tensor]
    random_state: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Trial:
    """A call that model and chain are tried with."""

    model: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    device: torch.device

    def run(self, forward: Callable[..., Any], hooks: AbstractContextManager[object]) -> _Outcome:
        """A forward, from the model's present buffers and random states."""
        with undisturbed(self.model.modules(), self.device), torch.enable_grad():
            outputs = self._outputs(forward, hooks)
            graph = _Graph.of(outputs)
            return _Outcome(
                outputs=[_detached(leaf) for leaf in outputs],
                graph=graph.nodes,
                own_backwards=graph.own_backwards,
                buffers={name: each.clone() for name, each in self.model.named_buffers()},
                random_state=torch.get_rng_state(),
            )

    def differing_gradients(self, chain: Callable[..., Any]) -> Iterator[str]:
        """Parameters whose gradients differ, in words."""
        parameters = {
            name: each for name, each in self.model.named_parameters() if each.requires_grad
        }
        expected = self._gradients(self.model, list(parameters.values()))
        found = self._gradients(chain, list(parameters.values()))
        for name, old, new in zip(parameters, expected, found, strict=True):
            if not _is_same(old, new):
                yield f"the gradient of {name} is another one"

    def _gradients(
        self, forward: Callable[..., Any], parameters: list[nn.Parameter]
    ) -> Sequence[torch.Tensor | None]:
        """Gradients of half the sum of all outputs' squares."""
        with undisturbed(self.model.modules(), self.device), torch.enable_grad():
            outputs = self._outputs(forward, torch.autograd.graph.save_on_cpu())
            roots = [
                leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            return torch.autograd.grad(
                roots, parameters, [root.detach() for root in roots], allow_unused=True
            )

    def _outputs(
        self, forward: Callable[..., Any], hooks: AbstractContextManager[object]
    ) -> list[object]:
        with hooks, _RefuseTensorHooks():
            return tree_leaves(forward(*self.args, **self.kwargs))


def _detached(leaf: object) -> object:
    """A leaf without its graph, but still telling whether it needs a gradient."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)


class _RefuseTensorHooks(TorchFunctionMode):
    """Hooks that a forward registers on its tensors are not in an exported graph."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # what func returns
        if func is torch.Tensor.register_hook:
            raise UnsupportedModelError(
                "the forward registers a hook on a tensor, which its stages would not; "
                "register hooks on parameters, or use intercept() on the model's blocks"
            )
        return func(*args, **(kwargs or {}))


@dataclass(slots=True)
class _Graph:
    """The autograd graph of some outputs, in a fixed order.

    Attributes:
        nodes: Each node's name, the leaf it ends in, and which nodes are below.
        own_backwards: Names of those that were written in Python.
    """

    nodes: list[tuple[object, ...]] = field(default_factory=list)
    own_backwards: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, outputs: Sequence[object]) -> _Graph:
        """Walk down from `outputs`."""
        graph, numbers = cls(), _Numbers()
        for leaf in outputs:
            if isinstance(leaf, torch.Tensor):
                graph.nodes.append((leaf.requires_grad, leaf.output_nr, numbers[leaf.grad_fn]))
        for node in numbers.known:  # grows meanwhile
            if node is not None:
                below = [(numbers[each], index) for each, index in node.next_functions]
                name = _SAME_BACKWARD.get(node.name(), node.name())
                graph.nodes.append((name, id(getattr(node, "variable", None)), *below))
                if isinstance(node, BackwardCFunction):
                    graph.own_backwards.append(name)
        return graph


@dataclass(slots=True)
class _Numbers:
    """Numbers a graph's nodes as they are met."""

    known: list[Any] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)

    def __getitem__(self, node: Any) -> int:  # noqa: ANN401  # nodes have no common type
        if node not in self.numbers:
            self.numbers[node] = len(self.known)
            self.known.append(node)
        return self.numbers[node]


def _differences(expected: _Outcome, found: _Outcome) -> Iterator[str]:
    """What differs whatever the gradients, in words."""
    if expected.own_backwards != found.own_backwards:
        yield f"the backward of {expected.own_backwards[0]}, written in Python, is lost"
    for index, (old, new) in enumerate(zip(expected.outputs, found.outputs, strict=True)):
        if not _is_same(old, new):
            yield f"leaf {index} of the output is another one"
    for name, buffer in expected.buffers.items():
        if not _is_same(buffer, found.buffers[name]):
            yield f"it leaves other values in the buffer {name}"
    if not _is_same(expected.random_state, found.random_state):
        yield "it draws other random numbers"


def _has_values(tensor: torch.Tensor) -> bool:
    """Fake tensors have none, and nothing has any while a mode makes all results fake."""
    return not isinstance(tensor, FakeTensor) and active_fake_mode() is None


def _is_same(old: object, new: object) -> bool:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return type(old) is type(new) and bool(old == new)
    if old.dtype != new.dtype or old.shape != new.shape or old.requires_grad != new.requires_grad:
        return False
    if not _has_values(old):
        return True
    return bool(((old == new) | ((old != old) & (new != new))).all())  # noqa: PLR0124  # NaN
