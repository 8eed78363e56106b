"""Any module as a chain of stages, or as branches that meet: to be looked at, and to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.dynamo import GraphCapture, GraphForward, UnplannedGraphError
from chainstay.runtime.capture.operators import ObservedGraph, observe_graph
from chainstay.runtime.capture.tracing import NoFullGraphError, UnknownCallError
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.equivalence import Trial
from chainstay.runtime.capture.trials.isolation import require_initialised
from chainstay.runtime.joins.branch_graphs import cut_into_join
from chainstay.runtime.joins.graph_join import GraphJoin

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Extracted:
    """A model whose forward runs as stages."""

    model: nn.Module
    capture: GraphCapture

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages in order, and return what ``model(*args, **kwargs)`` gives, bit for bit.

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

    def table(self) -> Table:
        """Return the stages for people, to be printed by rich."""
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
    capture, graph = _extracted(model, sample_args, sample_kwargs, granularity, cut_into_chain)
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
    capture, graph = _extracted(model, sample_args, sample_kwargs, granularity, cut_into_join)
    return ExtractedJoin(model=model, capture=capture, graph=graph)


_Cut = TypeVar("_Cut", GraphChain, GraphJoin)


def _extracted(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    granularity: Granularity,
    cut: Callable[[ObservedGraph, Granularity, frozenset[str]], _Cut],
) -> tuple[GraphCapture, _Cut]:
    require_granularity(granularity)
    require_module_and_tuple(model, args)
    require_initialised(model)
    call = Call.of(model, args, kwargs)
    name, device = call.name, call.device
    made: list[_Cut] = []
    capture = GraphCapture(call.function, GraphForward.from_graph, name)

    def plan(found: UnplannedGraphError) -> _Cut:
        inputs = found.inputs
        observed = observe_graph(name, found.forward, inputs)
        graph = cut(observed, granularity, repeated_blocks(model))
        Trial.of(call, observed, graph, inputs, device).require_same()
        made.append(graph)
        return graph

    try:
        with torch.enable_grad():
            capture.capture(plan, (model, *args), call.kwargs, is_run=False)
    except NoFullGraphError as reason:
        raise UnsupportedModelError(
            f"TorchDynamo makes no full graph of {name} on this sample: {reason}"
        ) from reason
    if not made:
        raise UnsupportedModelError(f"{name} computes nothing from its arguments and parameters")
    return capture, made[0]


def require_granularity(granularity: object) -> None:
    """Refuse what says nothing about stages."""
    is_count = isinstance(granularity, int) and granularity >= 1
    if not is_count and granularity not in ("fine", "blocks"):
        raise ValueError(
            f"granularity is {granularity!r}, must be 'fine', 'blocks' or a number of stages, "
            "at least 1"
        )


def require_module_and_tuple(model: object, sample_args: object) -> None:
    """Refuse what cannot be called as a model is."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"the model is {type_with_article(model)}, must be a torch.nn.Module; wrap a function "
            "in a module that registers what it trains"
        )
    if not isinstance(sample_args, tuple):
        raise UnsupportedModelError(
            f"sample_args is {type_with_article(sample_args)}, must be a tuple of the model's "
            "positional arguments; for one argument write (x,)"
        )
