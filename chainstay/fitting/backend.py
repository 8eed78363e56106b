"""``torch.compile(model, backend="chainstay", options={"budget": "8GiB"})``.

TorchDynamo calls the backend with the graph of a forward; it goes by a plan from its first call
on. Of the model nothing else is known, so the graph is not compared with it, and no loss is
measured: `chainstay.fit` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Final

import torch
from torch import fx
from torch._guards import CompileContext

from chainstay.errors import UnsupportedModelError
from chainstay.fitting.front import settings_of
from chainstay.fitting.planner import Planner, PlannerSettings
from chainstay.fitting.solved_plans import SolvedPlans
from chainstay.runtime.capture.dynamo import GraphForward, UnplannedGraphError
from chainstay.runtime.execute.repeatable import other_bits_accepted
from chainstay.runtime.measures.measured import MEASURING


@dataclass(slots=True)
class _Compiled:
    """One use of torch.compile."""

    options: Mapping[str, Any]  # held, so that their identity stays their own
    frame: int | None  # number of the function that is traced
    planner: Planner | None = None

    def plan(self, forward: GraphForward, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        """Return a plan for a graph."""
        if self.planner is None:
            device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
            settings = settings_of(device, **self.options)
            self.planner = Planner("model", settings, SolvedPlans(settings))
        bit_for_bit = self.planner.settings.bit_for_bit
        with MEASURING, other_bits_accepted.set_to(value=not bit_for_bit):
            return self.planner.plan_graph(forward, inputs, None)


_OPTIONS: Final = (
    signature(settings_of).parameters.keys() | {field.name for field in fields(PlannerSettings)}
) - {"device", "others", "memory", "loss", "by", "reserve"}
_COMPILED: Final[dict[int, _Compiled]] = {}
"""By the identity of the options, which each use of torch.compile has of its own."""


def chainstay_backend(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Plan a graph: a backend of TorchDynamo, registered as ``"chainstay"``.

    Args:
        graph: The graph of one whole forward.
        inputs: The inputs of the call that it was traced on.
        options: ``budget``, and other arguments of `chainstay.fit` but for the sample, ``loss``,
            ``by`` and ``reserve``.

    Raises:
        UnsupportedModelError: The graph is part of a forward only, no budget is given, or an
            option that there is not.
    """
    options = {} if options is None else options
    if unknown := sorted(options.keys() - _OPTIONS):
        raise UnsupportedModelError(
            f"the backend 'chainstay' has no option {unknown[0]!r}; it has "
            f"{', '.join(sorted(_OPTIONS))}"
        )
    if options.get("budget") is None:
        raise UnsupportedModelError(
            "the backend 'chainstay' needs a budget: torch.compile(model, backend='chainstay', "
            "options={'budget': '8GiB'})"
        )
    compiled = _COMPILED.setdefault(id(options), _Compiled(options, _frame()))
    _require_whole(graph, compiled)
    forward = GraphForward.if_trained(graph, inputs)
    if not isinstance(forward, GraphForward):
        return forward

    def planned(*inputs: Any) -> Sequence[Any]:
        try:
            return forward(*inputs)
        except UnplannedGraphError as found:
            plan = forward.plans[forward.sizes(inputs)] = compiled.plan(forward, found.inputs)
            return plan(*inputs)

    return planned


def _require_whole(graph: fx.GraphModule, compiled: _Compiled) -> None:
    """Refuse a piece of a forward: pieces planned one by one would exceed the budget together."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if getattr(reason, "graph_break", False) or compiled.frame != _frame():
        lines = str(getattr(reason, "reason", "")).splitlines()
        why = f" ({lines[0]})" if lines else ""
        raise UnsupportedModelError(
            f"TorchDynamo breaks the forward into several graphs{why}, which cannot be planned "
            "within one budget; torch.compile(..., fullgraph=True) tells where, and "
            "chainstay.fit(model, budget=...) plans such models"
        )


def _frame() -> int | None:
    """Return the number of the function that is being traced."""
    compile_id = CompileContext.current_compile_id()
    return None if compile_id is None else compile_id.frame_id
