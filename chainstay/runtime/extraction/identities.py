"""Operators that hand on a parameter as it is, such as a conversion to the type that it has.

Left in a graph, they would make the parameter itself a value that crosses cuts. Stages read
parameters from the model instead: these are there anyway, and autograd sends gradients to them.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx, nn

from chainstay.runtime.extraction.flattening import FlatGraph
from chainstay.runtime.extraction.observing import Observations
from chainstay.runtime.extraction.sources import ModelTensor

__all__ = ["without_identities"]


def without_identities(flat: FlatGraph, seen: Observations) -> FlatGraph:
    """`flat`, where what such operators give is read from the model. Its graph is changed."""
    parameters = {
        id(seen[node].tensor): node
        for node, source in flat.sources.items()
        if isinstance(source, ModelTensor) and isinstance(source.read(), nn.Parameter)
    }
    replaced: dict[object, fx.Node] = {}
    for node in flat.operators:
        parameter = parameters.get(id(seen[node].tensor))
        if parameter is not None and seen[node].tensor is not None and not seen[node].written:
            node.replace_all_uses_with(parameter)
            flat.graph.erase_node(node)
            replaced[node] = parameter
    return replace(flat, output=tuple(replaced.get(leaf, leaf) for leaf in flat.output))
