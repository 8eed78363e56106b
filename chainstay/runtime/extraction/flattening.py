"""An exported graph as one list of operators, what is wrapped in regions included."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx, nn
from torch._higher_order_ops import wrap
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils._pytree import TreeSpec

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.extraction.regions import AutocastRegion, GradientRegion, Region
from chainstay.runtime.extraction.sources import CallInput, Constant, ModelTensor, Source

__all__ = ["FlatGraph", "flatten"]

# Older torch has them under torch.ops.higher_order only once their module has been imported.
_AUTOCAST: Final = wrap.wrap_with_autocast
_GRADIENT: Final = wrap.wrap_with_set_grad_enabled
_TRACED_CHECKS: Final = frozenset({torch.ops.aten._assert_tensor_metadata.default})  # noqa: SLF001
"""Checks of what tracing assumed; under another autocast they fail for nothing."""


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """A model's forward as one list of operators.

    Attributes:
        graph: Inputs, operators in the order of the model's forward, and the output.
        sources: Where each input comes from.
        regions: Autocast and gradient modes of an operator, where it has any.
        modules: Graphs that operators take as arguments, by name.
        output: The model's output, leaf by leaf: nodes, or what is no tensor.
        output_spec: How the leaves make the output.
    """

    graph: fx.Graph
    sources: Mapping[fx.Node, Source]
    regions: Mapping[fx.Node, tuple[Region, ...]]
    modules: Mapping[str, nn.Module]
    output: tuple[object, ...]
    output_spec: TreeSpec

    @property
    def operators(self) -> list[fx.Node]:
        """The nodes that compute, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]


def flatten(program: ExportedProgram, model: nn.Module) -> FlatGraph:
    """The graph of `program`, which was exported from `model`.

    Raises:
        UnsupportedModelError: It reads things that are neither tensors of the model nor inputs.
    """
    return _Flattening(program, model).flat()


class _Flattening:
    """Copies an exported graph, what is wrapped in regions included."""

    def __init__(self, program: ExportedProgram, model: nn.Module) -> None:
        self.program = program
        self.model = model
        self.graph = fx.Graph()
        self.sources: dict[fx.Node, Source] = {}
        self.regions: dict[fx.Node, tuple[Region, ...]] = {}
        self.modules: dict[str, nn.Module] = {}
        self.copies: dict[fx.Node, Any] = {}

    def flat(self) -> FlatGraph:
        top = self.program.graph_module
        placeholders = [node for node in top.graph.nodes if node.op == "placeholder"]
        inputs = 0
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            copy = self.copies[node] = self.graph.node_copy(node)
            self.sources[copy] = self._source(spec, inputs)
            inputs += spec.kind is InputKind.USER_INPUT
        leaves = self._copy_body(top, ())
        self.graph.output(tuple(leaves))
        return FlatGraph(
            graph=self.graph,
            sources=self.sources,
            regions=self.regions,
            modules=self.modules,
            output=tuple(leaves),
            output_spec=self.program.call_spec.out_spec,
        )

    def _source(self, spec: InputSpec, position: int) -> Source:
        if spec.kind is InputKind.USER_INPUT:
            return CallInput(position)
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise UnsupportedModelError(
                f"the forward of {type(self.model).__name__} reads {spec.target}, a "
                f"{spec.kind.name.lower()}; use intercept() on its blocks"
            )
        assert spec.target is not None
        path, _, name = spec.target.rpartition(".")
        constant = self.program.constants.get(spec.target)
        if spec.kind is InputKind.CONSTANT_TENSOR and not self._holds(path, name, constant):
            assert isinstance(constant, torch.Tensor)
            return Constant(constant)
        return ModelTensor(self.model.get_submodule(path), name, spec.target)

    def _holds(self, path: str, name: str, value: object) -> bool:
        """Whether a tensor is an attribute of one of the model's modules, though no buffer."""
        owner = dict(self.model.named_modules()).get(path)
        return owner is not None and vars(owner).get(name) is value

    def _copy_body(self, module: fx.GraphModule, regions: tuple[Region, ...]) -> list[Any]:
        """Copy what `module` computes; its inputs are known already. Its outputs are returned."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self._copy_call(module, node, regions)
            elif node.op == "output":
                return [self._copied(leaf) for leaf in node.args[0]]
        raise AssertionError("a graph without an output")

    def _copy_call(
        self, module: fx.GraphModule, node: fx.Node, regions: tuple[Region, ...]
    ) -> None:
        if node.target in _TRACED_CHECKS:
            return
        if node.target in (_AUTOCAST, _GRADIENT):
            self.copies[node] = self._inlined(module, node, regions)
        elif node.target is operator.getitem and isinstance(self._copied(node.args[0]), list):
            outputs, index = self._copied(node.args[0]), node.args[1]
            self.copies[node] = outputs[index]
        else:
            self._adopt_graphs(module, node)
            copy = self.copies[node] = self.graph.node_copy(node, self._copied)
            if regions:
                self.regions[copy] = regions

    def _inlined(
        self, module: fx.GraphModule, node: fx.Node, regions: tuple[Region, ...]
    ) -> list[Any]:
        """Copy what a region wraps; the list of its outputs."""
        given: tuple[Any, ...] = node.args
        if node.target is _AUTOCAST:
            device_type, dtype, enabled, _cached, body, *inputs = given
            region: Region = AutocastRegion(device_type, dtype, enabled)
        else:
            grad_enabled, body, *inputs = given
            region = GradientRegion(grad_enabled)
        inner = getattr(module, body.target)
        placeholders = [each for each in inner.graph.nodes if each.op == "placeholder"]
        for placeholder, value in zip(placeholders, inputs, strict=True):
            self.copies[placeholder] = self._copied(value)
        return self._copy_body(inner, (*regions, region))

    def _adopt_graphs(self, module: fx.GraphModule, node: fx.Node) -> None:
        """Copy references to graphs that `node` takes as arguments (``torch.cond`` and others)."""
        for each in node.all_input_nodes:
            if each.op == "get_attr" and each not in self.copies:
                name = f"graph{len(self.modules)}"
                self.modules[name] = getattr(module, str(each.target))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # no module owns this graph yet
                    self.copies[each] = self.graph.get_attr(name)

    def _copied(self, node: Any) -> Any:  # noqa: ANN401  # nodes, lists of nodes and constants
        return self.copies[node] if isinstance(node, fx.Node) else node
