"""A user's `torch.autograd.Function`, as TorchDynamo has traced it.

torch's own operator for it keeps what the backward needs where no hook sees it, and longer than
the backward takes. Here all of it is saved as operators save it, so that a plan can drop it:
also tensors that the user put on ``ctx``, which plain training has to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from chainstay.runtime.capture.subgraphs import called_name

OPERATOR: Final = "autograd_function_apply"
"""Name of torch's operator."""


class CustomFunction(nn.Module):
    """Applies such a function.

    Args:
        first: Gives the outputs, and what is saved.
        second: Gives gradients, from those of the outputs and what was saved.
        options: Keyword arguments of torch's operator.
    """

    def __init__(
        self, first: fx.GraphModule, second: fx.GraphModule, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.first, self.second = _in_any_mode(first), _in_any_mode(second)
        self.dirty: Collection[int] = tuple(options.get("dirty_idx", ()))
        self.constant: Collection[int] = tuple(options.get("non_differentiable_idx", ()))
        self.checked: Collection[int] | None = options.get("saved_for_backward_idx")
        # Graphs by torch 2.6 take a context first, and gradients are for the first arguments only.
        mask: Sequence[bool] | None = options.get("args_tensor_mask")
        self.context = () if mask is None else (None,)
        self.count = None if mask is None else sum(mask)

    def forward(self, *args: Any) -> Any:
        """Return the results of the function."""
        trained = args[: self.count]
        return _Applied.apply(self, args[len(trained) :], *trained)  # type: ignore[no-untyped-call]  # torch does not annotate it

    @property
    def code(self) -> str:
        """A text of the function's computation."""
        return f"{self.first.code}\n{self.second.code}\n{self.dirty} {self.constant} {self.count}"


def require_gradient(made: torch.Tensor) -> torch.Tensor:
    """Return `made`; in a captured graph, this is where the forward makes it require a gradient."""
    return made.requires_grad_()


class RequiringGradient(nn.Module):
    """Makes a result require a gradient, as `requires_grad_()` does, but no leaf that keeps one."""

    code = "requires_grad_"

    def forward(self, made: torch.Tensor) -> torch.Tensor:
        """Return `made`, as what requires a gradient."""
        trained = torch.empty(0, device=made.device, requires_grad=True)
        result: torch.Tensor = _Required.apply(made, trained)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return result


class _Required(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, made: torch.Tensor, _trained: torch.Tensor) -> torch.Tensor:
        return made.view_as(made)

    @staticmethod
    def backward(_ctx: Any, _gradient: torch.Tensor) -> tuple[None, None]:
        return None, None


def _in_any_mode(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy that does not turn gradients off at first: ``create_graph`` needs them."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    ends = [node for node in (*nodes[:1], *nodes[-1:]) if called_name(node) == "_set_grad_enabled"]
    if len(ends) == 2 and [node.args[0] for node in ends] == [False, True]:
        for node in ends:
            graph.erase_node(node)
    return fx.GraphModule(module, graph)


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: CustomFunction, constants: tuple[Any, ...], *args: Any) -> Any:
        output, saved = function.first(*function.context, *args, *constants)
        outputs = output if isinstance(output, tuple | list) else (output,)
        if function.dirty:
            ctx.mark_dirty(*(outputs[index] for index in function.dirty))
        if function.constant:
            ctx.mark_non_differentiable(*(outputs[index] for index in function.constant))
        ctx.function = function
        ctx.saved = [None if isinstance(value, torch.Tensor) else value for value in saved]
        ctx.save_for_backward(
            *(
                value if function.checked is None or index in function.checked else value.data
                for index, value in enumerate(saved)
                if isinstance(value, torch.Tensor)
            )
        )
        ctx.places = [n for n, value in enumerate(saved) if isinstance(value, torch.Tensor)]
        return tuple(output) if isinstance(output, list) else output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        saved = list(ctx.saved)
        for place, value in zip(ctx.places, ctx.saved_tensors, strict=True):
            saved[place] = value
        function = ctx.function
        found = function.second(*function.context, *gradients, *saved)
        return None, None, *(found if isinstance(found, tuple | list) else (found,))
