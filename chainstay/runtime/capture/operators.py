"""Effects of a captured graph's operators on memory and gradients, seen without computing.

The graph is run once on fake tensors, which have shapes, storages and an autograd graph but
no values: that shows which values require a gradient, which lie in one storage, and what
autograd saves, for models of any size. What is written in place and what draws random numbers
is told by the kernels' own schemas, below autograd, whatever function called them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay.runtime.capture.dynamo import GraphForward
from chainstay.runtime.capture.graph import (
    RUN_AGAIN,
    CapturedGraph,
    NoStagesError,
    as_captured_graph,
)
from chainstay.runtime.capture.graph_inputs import InputKind
from chainstay.runtime.capture.subgraphs import node_result, regions_of
from chainstay.runtime.capture.values.sizes import as_traced
from chainstay.runtime.devices.random_kernels import may_draw
from chainstay.runtime.execute.handles import refuse_backward
from chainstay.runtime.stage.states import tensors_in

Storage = int
"""A storage's number, in the order in which storages were first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The value of one node, and the memory that the node touches.

    Attributes:
        tensor: Its value, fake; ``None`` if that is not one tensor.
        storages: The storages of all tensors in its value.
        requires_grad: Whether any of them requires a gradient.
        saved: Storages that autograd saves for its backward.
        written: Storages that it changes in place.
        draws_random: Whether it may draw random numbers.
        fills_saved: Whether a kernel of its saves a tensor first and writes it then.
    """

    tensor: torch.Tensor | None
    storages: tuple[Storage, ...]
    requires_grad: bool
    saved: frozenset[Storage]
    written: frozenset[Storage]
    draws_random: bool
    fills_saved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGraph:
    """A captured graph, and what its operators do.

    Attributes:
        name: The model's name, for messages.
        captured: The graph.
        nodes: What was seen of each of its nodes.
        storage_bytes: Bytes of each storage, in the order of their numbers.
        external: Storages of the graph's inputs and constants.
        numbers: Operators that compute numbers from numbers, or put these into tensors; they come
            first in the graph.
        state_inputs: Inputs whose gradients go on, to whatever made them.
    """

    name: str
    captured: CapturedGraph
    nodes: Mapping[fx.Node, Observation]
    storage_bytes: Sequence[int]
    external: frozenset[Storage]
    numbers: frozenset[fx.Node]
    state_inputs: frozenset[fx.Node]

    def __getitem__(self, node: fx.Node) -> Observation:
        return self.nodes[node]

    def size_of(self, storages: Iterable[Storage]) -> int:
        """Return the bytes of distinct storages, external ones excluded."""
        return sum(self.storage_bytes[storage] for storage in set(storages) - self.external)

    def touched(self, node: fx.Node) -> frozenset[Storage]:
        """Return the storages of a node's value, of its arguments, and of what it changes."""
        values = [node, *(value for value in node.all_input_nodes if value.op != "get_attr")]
        return self[node].written.union(*(self[value].storages for value in values))

    @property
    def is_checkpointed(self) -> bool:
        """Whether a part of the model stands in a `torch.utils.checkpoint`."""
        return any(RUN_AGAIN in node.meta for node in self.captured.operators)

    @property
    def may_draw_anew(self) -> bool:
        """Whether a `torch.utils.checkpoint` may draw other random numbers in its backward."""
        return any(
            node.meta.get(RUN_AGAIN) is False and self[node].draws_random
            for node in self.captured.operators
        )


def observe_graph(name: str, forward: GraphForward, inputs: Sequence[object]) -> ObservedGraph:
    """Bring a graph of TorchDynamo's into a plain form, a copy, and observe its operators.

    It is run on fake tensors like these inputs. Operators that compute numbers from numbers come
    first then. Those that hand on a held tensor as it is, such as a conversion to the type that it
    has, are left out: they would make a parameter a value that crosses cuts.

    Raises:
        NoStagesError: It has operators that a plan cannot run again, a shape depends on values,
            a given tensor gets a gradient, or a checkpoint changes a buffer twice.
    """
    captured = as_captured_graph(forward.graph, forward.inputs, inputs)
    given = (*inputs, *captured.constants)
    numbers = _numbers_in(captured, given)
    boxes = (  # tensors in which TorchDynamo hands such a number back
        node
        for node in captured.operators
        if node.target is torch.scalar_tensor and node.args and node.args[0] in numbers
    )
    early = [*numbers, *boxes]
    _move_to_front(captured, early)
    observer = _Observer(captured, numbers)
    external = observer.run_graph(given)
    observed = ObservedGraph(
        name=name,
        captured=captured,
        nodes=observer.seen,
        storage_bytes=observer.storage_bytes,
        external=external,
        numbers=frozenset(early),
        state_inputs=frozenset(
            node
            for node, value, known in zip(
                captured.placeholders, given, captured.inputs, strict=True
            )
            if isinstance(value, torch.Tensor)
            and value.requires_grad
            and (known.kind is InputKind.ARGUMENT or not value.is_leaf)
        ),
    )
    for node in captured.operators:
        if RUN_AGAIN in node.meta and observed[node].written & external:
            raise NoStagesError(
                "torch.utils.checkpoint runs a part of the model again in the backward, which "
                f"changes a buffer a second time ({node.name}); no plan does that"
            )
    _take_out_identities(observed)
    require_one_thread(observed[node].tensor for node in captured.operators)
    return observed


