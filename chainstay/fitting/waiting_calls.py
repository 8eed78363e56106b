"""Calls that wait for their backward: what several take is told, as each has the whole budget."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from chainstay.solution import Solution
from chainstay.units import format_bytes


class _Call:
    """A hook on what made the outputs of a call; it lives as long as the call's graph.

    Attributes:
        waits: Whether the backward has not begun.
        tell_of_graph: Called if the backward makes a graph of its own.
    """

    def __init__(self, tell_of_graph: Callable[[], None]) -> None:
        self.waits = True
        self.tell_of_graph = tell_of_graph

    def __call__(self, _gradients: object) -> None:
        self.waits = False
        if torch.is_grad_enabled():
            self.tell_of_graph()


class WaitingCalls:
    """The calls of a fitted model whose graph is there, and whose backward has not begun.

    Args:
        name: The model's name.
        tell: Told, once each, of what takes more memory than the budget: several of these calls
            together, and a backward with ``create_graph=True``.
    """

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._calls: list[weakref.ref[_Call]] = []
        self._is_told_of_several = self._is_told_of_graph = False

    def add(self, output: Any, plan: Solution) -> None:
        """Note a call by its output; `plan` is the plan made last."""
        if self._is_told_of_several and self._is_told_of_graph:
            return
        call = _Call(self._tell_of_graph)
        tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        for node in {node for tensor in tensors if (node := tensor.grad_fn) is not None}:
            node.register_prehook(call)
        self._calls = [other for other in self._calls if (known := other()) and known.waits]
        self._calls.append(weakref.ref(call))
        if len(self._calls) * plan.peak_bytes > plan.budget:
            self._tell_of_several(plan)

    def _tell_of_several(self, plan: Solution) -> None:
        if not self._is_told_of_several:
            self._is_told_of_several = True
            peak, budget = format_bytes(plan.peak_bytes), format_bytes(plan.budget)
            self._tell(
                f"several calls of {self._name} wait for their backward; each may take {peak}, so "
                f"together they may take more than the budget of {budget}: divide it by their "
                "number, or fit a module that makes these calls in its forward"
            )

    def _tell_of_graph(self) -> None:
        if not self._is_told_of_graph:
            self._is_told_of_graph = True
            self._tell(
                f"a backward of {self._name} with create_graph=True keeps what the next backward "
                "reads, which the budget does not count"
            )
