"""A captured forward as one list of operators: what TorchDynamo traced, in a plain form.

Three things are not operators of their own here. What ``torch.utils.checkpoint`` wrapped stands
in line: a plan decides what is run again. Switches of autocast and of gradients become regions,
which the operators between them know, so that a chain can be cut there. Operators between
other switches (vmap, inference mode, kernels for attention) become one operator, since a run
that began in the middle of them would begin in another mode. A recurrent network of several
layers becomes one operator per layer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final, cast

import torch
from torch import fx, nn

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.caught_errors import asserted, caught_at
from chainstay.runtime.capture.custom_functions import (
    OPERATOR,
    CustomFunction,
    RequiringGradient,
    require_gradient,
)
from chainstay.runtime.capture.graph_inputs import GraphInput, InputKind
from chainstay.runtime.capture.recurrent_layers import has_layers, split_layers
from chainstay.runtime.capture.subgraphs import (
    CHECKPOINTS,
    REGIONS,
    AutocastRegion,
    GradientRegion,
    Region,
    called_name,
    subgraph,
    values_behind,
    values_read,
)


class NoStagesError(UnsupportedModelError):
    """A graph has operators that cannot be stages; the text says which and why."""


@dataclass(frozen=True, slots=True)
class StageBorder:
    """A place where one of the user's stages ends.

    Attributes:
        operator: The last one in front of it, if there is any.
        output: The output of the stage.
    """

    operator: fx.Node | None
    output: fx.Node


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraph:
    """A forward as one list of operators.

    Attributes:
        graph: Inputs, operators in the order of the forward, and the output.
        inputs: The kind and name of each input, in order.
        modules: Graphs that operators call or take as arguments, by name.
        constants: Tensors that belong to the graph; they follow the inputs of a call.
        borders: The places where `stage_border` was called, in order.
    """

    graph: fx.Graph
    inputs: tuple[GraphInput, ...]
    modules: Mapping[str, nn.Module]
    constants: tuple[torch.Tensor, ...]
    borders: tuple[StageBorder, ...]

    @property
    def output(self) -> tuple[object, ...]:
        """The outputs of the graph: nodes, or constants."""
        (leaves,) = self.graph.output_node().args
        return cast("tuple[object, ...]", leaves)

    @property
    def operators(self) -> list[fx.Node]:
        """The nodes that compute, in order."""
        return list(filter(_computes, self.graph.nodes))

    @property
    def placeholders(self) -> list[fx.Node]:
        """The nodes of the inputs, in order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]