def require_one_thread(values: Iterable[torch.Tensor | None]) -> None:
    """Refuse a graph whose backward goes on in two threads at once.

    Autograd has a thread for the host and one for the accelerator. Plans bring back what a stage
    saved in the order of the stages. So values with gradients may be on the host before all of
    those on the accelerator (an embedding there) and behind them (a loss), but not between. The
    `values` are those that the graph's operators make, in order.

    Raises:
        NoStagesError: Some are on the host between those on the accelerator.
    """
    kinds = [tensor.device.type for tensor in values if tensor is not None and tensor.requires_grad]
    runs = [kind for kind, _ in groupby(kinds)]
    if "cpu" in runs[1:-1]:
        raise NoStagesError(
            "values with gradients are computed on the host while the accelerator computes others, "
            "so that two threads run the backward at once; move them to the model's device"
        )


def _take_out_identities(observed: ObservedGraph) -> None:
    """Let what is handed on as it is be read from the input.

    A held tensor that was changed in place is no output of its own either.
    """
    captured = observed.captured
    held = {
        id(observed[node].tensor): node
        for node, given in zip(captured.placeholders, captured.inputs, strict=True)
        if given.kind is InputKind.HELD and observed[node].tensor is not None
    }
    for node in captured.operators:
        origin = held.get(id(observed[node].tensor))
        if origin is None:
            continue
        if observed[node].written:  # what reads it later stays behind it
            captured.graph.output_node().replace_input_with(node, origin)
        else:
            node.replace_all_uses_with(origin)
            captured.graph.erase_node(node)


def _numbers_in(captured: CapturedGraph, inputs: Sequence[object]) -> dict[fx.Node, object]:
    """Return Python numbers that the graph computes from numbers it is given, with their values."""
    known: dict[fx.Node, object] = {
        node: value
        for node, value, given in zip(captured.placeholders, inputs, captured.inputs, strict=False)
        if given.kind.is_number and not isinstance(value, FakeTensor)
    }
    found: dict[fx.Node, object] = {}
    for node in captured.operators if known else ():
        is_number = not isinstance(node.meta.get("example_value"), torch.Tensor)
        if is_number and node.op != "call_module" and all(n in known for n in node.all_input_nodes):
            value = node_result(node, known, captured.modules.__getitem__)
            if not isinstance(value, torch.Tensor):
                known[node] = found[node] = value
    return found


def _move_to_front(captured: CapturedGraph, nodes: Iterable[fx.Node]) -> None:
    """Put operators that need nothing but inputs behind the inputs."""
    place = captured.placeholders[-1]
    for node in nodes:
        if place.next is not node:
            place.append(node)
        place = node


