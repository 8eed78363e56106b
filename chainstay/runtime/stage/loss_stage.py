"""The loss behind a model, as the last stage of its chain."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.cuts.chain import GraphChain, Position
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.dynamo import GraphCapture, GraphForward, UnplannedGraphError
from chainstay.runtime.capture.graph import NoStagesError
from chainstay.runtime.capture.operators import observe_graph
from chainstay.runtime.capture.output_leaves import output_leaves
from chainstay.runtime.capture.tracing import RAISES, NoFullGraphError
from chainstay.runtime.capture.trials.equivalence import OutputSample
from chainstay.runtime.capture.trials.isolation import StandIns
from chainstay.runtime.stage.chain_stage import NO_EFFECTS, ChainStage, Effects
from chainstay.runtime.stage.states import State

Loss = Callable[[Any], torch.Tensor]


class UntraceableLossError(UnsupportedModelError):
    """A loss that is no graph, but may well run: it reads values of tensors, say."""


def loss_stage(
    loss: Loss | None,
    output: OutputSample,
    found_at: Sequence[Position | object],
    shared: Sequence[Any],
) -> ChainStage | None:
    """The loss as a stage; ``None`` if none is given, and none is in the model's output.

    A loss is traced, not called: a captured graph leaves no trace wherever it keeps its state.
    It reads what the user's loss reads, until `on_stand_ins` gives it others.

    Raises:
        UntraceableLossError: The loss is no graph.
        UnsupportedModelError: The loss fails on this output.
    """
    if loss is None:
        own = loss_in(output.value)
        index = output.positions.get(id(own))
        place = None if index is None else found_at[index]
        if not isinstance(place, Position) or place.is_shared:
            return None
        return ChainStage("loss", (_OwnLoss(place.index),), is_loss=True)

    def place_of(index: int) -> object:
        place = found_at[index]
        if isinstance(place, Position) and place.is_shared:
            return shared[place.index]
        return place

    places = {key: place_of(index) for key, index in output.positions.items()}
    return ChainStage("loss", (_traced(loss, output.value, places),), is_loss=True)


def traced_loss(loss: Loss, output: object) -> TracedLoss:
    """The loss as a function that leaves no trace.

    Raises:
        UntraceableLossError: The loss is no graph.
        UnsupportedModelError: The loss fails on this output.
    """
    leaves = enumerate(output_leaves(output))
    places = {
        id(leaf): Position(index, is_shared=False)
        for index, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    }
    return _traced(loss, output, places).on(StandIns())


def on_stand_ins(loss: ChainStage, stand_ins: StandIns) -> ChainStage:
    """The loss on the stand-ins that its model runs on: a parameter that both read is one leaf."""
    (part,) = loss.parts
    return replace(loss, parts=(part.on(stand_ins),)) if isinstance(part, TracedLoss) else loss


@dataclass(frozen=True, slots=True, eq=False)
class TracedLoss:
    """A loss that has been traced; a `chain_stage.Part`.

    Attributes:
        body: The graph of the loss.
        sources: The place of each of its inputs: a `Position` among the leaves of the model's
            output or in the last state, or the input itself.
    """

    body: GraphChain
    sources: tuple[object, ...]

    @property
    def effects(self) -> Effects:
        """Its draws; what it reads is no shared value. See `Part`."""
        return Effects(draws_random=any(stage.effects.draws_random for stage in self.body.stages))

    @property
    def text(self) -> str:
        """A text of the computation, for a digest."""
        shapes = [
            tuple(source.shape) for source in self.sources if isinstance(source, torch.Tensor)
        ]
        return "\n".join([*(stage.text for stage in self.body.stages), f"{shapes}"])

    def __call__(self, state: Sequence[Any], shared: Sequence[Any] = ()) -> State:  # noqa: ARG002  # as `Part`
        """Run the loss on the last state, or on the leaves of an output; see `Part`."""
        inputs = [state[s.index] if isinstance(s, Position) else s for s in self.sources]
        return self.body(*inputs)[:1]

    def on(self, stand_ins: StandIns) -> TracedLoss:
        """The loss on stand-ins for what is no part of the output; copies of what it changes."""
        positions = {position for stage in self.body.stages for position in stage.effects.written}
        copies = StandIns({id(self.sources[position]) for position in positions})
        copies.of_all(source for source in self.sources if id(source) in copies.written)
        sources = (copies.known.get(id(s), (s, s))[1] for s in self.sources)
        return replace(self, sources=stand_ins.of_all(sources))

    def of_output(self, output: object) -> torch.Tensor:
        """Return the loss of an output that nests like the one it was traced on.

        Raises:
            UnsupportedModelError: The loss fails on it.
        """
        try:
            return self(output_leaves(output))[0]
        except torch.OutOfMemoryError:
            raise  # a smaller sample is the remedy
        except Exception as cause:  # the loss is the user's code and may raise anything
            raise UnsupportedModelError(
                f"the loss fails on the model's output: {type(cause).__name__}: "
                f"{str(cause).rstrip('.')}; check that its targets are for this call"
            ) from cause


@dataclass(frozen=True, slots=True)
class _OwnLoss:
    """A loss that the model computes itself, by its position in the last state; a `Part`."""

    position: int
    text: str = "the model's own loss"
    effects: Effects = NO_EFFECTS

    def __call__(self, state: State, shared: Sequence[Any]) -> State:  # noqa: ARG002  # as `Part`
        """Return the loss that the model computes itself; see `Part`."""
        return (state[self.position],)


@dataclass(frozen=True, slots=True)
class SumLoss:
    """Stands in for a loss where only its being there matters; a `chain_stage.Part`."""

    text: str = "any loss"
    effects: Effects = NO_EFFECTS

    def __call__(self, state: State, shared: Sequence[Any]) -> State:  # noqa: ARG002  # as `Part`
        """Return the sum of all tensors that want gradients; see `Part`."""
        total = [tensor.sum() for tensor in state if tensor.requires_grad]
        return (torch.stack(total).sum() if total else state[0].sum(),)


def _traced(loss: Loss, output: object, places: Mapping[int, object]) -> TracedLoss:
    """Trace ``loss(output)`` without running it; `places` tells by identity where its inputs are.

    Other inputs are the user's own; see `TracedLoss.on`.
    """
    function = loss.forward if isinstance(loss, nn.Module) else loss
    capture = GraphCapture(function, GraphForward.from_graph, "the loss")
    try:
        result = capture.trace(output)
    except UnplannedGraphError as found:
        try:
            observed = observe_graph("the loss", found.forward, found.inputs)
            body = cut_into_chain(observed, granularity=1, blocks=frozenset())
        except NoStagesError as reason:
            raise _untraceable(reason) from reason
        if len(found.forward.graph.graph.output_node().all_input_nodes) > 1:
            _require_no_collection(function, output)
        return TracedLoss(body, tuple(places.get(id(value), value) for value in found.inputs))
    except NoFullGraphError as reason:
        raise _untraceable(reason) from reason
    raise UnsupportedModelError(
        f"the loss computes nothing from the model's output (it returned a "
        f"{type(result).__name__}); it must return one real number with a gradient"
    )


_SEVERAL: Final = "returns several numbers"
_COLLECTIONS: Final = (dict, list, tuple)


def _require_no_collection(function: Callable[[Any], Any], output: object) -> None:
    """Refuse a loss that returns several numbers; it may keep others on an object.

    Raises:
        UnsupportedModelError: It returns a dict, a list or a tuple.
    """

    def computed(output: Any) -> Any:
        result = function(output)
        if isinstance(result, _COLLECTIONS):
            raise TypeError(_SEVERAL)
        return result

    try:
        GraphCapture(computed, GraphForward.from_graph, "the loss").trace(output)
    except UnplannedGraphError:
        return
    except UnsupportedModelError as reason:
        if _SEVERAL in str(reason):
            raise UnsupportedModelError(
                f"the loss {_SEVERAL} (a dict, list or tuple), must return one: add them up"
            ) from None


def _untraceable(reason: Exception) -> UnsupportedModelError:
    kind = UnsupportedModelError if str(reason).startswith(RAISES) else UntraceableLossError
    return kind(
        f"the loss cannot be traced on the model's output: {reason}; write it in torch "
        "operators, or leave loss= out (it then counts as a cross-entropy of the largest output)"
    )


def loss_in(output: object) -> torch.Tensor | None:
    """The scalar in a model's output that is meant to be minimised, if there is one.

    That is ``output.loss`` or ``output["loss"]`` of models that are given ``labels``, or an
    output that is itself one real number.

    Example:
        >>> loss_in({"loss": torch.tensor(1.5), "scores": torch.ones(3)})
        tensor(1.5000)
        >>> loss_in(torch.ones(3)) is None
        True
    """
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if isinstance(named, torch.Tensor) and named.numel() == 1 and named.is_floating_point():
        return named
    return None


def require_loss(loss: object) -> None:
    """Refuse a loss that cannot be called with a model's output.

    Raises:
        UnsupportedModelError: It is a class, not callable, or takes something else.
    """
    if loss is None:
        return
    if isinstance(loss, type):
        raise UnsupportedModelError(
            f"the loss is the class {loss.__name__}, must be a function or an instance; write "
            f"lambda output: {loss.__name__}()(output, targets)"
        )
    if not callable(loss):
        raise UnsupportedModelError(
            f"the loss is {type_with_article(loss)}, must be callable: from the model's output "
            "to one number"
        )
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some builtins nobody knows it
        return
    try:
        signature.bind("output")
    except TypeError as reason:
        raise UnsupportedModelError(
            f"the loss {getattr(loss, '__name__', loss)} is called with the model's output alone "
            f"({reason}); let it hold its targets: lambda output: loss(output, targets)"
        ) from reason


def require_number(loss: torch.Tensor) -> None:
    """Refuse a loss that is not one real number, or has no gradient.

    Raises:
        UnsupportedModelError: It is something else.
    """
    if loss.numel() != 1 or not loss.is_floating_point():
        raise UnsupportedModelError(
            f"the loss returns a tensor of shape {tuple(loss.shape)} and type {loss.dtype}, must "
            "return one real number; reduce it with .mean() or .sum()"
        )
    if not loss.requires_grad:
        raise UnsupportedModelError(
            "the loss has no gradient, so there is nothing to train by; look for detach(), "
            "torch.no_grad(), argmax() or .item() between the model's output and the loss"
        )


def require_differentiable(output: State) -> None:
    """Refuse a model's last state without any real or complex number.

    Raises:
        UnsupportedModelError: It is all integers, or has no gradient and so is no state at all.
    """
    if not output:
        raise UnsupportedModelError(
            "nothing that the model returns for this sample requires a gradient, so there is "
            "nothing to plan; let parameters or the input require one"
        )
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in output):
        types = " and ".join(str(tensor.dtype) for tensor in output)
        raise UnsupportedModelError(
            f"the model's output is of type {types}, which has no gradient; leave out "
            "the stages that turn it into integers"
        )