def stage_border(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`; in a captured graph, this is where one of the user's stages ends."""
    return tensor


def _computes(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module")


_INLINED: Final = (*CHECKPOINTS, "wrap")
"""Higher-order operators that only call the graph they are given."""

RUN_AGAIN: Final = "run_again"
"""The key in a node's ``meta`` that marks operators inside of a `torch.utils.checkpoint`.

Its value tells whether these draw the same random numbers again.
"""

_DROPPED: Final = ("_log_api_usage_once",)

_BEGINS: Final = {
    "_enter_inference_mode": "_exit_inference_mode",
    "_vmap_increment_nesting": "_vmap_decrement_nesting",
    "_sdpa_kernel": "_sdpa_kernel",
    "_saved_tensors_hooks_disable": "_saved_tensors_hooks_enable",
}
"""Switches of other modes, and what switches each back."""

_TAKES_GRADIENTS: Final = (
    "torch.func takes gradients inside the forward, which a plan cannot run again; take them "
    "around the model"
)
_TRACES_ITSELF: Final = (
    "torch traces it anew whenever it runs, which a plan cannot run again; write it in Python, "
    "or with torch.where"
)
_REFUSED: Final = {
    "_grad_increment_nesting": _TAKES_GRADIENTS,
    "_jvp_increment_nesting": _TAKES_GRADIENTS,
    "cond": f"the forward calls torch.cond: {_TRACES_ITSELF}",
    "while_loop": f"the forward calls torch.while_loop: {_TRACES_ITSELF}",
    "scan": f"the forward calls torch's scan: {_TRACES_ITSELF}",
    "map_impl": f"the forward calls torch's map: {_TRACES_ITSELF}",
}

_ASSIGNS_DATA: Final = ("set_", "shallow_copy_data_")
"""What an assignment to ``.data`` is in a graph, in older releases and from torch 2.14 on."""


def as_captured_graph(
    module: fx.GraphModule, inputs: Sequence[GraphInput], values: Sequence[object]
) -> CapturedGraph:
    """Return the graph that TorchDynamo gave a backend, in a plain form.

    Its `inputs` have these `values` in a call.

    Raises:
        NoStagesError: It has operators that a plan cannot run again.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    trained = frozenset(
        node
        for node, value in zip(placeholders, values, strict=True)
        if isinstance(value, torch.Tensor) and value.requires_grad
    )
    return _GraphCopier(module, trained).captured(inputs)


@dataclass(slots=True)
class _GraphCopier:
    """Copies a graph, without what is no operator of its own."""

    module: fx.GraphModule
    trained: frozenset[fx.Node]
    graph: fx.Graph = field(default_factory=fx.Graph)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    current: list[tuple[object, Region]] = field(default_factory=list)
    borders: list[StageBorder] = field(default_factory=list)

    def captured(self, inputs: Sequence[GraphInput]) -> CapturedGraph:
        placeholders = self.module.graph.find_nodes(op="placeholder")
        copies: dict[fx.Node, Any] = {node: self.graph.node_copy(node) for node in placeholders}
        read = {
            node: value
            for node in self.module.graph.find_nodes(op="get_attr")
            if isinstance(value := attrgetter(str(node.target))(self.module), torch.Tensor)
        }
        tensors = {str(node.target): tensor for node, tensor in read.items()}
        constants = {name: self.graph.placeholder(f"constant_{name}") for name in tensors}
        copies |= {node: constants[str(node.target)] for node in read}
        kinds = [GraphInput(InputKind.HELD, f"a constant {name}") for name in tensors]
        output = self._body(self.module, copies)
        leaves = tuple(output) if isinstance(output, tuple | list) else (output,)
        self.graph.output(leaves)
        for span in list(_spans(self.graph)):
            self._join(span)
        return CapturedGraph(
            graph=self.graph,
            inputs=(*inputs, *kinds),
            modules=self.modules,
            constants=tuple(tensors.values()),
            borders=tuple(self.borders),
        )

    def _body(self, module: fx.GraphModule, copies: dict[fx.Node, Any]) -> Any:
        """Copy what `module` computes, and return its output; `copies` has what it is given."""
        for node in module.graph.nodes:
            if node in copies:
                continue
            match node.op:
                case "output":
                    return fx.node.map_arg(node.args[0], copies.__getitem__)
                case "get_attr":
                    copies[node] = _graph_read(module, node)  # copied by whoever takes it
                case _:
                    self._operator(module, node, copies)
        raise AssertionError("a graph without an output")

    def _operator(self, module: fx.GraphModule, node: fx.Node, copies: dict[fx.Node, Any]) -> None:
        name = called_name(node)
        _require_runs_again(node, name)
        if name in _ASSIGNS_DATA and self.trained.intersection(node.all_input_nodes[:1]):
            raise NoStagesError(
                "the forward assigns to the .data of a parameter, which changes what its backward "
                "reads; compute with a tensor made of the parameter instead"
            )
        if name in _DROPPED:
            return
        if node.target is stage_border:
            copies[node] = copies[node.all_input_nodes[0]]
            computing = filter(_computes, reversed(self.graph.nodes))
            self.borders.append(StageBorder(next(computing, None), copies[node]))
            return
        first = copies[node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else None
        if name in _INLINED and isinstance(first, fx.GraphModule):
            last = next(iter(reversed(self.graph.nodes)), None)
            copies[node] = self._inlined(node, copies)
            if name in CHECKPOINTS:
                for copy in takewhile(lambda copy: copy is not last, reversed(self.graph.nodes)):
                    copy.meta[RUN_AGAIN] = bool(node.kwargs.get("preserve_rng_state", True))
        elif name in (OPERATOR, require_gradient.__name__):
            make = self._custom_function if name == OPERATOR else self._requiring_gradient
            copies[node] = make(node, copies)
        elif node.target is operator.getitem and isinstance(first, tuple | list):
            copies[node] = first[cast("int", node.args[1])]
        elif not self._switched(name, node, copies):
            copies[node] = self._copied(module, node, copies)

    def _inlined(self, node: fx.Node, copies: dict[fx.Node, Any]) -> Any:
        body: fx.GraphModule = copies[node.all_input_nodes[0]]
        placeholders = body.graph.find_nodes(op="placeholder")
        given = [fx.node.map_arg(argument, copies.__getitem__) for argument in node.args[1:]]
        inner: dict[fx.Node, Any] = dict(zip(placeholders, given, strict=True))
        return self._body(body, inner)

    def _switched(self, name: str, node: fx.Node, copies: dict[fx.Node, Any]) -> bool:
        """Whether `node` switches autocast or gradients; operators from here on know it."""
        match name:
            case "_set_grad_enabled":
                (enabled,) = node.args
                self.current = [
                    pair for pair in self.current if not isinstance(pair[1], GradientRegion)
                ]
                self.current.append((node, GradientRegion(bool(enabled))))
            case "_enter_autocast":
                device_type, dtype, enabled, *_ = node.args
                region = AutocastRegion(str(device_type), cast("torch.dtype", dtype), bool(enabled))
                self.current.append((node, region))
                copies[node] = node
            case "_exit_autocast":
                self.current = [pair for pair in self.current if pair[0] is not node.args[0]]
            case _:
                return False
        return True

    def _copied(self, module: fx.GraphModule, node: fx.Node, copies: dict[fx.Node, Any]) -> Any:
        if has_layers(node):
            arguments = fx.node.map_arg(node.args, copies.__getitem__)
            return split_layers(node, arguments, partial(self._part, node))
        copy = self.graph.node_copy(node, lambda argument: self._argument(copies[argument]))
        if node.target is torch._assert_async:  # noqa: SLF001  # what TorchDynamo makes of assert
            copy.target = asserted
        elif node.op == "call_module":
            copy.target = self._module_name(attrgetter(str(node.target))(module))
        return self._in_regions(copy)

    def _requiring_gradient(self, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        (made,) = node.all_input_nodes
        if made in node.graph.output_node().all_input_nodes:
            raise NoStagesError(
                "the forward returns or keeps what it makes require a gradient (requires_grad_), "
                "which a plan gives none to; compute that in front of the model"
            )
        name = self._module_name(RequiringGradient())
        copies[made] = self.graph.create_node("call_module", name, (copies[made],))
        copies[made].meta.update(made.meta)
        return self._in_regions(copies[made])

    def _custom_function(self, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        first, second = (copies[argument] for argument in node.all_input_nodes[:2])
        name = self._module_name(CustomFunction(first, second, node.kwargs))
        args = fx.node.map_arg(node.args[2:], copies.__getitem__)
        copy = self.graph.create_node("call_module", name, args, name=node.name)
        copy.meta.update(node.meta)
        return self._in_regions(copy)

    def _part(
        self, node: fx.Node, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> fx.Node:
        """Add an operator that does a part of what `node` does."""
        part = self.graph.call_function(function, arguments)
        part.meta.update({key: known for key, known in node.meta.items() if key != "example_value"})
        return self._in_regions(part)

    def _in_regions(self, copy: fx.Node) -> fx.Node:
        regions = tuple(region for _, region in self.current)
        if any(not isinstance(region, GradientRegion) or not region.enabled for region in regions):
            copy.meta[REGIONS] = regions
        return copy

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, nn.Module):
            return value
        name = self._module_name(value)
        known = self.graph.find_nodes(op="get_attr", target=name)
        return known[0] if known else self.graph.create_node("get_attr", name)

    def _module_name(self, module: Any) -> str:
        for name, known in self.modules.items():
            if known is module:
                return name
        name = f"graph{len(self.modules)}"
        self.modules[name] = module
        return name

    def _join(self, span: Sequence[fx.Node]) -> None:
        """Make one operator of a range of them, which enters their regions itself."""
        inputs, results = values_read(span), values_behind(span)
        name = self._module_name(subgraph(self.modules, span, inputs, results))
        with self.graph.inserting_before(span[0]):
            call = self.graph.create_node("call_module", name, tuple(inputs))
            items = [
                self.graph.call_function(operator.getitem, (call, index))
                for index in range(len(results))
            ]
        for copy, node in zip([call, *items], [span[0], *results], strict=True):
            copy.meta.update({**node.meta, REGIONS: ()})
        for node, item in zip(results, items, strict=True):
            node.replace_all_uses_with(item)
        moved: dict[fx.Node | None, fx.Node] = dict.fromkeys(span, [call, *items][-1])
        moved |= dict(zip(results, items, strict=True))
        self.borders = [
            StageBorder(
                moved.get(border.operator, border.operator), moved.get(border.output, border.output)
            )
            for border in self.borders
        ]
        for node in reversed(span):
            self.graph.erase_node(node)


def _require_runs_again(node: fx.Node, name: str) -> None:
    """Refuse an operator that no plan can run again as the model does."""
    if name in _REFUSED:
        raise NoStagesError(_REFUSED[name])
    if (place := caught_at(node, name)) is not None:
        error = "an assertion" if name == "_assert_async" else f"an error of {name}"
        raise NoStagesError(
            f"the forward catches {error}, which its graph cannot ({place}); use what tells "
            "without an error, such as torch.where or torch.linalg.cholesky_ex"
        )


def _spans(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """Yield the operators from each switch of a mode up to the one that switches it back."""
    span: list[fx.Node] = []
    pending: list[str] = []
    for node in filter(_computes, graph.nodes):
        name = called_name(node)
        if pending and name == pending[-1]:
            pending.pop()
        elif name in _BEGINS:
            pending.append(_BEGINS[name])
        elif not pending:
            continue
        span.append(node)
        if not pending:
            yield span
            span = []
    if span:
        yield span


def _graph_read(module: fx.GraphModule, node: fx.Node) -> nn.Module:
    value = attrgetter(str(node.target))(module)
    if not isinstance(value, nn.Module):
        raise NoStagesError(
            f"the captured graph holds {node.target}, {type_with_article(value)}, which stages "
            "cannot read; make it a buffer of the model"
        )
    return value
