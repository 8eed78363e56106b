"""The graph of stages that were given one by one, cut between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.crossings import find_crossings, forbidden_places
from chainstay.runtime.capture.cuts.cut import cut_again
from chainstay.runtime.capture.dynamo import GraphCapture, GraphForward, UnplannedGraphError
from chainstay.runtime.capture.graph import CapturedGraph, stage_border
from chainstay.runtime.capture.graph_inputs import InputKind
from chainstay.runtime.capture.operators import ObservedGraph, observe_graph
from chainstay.runtime.capture.tracing import NoFullGraphError
from chainstay.runtime.stage.given_stages import StageLoop, Stages, stage_title


def traced_stages(named: Stages, sample: torch.Tensor) -> tuple[ObservedGraph, tuple[Any, ...]]:
    """Return the graph of all stages on the sample, and its inputs.

    Raises:
        UnsupportedModelError: A stage cannot be traced; the text names it.
    """
    try:
        return _trace(named, sample)
    except NoFullGraphError as reason:
        raise naming_the_stage(reason, named, sample) from reason.__cause__


def _trace(named: Stages, sample: torch.Tensor) -> tuple[ObservedGraph, tuple[Any, ...]]:
    capture = GraphCapture(StageLoop.run_plainly, GraphForward.from_graph, "the chain")
    given = sample.detach().requires_grad_(sample.requires_grad)
    try:
        with torch.enable_grad():
            capture.trace(StageLoop(named), given)
    except UnplannedGraphError as found:
        titles = [stage_title(name, stage) for name, stage in named]
        return observed_stages(found, titles), found.inputs
    raise UnsupportedModelError("the chain computes nothing")


def observed_stages(found: UnplannedGraphError, titles: Sequence[str]) -> ObservedGraph:
    """Observe the operators of a chain's graph.

    Raises:
        UnsupportedModelError: A stage gives no tensor, or one of its shapes depends on values.
    """
    forward = found.forward
    borders = (node for node in forward.graph.graph.nodes if node.target is stage_border)
    for index, (title, node) in enumerate(zip(titles, borders, strict=False)):
        (output,) = node.args
        if not isinstance(output, fx.Node):
            raise UnsupportedModelError(
                f"stage {index} ({title}) returns {type_with_article(output)}, must return one "
                "tensor; pack several into one, or join it with the stage behind it"
            )
    inputs = [
        replace(given, name="the input") if given.kind is InputKind.ARGUMENT else given
        for given in forward.inputs
    ]
    return observe_graph("the chain", replace(forward, inputs=tuple(inputs)), found.inputs)


def naming_the_stage(
    reason: NoFullGraphError, named: Stages, sample: torch.Tensor
) -> UnsupportedModelError:
    """Return the reason why a chain cannot be traced, with the first stage that cannot."""
    whole, failing = 0, len(named)
    shape = tuple(sample.shape)
    while failing - whole > 1:
        middle = (whole + failing) // 2
        try:
            observed, _ = _trace(named[:middle], sample)
        except UnsupportedModelError:
            failing = middle
        else:
            whole = middle
            output = observed.captured.output[output_index(observed.captured)]
            tensor = observed[output].tensor if isinstance(output, fx.Node) else None
            shape = shape if tensor is None else tuple(tensor.shape)
    title = stage_title(*named[failing - 1])
    return UnsupportedModelError(
        f"stage {failing - 1} ({title}) cannot be traced on an input of shape {shape}: {reason}"
    )


def cut_between_stages(observed: ObservedGraph, titles: Sequence[str]) -> GraphChain:
    """Return the graph cut where one of the user's stages ends and another begins.

    A stage that changes its input in place would spoil the checkpoint in front of it; one
    whose output is a view of its input saves nothing by a cut. Both join the stage before.
    The first stage has none: a view joins the stage after it.
    """
    crossings = find_crossings(observed)
    forbidden = forbidden_places(crossings)
    place_of = {node: place for place, node in enumerate(crossings.operators)}
    last = len(crossings.operators) - 1
    storages = {
        s
        for node, given in zip(
            observed.captured.placeholders, observed.captured.inputs, strict=True
        )
        if given.kind is InputKind.ARGUMENT
        for s in observed[node].storages
    }
    kept: list[int] = []
    names: list[str] = [titles[0]]
    for title, border in zip([*titles[1:], ""], observed.captured.borders, strict=True):
        place = -1 if border.operator is None else place_of.get(border.operator, -1)
        output = set(observed[border.output].storages) if border.output in place_of else set()
        is_cut = place > (kept[-1] if kept else -1) and place not in forbidden and place < last
        if output & storages and kept and (is_cut or not title):
            kept.pop()
            names[-2:] = [f"{names[-2]}+{names[-1]}"]
        elif output & storages:
            is_cut = False
        if is_cut:
            kept.append(place)
            names.append(title)
            storages = output
        elif title:
            names[-1] += f"+{title}"
    chain = cut_again(observed, tuple(kept))
    assert chain is not None, "forbidden places are left out"
    stages = tuple(
        replace(stage, name=name) for stage, name in zip(chain.stages, names, strict=True)
    )
    return replace(chain, stages=stages)


def output_index(captured: CapturedGraph) -> int:
    """Return the index of the last stage's output among the graph's; stages change the others."""
    output = captured.borders[-1].output
    return next((index for index, leaf in enumerate(captured.output) if leaf is output), 0)
