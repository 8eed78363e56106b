"""Checks that a captured graph is the model, which do not trust the capture.

Graph and model both run on the sample, for real: the graph on stand-ins, the model's own
Python on a shadow of the model. Outputs, what is written and random states must be equal bit
for bit, and the autograd graphs node for node: equal operators on equal tensors give equal
gradients. Nothing is saved for a backward, so this takes little memory.

Some models take another way to the same values when they are traced (masks that mask nothing
are left out only when values can be looked at), and views that cross a cut are made again behind
it. Where autograd graphs differ, gradients decide. What is saved for them stays on the device
as far as half of what is free there holds it, and goes to host memory.

On accelerators many backwards give other bits each time, in plain training, too. Where the model's
own gradients do, those of the graph may differ from them by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import nn

from chainstay.errors import ChainstayError
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.operators import ObservedGraph
from chainstay.runtime.capture.output_leaves import output_leaves
from chainstay.runtime.capture.tracing import NotTheModelError
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.isolation import (
    StandIns,
    copies_kept,
    functions_of,
    gradients_kept,
    values_kept,
)
from chainstay.runtime.capture.trials.world import global_names, world_kept
from chainstay.runtime.execute.environment import random_states
from chainstay.runtime.execute.handles import dropping
from chainstay.runtime.execute.repeatable import (
    REMEDY,
    OperatorLog,
    first_difference,
    is_repeated,
    other_bits_accepted,
)
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.stage.states import nodes_below, variables_below

_Gradients = dict[int, torch.Tensor | None]

_Saving = Callable[[StandIns], AbstractContextManager[object]]
"""Makes the context that says what a forward on these stand-ins saves."""

_REPEATS: Final = 2
"""Runs of a model whose gradients are not its graph's, to see whether its own differ, too."""

_UNLOGGED: Final = nullcontext()

