"""Any module as a chain of stages, or as branches that meet: to be looked at, and to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from rich.table import Table
from torch import nn
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.cuts.chain import GraphChain, written_inputs
from chainstay.runtime.capture.cuts.cut import ObservedGraph, cut_into_chain, observe_graph
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.dynamo import GraphCapture, GraphForward, UnplannedGraphError
from chainstay.runtime.capture.graph import as_captured_graph
from chainstay.runtime.capture.tracing import NoFullGraphError, UnknownCallError
from chainstay.runtime.capture.trials.equivalence import Trial
from chainstay.runtime.capture.trials.isolation import require_initialised
from chainstay.runtime.capture.trials.model_forward import unbound_forward
from chainstay.runtime.joins.branch_graphs import cut_into_join
from chainstay.runtime.joins.graph_join import GraphJoin

__all__ = [
    "ExtractedChain",
    "ExtractedJoin",
    "extract",
    "extract_join",
    "require_granularity",
    "require_module_and_tuple",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Extracted:
    """A model whose forward runs as stages."""

    model: nn.Module
    capture: GraphCapture

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """All stages in order: what ``model(*args, **kwargs)`` gives, bit for bit.

        Raises:
            UnsupportedModelError: The call is not like the sample.
        """
        with torch.enable_grad():
            try:
                return self.capture.run(self.model, *args, **kwargs)
            except (UnknownCallError, UnplannedGraphError):
                raise UnsupportedModelError(
                    f"this call of {type(self.model).__name__} makes another graph than the "
                    "sample: its shapes, types or mode differ; extract the model again"
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractedChain(_Extracted):
    """A model's forward, cut into stages.

    Attributes:
        model: The user's.
        graph: Its stages, and what passes between them.
    """

    graph: GraphChain

    @property
    def stages(self) -> Sequence[Any]:
        """The stages, in order."""
        return self.graph.stages

    @property
    def boundaries(self) -> Sequence[Sequence[Any]]:
        """The values of each state, ``len(stages) + 1`` of them."""
        return self.graph.boundaries

    @property
    def not_a_join(self) -> str:
        """The reason why the model has no branches to be planned apart; empty if it has."""
        return self.graph.not_a_join

    def boundary_bytes(self, cut: int) -> int:
        """Return the bytes of state `cut` kept alone; what model and caller hold is left out."""
        return self.graph.boundary_bytes(cut)

    def added_bytes(self, cut: int, *, kept: int) -> int:
        """Return the bytes that keeping state `cut` adds where state `kept` is kept already."""
        return self.graph.added_bytes(cut, kept=kept)

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        return self.graph.table()

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractedJoin(_Extracted):
    """A model's forward, cut into branches that know nothing of each other, and a tail.

    Attributes:
        model: The user's.
        graph: Its branches and its tail.
    """

    graph: GraphJoin

    @property
    def branches(self) -> Sequence[Sequence[Any]]:
        """The stages of each branch, in the order in which they run."""
        return self.graph.branches

    @property
    def tail(self) -> Sequence[Any]:
        """The stages behind the join; none if the branches' outputs are the model's."""
        return self.graph.tail


def extract(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    granularity: Granularity = "fine",
) -> ExtractedChain:
    """Cut the forward of `model` into stages.

    The model is traced by TorchDynamo in its present mode (training flags, autocast), then a
    shadow of it and its graph are run once each and compared. The model is left as it was.

    Args:
        model: Any module. Its forward may take and return nested tuples, lists, dicts.
        sample_args: Positional arguments of a call like those to come. Numbers, strings and
            ``None`` are part of the chain; tensors may change their values, not their shapes.
        sample_kwargs: Keyword arguments, likewise.
        granularity: ``"fine"`` cuts wherever little crosses, some two to four stages per
            block; ``"blocks"`` only between the model's repeated blocks; a number sets the
            most stages there may be. Finer chains leave more to choose, and take longer to
            measure and to solve.

    Raises:
        UnsupportedModelError: The model cannot be traced into one graph, or does things that
            a graph would not do; the text says which.

    Complexity:
        Linear in the number of operators but for TorchDynamo itself: seconds.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
        >>> chain = extract(model, (torch.zeros(2, 8),))
        >>> [stage.name for stage in chain.stages]
        ['0+1', '2']
    """
    require_granularity(granularity)

    def cut(observed: ObservedGraph) -> GraphChain:
        return cut_into_chain(observed, granularity, repeated_blocks(model))

    capture, graph = _extracted(model, sample_args, dict(sample_kwargs or {}), cut)
    return ExtractedChain(model=model, capture=capture, graph=graph)


def extract_join(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    granularity: Granularity = "fine",
) -> ExtractedJoin:
    """Cut the forward of `model` into branches that meet, and a tail behind them.

    As `extract`: the model is traced, compared with its graph, and left as it was.

    Args:
        model: Any module with two parts or more that know nothing of each other, and save at
            least 5 % of what the model saves each. They may share parameters and inputs.
            They meet in the model, or in a loss behind it.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        granularity: The granularity of each branch and the tail, as for `extract`; a number is
            divided among them.

    Raises:
        NotAJoinError: There are no such parts; the text says where they exchange values.
        UnsupportedModelError: The model cannot be traced.

    Example:
        >>> import torch
        >>> class Siamese(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.tower = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        ...     def forward(self, left, right):
        ...         return (self.tower(left) - self.tower(right)).square().mean()
        >>> join = extract_join(Siamese(), (torch.zeros(2, 8), torch.zeros(2, 8)))
        >>> len(join.branches), [len(branch) for branch in join.branches], len(join.tail)
        (2, [2, 2], 1)
    """
    require_granularity(granularity)

    def cut(observed: ObservedGraph) -> GraphJoin:
        return cut_into_join(observed, granularity, repeated_blocks(model))

    capture, graph = _extracted(model, sample_args, dict(sample_kwargs or {}), cut)
    return ExtractedJoin(model=model, capture=capture, graph=graph)


Cut = TypeVar("Cut", GraphChain, GraphJoin)


def _extracted(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    cut: Callable[[ObservedGraph], Cut],
) -> tuple[GraphCapture, Cut]:
    require_module_and_tuple(model, args)
    require_initialised(model)
    device = device_of(model, args, kwargs)
    name = type(model).__name__
    capture = GraphCapture(unbound_forward(model), GraphForward.from_graph, name)
    try:
        with torch.enable_grad():
            capture.capture(model, *args, **kwargs)
    except UnplannedGraphError as found:
        forward, inputs = found.forward, found.inputs
        captured = as_captured_graph(forward.graph, forward.inputs)
        graph = cut(observe_graph(name, captured, inputs))
        written = written_inputs(graph.stages, graph.state_inputs, inputs)
        function = unbound_forward(model)
        Trial(model, args, kwargs, inputs, graph, written, device, function).require_same()
        forward.plans[forward.sizes(inputs)] = graph
        return capture, graph
    except NoFullGraphError as reason:
        raise UnsupportedModelError(
            f"TorchDynamo makes no full graph of {name} on this sample: {reason}"
        ) from reason
    raise UnsupportedModelError(f"{name} computes nothing from its arguments and parameters")


def require_granularity(granularity: object) -> None:
    """Refuse what says nothing about stages.

    Raises:
        ValueError: Neither a name nor a number of stages.
    """
    is_count = isinstance(granularity, int) and granularity >= 1
    if not is_count and granularity not in ("fine", "blocks"):
        raise ValueError(
            f"granularity is {granularity!r}, must be 'fine', 'blocks' or a number of stages, "
            "at least 1"
        )


def require_module_and_tuple(model: object, sample_args: object) -> None:
    """Refuse what cannot be called as a model is.

    Raises:
        UnsupportedModelError: The model is no module, or the arguments are no tuple.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__}, must be a torch.nn.Module; wrap a function "
            "in a module that registers what it trains"
        )
    if not isinstance(sample_args, tuple):
        raise UnsupportedModelError(
            f"sample_args is a {type(sample_args).__name__}, must be a tuple of the model's "
            "positional arguments; for one argument write (x,)"
        )


def device_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of the model, where the sample must be, too.

    Raises:
        UnsupportedModelError: The sample is elsewhere, or there is no tensor at all.
    """
    held = [*model.parameters(), *model.buffers()]
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    devices = dict.fromkeys(tensor.device for tensor in held) or {
        tensor.device: None for tensor in given[:1]
    }
    if not devices:
        raise UnsupportedModelError(
            "neither the model nor the call has any tensor; there is nothing to plan"
        )
    for tensor in given:
        if tensor.device not in devices and tensor.dim() > 0:
            raise UnsupportedModelError(
                f"the sample has a tensor on {tensor.device}, but the model is on "
                f"{next(iter(devices))}; move both to one device"
            )
    return next(iter(devices))
