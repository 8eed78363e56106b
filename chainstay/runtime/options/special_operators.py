"""Operators of torch of which options know more than what a run of them shows."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx.operator_schemas import normalize_function
from torch.nn import functional

from chainstay.runtime.capture.subgraphs import tags_of

_DROPOUTS: Final = (functional.dropout, torch.dropout, torch.dropout_, torch.native_dropout)

_ARITHMETIC: Final = frozenset({"add", "sub", "subtract", "mul", "multiply", "div", "truediv"})

_GRAPHLESS: Final = frozenset(
    {"bfloat16", "cat", "double", "dropout_noise", "float", "half", "layer_norm", "layout_like"}
    | {"mean", "scale", "softmax", "stack", "sum", "to", "truediv", "type_as"}
)
"""Operators, besides elementwise ones, of the same bits whether or not autograd records them."""

_NORMS: Final = (functional.batch_norm, torch.batch_norm)
"""Norms that update statistics. (Norms of instances save statistics after their update.)"""

_IN_PLACE: Final = ("iadd", "isub", "imul", "itruediv", "ipow")


def is_dropout(node: fx.Node) -> bool:
    """Whether a node multiplies its first argument by noise that depends on nothing else."""
    return node.target in _DROPOUTS and bool(node.args) and isinstance(node.args[0], fx.Node)


def depends_on_dispatch_modes(node: fx.Node) -> bool:
    """Whether a node goes another way, and saves other tensors, where a dispatch mode is active."""
    return node.target is functional.ctc_loss


def is_arithmetic(node: fx.Node) -> bool:
    """Whether what a node saves is the same with any number among its arguments."""
    return operator_name(node) in _ARITHMETIC


def is_graphless(node: fx.Node) -> bool:
    """Whether a node gives the same bits whether or not autograd records it.

    Convolutions and products of matrices, for instance, choose other kernels without gradients.
    Of those that do not, none takes a weight in autocast's low precision: autocast would keep a
    copy that has no graph, for whoever is next.
    Of a user's own function nobody knows, whatever its name.
    """
    name = operator_name(node)
    if node.op == "call_module" or isinstance(node.target, OpOverload | OpOverloadPacket):
        return False
    place = getattr(node.target, "__module__", None) or "torch"  # builtins of torch have none
    if (
        place.partition(".")[0] not in ("torch", "_operator", "chainstay")
        and node.op != "call_method"
    ):
        return False
    return name in _GRAPHLESS or torch.Tag.pointwise in tags_of(name)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a function of torch's by name, with defaults; none if unknown."""
    target: Any = node.target
    named = normalize_function(target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)
    return {} if named is None else dict(named.kwargs)


def scratch_arguments(node: fx.Node) -> dict[str, fx.Node]:
    """Arguments that a norm only updates: what it gives depends on the batch's statistics."""
    known = arguments_of(node) if node.target in _NORMS else {}
    if known.get("training") is not True:
        return {}
    given = {name: known[name] for name in ("running_mean", "running_var")}
    return {name: value for name, value in given.items() if isinstance(value, fx.Node)}


def operator_name(node: fx.Node) -> str:
    """Return the name of a node's operator, for people."""
    if node.op == "call_module":
        return "region"
    name = str(getattr(node.target, "__name__", node.target)).strip("_")
    return name.removeprefix("i") if name in _IN_PLACE else name