_SAME_BACKWARD: Final = {"UnsafeViewBackward0": "ViewBackward0"}
"""Reshapes whose copies were made by another operator when traced; gradients are reshaped alike."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputSample:
    """The output of the model's own forward on the sample.

    Attributes:
        value: The output as it nests; its tensors have no graph that could be gone through.
        positions: Positions among the graph's outputs of the tensors in there, by identity.
    """

    value: Any
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A call that model and captured graph are tried with.

    Attributes:
        call: The call, whose function the graph was captured from.
        inputs: The inputs of the graph in that call, its constants excluded.
        graph: Runs it.
        written: Identities of those inputs that it changes in place.
        device: The model's device.
        may_draw_anew: Whether its backward may draw random numbers: gradients are compared, too.
    """

    call: Call
    inputs: Sequence[Any]
    graph: Callable[..., Sequence[Any]]
    written: frozenset[int]
    device: torch.device
    may_draw_anew: bool = False

    @classmethod
    def of(
        cls,
        call: Call,
        observed: ObservedGraph,
        graph: GraphChain | GraphJoin,
        inputs: Sequence[Any],
        device: torch.device,
    ) -> Trial:
        """Return the trial of a graph that was observed and cut; see the attributes."""
        written = graph.written_by(inputs)
        return cls(call, inputs, graph, written, device, observed.may_draw_anew)

    def require_same(self) -> OutputSample:
        """Refuse a graph that does anything else than its model.

        Returns:
            What the model gave.

        Raises:
            NotTheModelError: The text says what differs.
            SampleFailsError: The model itself fails on the sample.
        """
        expected, difference = self._compared()
        if difference is not None:
            raise self._refusal(difference)
        return OutputSample(expected.value, expected.positions)

    def is_same(self) -> bool:
        """Whether the graph gives all that the model gives; it may give more."""
        return self._compared()[1] is None

    def _compared(self) -> tuple[_Outcome, str | None]:
        """Return what the model gave, and the first difference in words, if there is any."""
        expected, found = self._run_model(_dropping), self._run_graph(_dropping)
        expected.pair_with(found)
        difference = next(_differences(expected, found), None)
        if difference is None and (
            self.may_draw_anew or expected.autograd_graph() != found.autograd_graph()
        ):
            difference = next(self._differing_gradients(), None)
        return expected, difference

    def _run_model(
        self, saving: _Saving, log: AbstractContextManager[object] = _UNLOGGED
    ) -> _Outcome:
        """Run a shadow of the model, which leaves no trace."""
        stand_ins = StandIns(self.written)
        stand_ins.of_all(self.inputs)
        shadow = self.call.of_shadow(stand_ins)
        parameters = (value for value in self.inputs if isinstance(value, nn.Parameter))
        constant = (value for value in parameters if id(value) not in self.written)
        world = world_kept(functions_of(self.call.model), self.device)
        with world, torch.enable_grad(), saving(stand_ins):
            told, kept = self.call.failures_told(), values_kept(constant)
            with kept as spoiled, told, log, _leaves_made() as made:
                value = shadow()
            given = {id(tensor) for _, tensor in stand_ins.known.values()}
            leaves = (leaf for leaf in output_leaves(value) if isinstance(leaf, torch.Tensor))
            own = {id(leaf): leaf for leaf in leaves if id(leaf) not in given}
            outcome = self._outcome(value, list(own.values()), stand_ins)
            outcome.made = made
        if spoiled:
            raise NotTheModelError(
                f"the forward of {self.call.name} changes a parameter in a way that "
                "torch.compile does not see; make it a buffer, and change that in place"
            )
        return outcome

    def _run_graph(
        self, saving: _Saving, log: AbstractContextManager[object] = _UNLOGGED
    ) -> _Outcome:
        """Run the graph of a model that has just run by itself."""
        stand_ins = StandIns(self.written)
        inputs = stand_ins.of_all(self.inputs)
        with world_kept((), self.device), torch.enable_grad(), saving(stand_ins):
            try:
                with log:
                    leaves = list(self.graph(*inputs))
            except (torch.OutOfMemoryError, ChainstayError):
                raise  # tell their own story
            except Exception as failure:  # an operator's, which the model may catch
                raise NotTheModelError(
                    f"what torch.compile makes of {self.call.name} is not the model, which catches "
                    f"an error: {type(failure).__name__}: {str(failure).rstrip('.')}"
                ) from failure
            return self._outcome(leaves, leaves, stand_ins)

    def _outcome(self, value: Any, leaves: Sequence[object], stand_ins: StandIns) -> _Outcome:
        """Return the outcome of a run that has just ended."""
        kept = (stand_ins.known.get(id(value)) for value in self.inputs)
        changed = [
            pair[1].detach() for pair in kept if pair is not None and id(pair[0]) in self.written
        ]
        return _Outcome(value, leaves, changed, random_states(self.device), stand_ins)

    def _differing_gradients(self) -> Iterator[str]:
        """Yield the inputs whose gradients differ, in words."""
        expected, found = self._gradients()
        pairs = [(expected.get(key), found.get(key)) for key in expected | found]
        indices = [n for n, (old, new) in enumerate(pairs) if not _is_same(old, new)]
        if indices and any(self._differs_from_itself(expected) for _ in range(_REPEATS)):
            with other_bits_accepted.set_to(value=True):
                indices = [n for n in indices if not _is_same(*pairs[n])]
        for index in indices:
            yield f"gradient {index} of its parameters is another one"

    def _differs_from_itself(self, expected: _Gradients) -> bool:
        """Whether the model has other gradients when it runs again; its stand-ins are new then."""
        again = self._gradients_behind(self._run_model(copies_kept))
        return not all(map(_is_same, expected.values(), again.values()))

    def _gradients(self) -> tuple[_Gradients, _Gradients]:
        """Return the gradients of the model, and those of the graph, made one after the other."""
        expected = self._run_model(copies_kept)
        gradients = self._gradients_behind(expected)
        found = self._run_graph(copies_kept)
        expected.pair_with(found)
        return gradients, self._gradients_behind(found)

    def _gradients_behind(self, outcome: _Outcome) -> _Gradients:
        """Run the backward of half the sum of all outputs' squares, and return the gradients.

        Returns:
            Gradients by the identities of the parameters and inputs that they are of; some have
            none.
        """
        stand_ins = [made for _, made in outcome.stand_ins.known.values()]
        given = (value for value in (*self.inputs, *stand_ins) if isinstance(value, torch.Tensor))
        trained = (tensor for tensor in given if tensor.is_leaf and tensor.requires_grad)
        variables = dict.fromkeys((*trained, *variables_below(outcome.tensors).values()))
        originals = outcome.stand_ins.originals()
        around = world_kept(functions_of(self.call.model), self.device)
        with around, torch.enable_grad(), gradients_kept(variables):
            roots = {id(leaf): leaf for leaf in outcome.tensors if leaf.requires_grad}.values()
            if roots:  # not autograd.grad, which reentrant checkpoints do not take
                torch.autograd.backward(list(roots), [root.detach() for root in roots])
            made = {id(leaf) for leaf in outcome.made}  # nobody has these to read gradients from
            return {
                originals.get(id(leaf), id(leaf)): leaf.grad
                for leaf in variables
                if id(leaf) not in made
            }

    def _refusal(self, difference: str) -> NotTheModelError:
        """Return an error for people: where the two begin to differ, or the model from itself."""
        if (compiled := _compiled_function(self.call.model)) is not None:
            name, compiler, remedy = compiled
            return NotTheModelError(
                f"{self.call.name} calls {name}, compiled by {compiler}, which gives other bits "
                f"than the same operators ({difference}); {remedy}"
            )
        model, graph, again = OperatorLog(), OperatorLog(), OperatorLog()
        self._run_model(_dropping, model)
        self._run_graph(_dropping, graph)
        self._run_model(_dropping, again)
        name = self.call.name
        if (differing := first_difference(model, again)) is not None:
            return NotTheModelError(
                f"the forward of {name} gives another output when it runs again on the same input "
                f"(first at the operator {differing[0]}); {REMEDY}"
            )
        where = ""
        if (differing := first_difference(model, graph)) is not None:
            old, new = differing
            taken = f"instead of {new}" if old != new else "with another result"
            where = f" (first at the operator {old}, {taken})"
        return NotTheModelError(
            f"what torch.compile makes of {name} is not the model: {difference}{where}"
        )


