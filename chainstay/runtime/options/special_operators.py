"""Operators of torch of which options know more than what a run of them shows."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx
from torch.nn import functional

__all__ = ["ArgumentPlace", "is_dropout", "operator_name", "scratch_arguments"]

ArgumentPlace = int | str
"""The position of an argument, or its name."""

_DROPOUTS: Final = (functional.dropout, torch.dropout, torch.dropout_, torch.native_dropout)

_STATISTICS: Final[dict[Any, tuple[int, int, str]]] = {
    functional.batch_norm: (1, 5, "training"),
    functional.instance_norm: (1, 5, "use_input_stats"),
    torch.batch_norm: (3, 5, "training"),
    torch.instance_norm: (3, 5, "use_input_stats"),
}
"""Norms: the positions of the running mean and of the switch, and the name of the latter."""

_IN_PLACE: Final = ("iadd", "isub", "imul", "itruediv", "ipow")


def is_dropout(node: fx.Node) -> bool:
    """Whether a node multiplies its first argument by noise that depends on nothing else."""
    return node.target in _DROPOUTS and bool(node.args) and isinstance(node.args[0], fx.Node)


def scratch_arguments(node: fx.Node) -> dict[ArgumentPlace, fx.Node]:
    """Arguments that a norm only updates: what it gives depends on the batch's statistics."""
    if node.op != "call_function" or node.target not in _STATISTICS:
        return {}
    first, switch, name = _STATISTICS[node.target]
    places: dict[ArgumentPlace, object] = dict(enumerate(node.args))
    places.update(node.kwargs)
    if places.get(switch, places.get(name)) is not True:
        return {}
    kinds = (first, first + 1, "running_mean", "running_var")
    return {key: each for key in kinds if isinstance(each := places.get(key), fx.Node)}


def operator_name(node: fx.Node) -> str:
    """What people call the operator of a node."""
    if node.op == "call_module":
        return "region"
    name = str(getattr(node.target, "__name__", node.target)).strip("_")
    return name.removeprefix("i") if name in _IN_PLACE else name