@dataclass(slots=True)
class _Observer:
    """Runs nodes one by one on fake tensors, and takes notes.

    Storages are numbered as they are met; their tensors are held, so that no address is used twice.
    """

    captured: CapturedGraph
    numbers: Mapping[fx.Node, object]
    values: dict[fx.Node, Any] = field(default_factory=dict)
    seen: dict[fx.Node, Observation] = field(default_factory=dict)
    storages: dict[int, tuple[Storage, torch.Tensor]] = field(default_factory=dict)
    storage_bytes: list[int] = field(default_factory=list)

    def run_graph(self, inputs: Sequence[object]) -> frozenset[Storage]:
        """Run the graph on fakes of its inputs and constants, and return the storages of these.

        Raises:
            NoStagesError: Something cannot be told without a run, or an input gets a gradient.
        """
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        mode = detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            values = [_faked(mode, value) for value in inputs]
        constants = [tensor for tensor in tensors_in(values) if not tensor.requires_grad]
        with mode, torch.enable_grad():
            for node, value in zip(self.captured.placeholders, values, strict=True):
                self._note(node, value)
            external = frozenset(range(len(self.storage_bytes)))
            for node in self.captured.graph.nodes:
                if node.op == "get_attr":
                    self.values[node] = self.captured.modules[str(node.target)]
                elif node in self.numbers:
                    self._note(node, self.numbers[node])
                elif node.op not in ("placeholder", "output"):
                    self._run(node)
        for value in constants:
            if value.requires_grad:
                raise NoStagesError(
                    "the forward writes what has a gradient into a tensor of shape "
                    f"{tuple(value.shape)} that it is given, and a plan knows of gradients of what "
                    "it returns only; write into a clone, and return that"
                )
        return external

    def _run(self, node: fx.Node) -> None:
        saved: list[torch.Tensor] = []

        is_higher = isinstance(node.target, HigherOrderOperator)
        unpack = _as_packed if is_higher else refuse_backward  # torch 2.6 traces its backward now

        def noted(tensor: torch.Tensor) -> torch.Tensor | None:
            saved.append(tensor.detach())
            return saved[-1] if is_higher else None

        kernels = _Kernels()
        with ExitStack() as stack:
            for region in regions_of(node):
                stack.enter_context(region.entered())
            stack.enter_context(saved_tensors_hooks(noted, unpack))
            stack.enter_context(nullcontext() if is_higher else kernels)
            try:
                value = node_result(node, self.values, self.captured.modules.__getitem__)
            except (DynamicOutputShapeException, DataDependentOutputException) as cause:
                value = as_traced(node)
                if value is None:
                    raise NoStagesError(
                        "something is made whose shape or number depends on the values of a tensor "
                        f"({node.name}), and may differ from call to call"
                    ) from cause
            except (AssertionError, RuntimeError) as cause:  # nested tensors, sizes in a tensor
                reason = str(cause).partition("\n")[0].rstrip(".")
                raise NoStagesError(
                    f"torch cannot tell without running it what {node.name} makes: {reason}"
                ) from cause
        kernels.draws_random |= is_higher and may_draw(node.target, (), {})
        self._note(node, value, saved, kernels)

    def _note(
        self,
        node: fx.Node,
        value: object,
        saved: Iterable[torch.Tensor] = (),
        kernels: _Kernels | None = None,
    ) -> None:
        kernels = kernels or _Kernels()
        tensors = tensors_in(value)
        self.values[node] = value
        self.seen[node] = Observation(
            tensor=value if isinstance(value, torch.Tensor) else None,
            storages=tuple(self._storage(tensor) for tensor in tensors),
            requires_grad=any(tensor.requires_grad for tensor in tensors),
            saved=frozenset(map(self._storage, saved)),
            written=frozenset(map(self._storage, kernels.written)),
            draws_random=kernels.draws_random,
            fills_saved=kernels.fills_saved,
        )

    def _storage(self, tensor: torch.Tensor) -> Storage:
        if tensor.layout != torch.strided:
            address, size = id(tensor), tensor.numel() * tensor.element_size()
        else:
            storage = tensor.untyped_storage()
            address, size = storage._cdata, storage.nbytes()  # noqa: SLF001  # its identity; fake storages have no address
        if address not in self.storages:
            self.storages[address] = len(self.storage_bytes), tensor
            self.storage_bytes.append(size)
        return self.storages[address][0]


def _as_packed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _faked(mode: FakeTensorMode, value: object) -> object:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value, static_shapes=True)


@dataclass
class _Kernels(TorchDispatchMode):
    """The writes and random draws of the kernels that run inside."""

    written: list[torch.Tensor] = field(default_factory=list)
    draws_random: bool = False
    fills_saved: bool = False  # a kernel saves its noise before that is drawn

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.written += _written_by(func, args, kwargs or {})
        self.draws_random |= may_draw(func, args, kwargs or {})
        self.fills_saved |= "rrelu_with_noise" in str(func)
        return func(*args, **(kwargs or {}))


def _written_by(
    function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the arguments that a kernel changes in place.

    Normalization updates its running statistics without saying so in its schema.
    """
    given = dict(kwargs)
    parameters = function._schema.arguments  # noqa: SLF001  # what an operator says of itself
    given |= {parameter.name: arg for parameter, arg in zip(parameters, args, strict=False)}
    updates_statistics = given.get("training", given.get("use_input_stats", False))
    for parameter in parameters:
        is_written = parameter.alias_info is not None and parameter.alias_info.is_write
        is_statistic = updates_statistics and parameter.name in ("running_mean", "running_var")
        if is_written or is_statistic:
            yield from tensors_in(given.get(parameter.name))