@contextmanager
def _leaves_made() -> Iterator[list[torch.Tensor]]:
    """Yield what is made to require a gradient inside (`requires_grad_`), filled by and by."""
    require, made = torch.Tensor.requires_grad_, list[torch.Tensor]()

    def required(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:  # noqa: FBT001, FBT002  # as torch's
        if requires_grad and not tensor.requires_grad:
            made.append(tensor)
        return require(tensor, requires_grad)

    with patch.object(torch.Tensor, "requires_grad_", required):
        yield made


@dataclass(slots=True, eq=False)
class _Outcome:
    """The outcome of a forward."""

    value: Any
    leaves: Sequence[object]
    changed: Sequence[torch.Tensor]
    random: Sequence[tuple[torch.device, torch.Tensor]]  # states of generators afterwards
    stand_ins: StandIns  # those of the inputs
    made: Sequence[torch.Tensor] = ()  # what the forward made, and made require a gradient
    positions: dict[int, int] = field(default_factory=dict)  # in the other outcome, by identity
    unmatched: int | None = None  # index of a leaf that the other outcome has not

    def pair_with(self, other: _Outcome) -> None:
        """Find every tensor of this outcome in `other`."""
        free = dict(enumerate(other.leaves))
        ordered: list[object] = []
        for index, leaf in enumerate(self.leaves):
            found = next((n for n, candidate in free.items() if _is_same(leaf, candidate)), None)
            if found is None:
                self.unmatched = index
                return
            ordered.append(free.pop(found))
            self.positions[id(leaf)] = found
        other.leaves = ordered

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def autograd_graph(self) -> list[tuple[object, ...]]:
        """Return the autograd graph of the outputs, in a fixed order: names, leaves, edges."""
        nodes, originals = nodes_below(self.tensors), self.stand_ins.originals()
        numbers = {node: index for index, node in enumerate(nodes)}
        found: list[tuple[object, ...]] = [
            (leaf.requires_grad, leaf.output_nr, numbers.get(leaf.grad_fn)) for leaf in self.tensors
        ]
        for node in nodes:
            below = [(numbers.get(function), index) for function, index in node.next_functions]
            name = _SAME_BACKWARD.get(node.name(), node.name())
            variable = id(getattr(node, "variable", None))
            found.append((name, originals.get(variable, variable), *below))
        return found


def _dropping(_: StandIns) -> AbstractContextManager[object]:
    return dropping()


def _compiled_function(model: nn.Module) -> tuple[str, str, str] | None:
    """Return a compiled function that the model names, its compiler, and what to do about it."""
    for name, value in _named_by(model):
        if isinstance(value, torch.jit.ScriptFunction):
            return name, "torch.jit.script", "use the function that was scripted in its place"
        if isinstance(value, FunctionType) and "_torchdynamo_inline" in vars(value):
            remedy = (
                "compile the blocks that call it instead (block.compile()), or use the function "
                "that was compiled in its place"
            )
            return name, "torch.compile", remedy
    return None


def _named_by(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the methods and attributes of the model's modules, and what the methods name."""
    for module in model.modules():
        yield from vars(module).items()
    for function in functions_of(model):
        if isinstance(function, FunctionType):
            yield function.__name__, function
            for name in global_names(function.__code__):
                yield name, function.__globals__.get(name)
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            ):
                with suppress(ValueError):  # nothing is in there yet
                    yield name, cell.cell_contents


def _differences(expected: _Outcome, found: _Outcome) -> Iterator[str]:
    """Yield the differences that do not concern gradients, in words."""
    if expected.unmatched is not None:
        yield f"leaf {expected.unmatched} of the output is another one"
        return
    for old, new in zip(expected.changed, found.changed, strict=True):
        if not _is_same(old, new):
            yield f"it leaves other values in a buffer of shape {tuple(old.shape)}"
    for (_, old), (_, new) in zip(expected.random, found.random, strict=True):
        if not torch.equal(old, new):
            yield "it draws other random numbers"


def _is_same(old: object, new: object) -> bool:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return type(old) is type(new) and old is new
    return old.requires_grad == new.requires_grad and is_repeated(old, new)
