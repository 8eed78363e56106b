"""A function as the graph of its torch operators, traced and guarded by TorchDynamo.

TorchDynamo reads the function's Python without running it, and calls a backend with the
graph of all torch functions in it. Whatever the trace read (attributes, arguments, globals,
modes) is guarded: a call that differs is traced again. Python side effects, appending to a
list for instance, are replayed after the graph has run.

`GraphCapture` keeps to three rules. There is one full graph per call or none: a graph break
would let part of the function run unseen. Nothing but captured code ever runs here: where
no captured graph fits, `GraphCapture.run` raises, and where TorchDynamo is switched off,
capturing does. And calls whose tensors have other sizes have a code object of their own, as models
have: TorchDynamo looks through all graphs of a code object in every call, and limits their number.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from chainstay.errors import ChainstayError
from chainstay.runtime.capture.graph import stage_border
from chainstay.runtime.capture.graph_inputs import (
    GraphInput,
    inputs_of,
    sizing_numbers,
    takes_any_size,
)
from chainstay.runtime.capture.guarded_call import guarded_call, is_sample, is_tracing
from chainstay.runtime.capture.output_leaves import argument_tensors
from chainstay.runtime.capture.tracing import (
    NoFullGraphError,
    NotRunError,
    NotTheModelError,
    UnknownCallError,
    constant_numbers,
    failures_named,
    seeming_eager,
    tracing_settings,
)
from chainstay.runtime.capture.trials.dispatch_modes import in_modes, modes_set_aside, set_aside
from chainstay.runtime.capture.unguarded import environment, has_read_environment, unguarded
from chainstay.runtime.capture.values.conditions import (
    Answer,
    Condition,
    inquiry,
)
from chainstay.runtime.capture.values.constant_masks import constant_masks_left_out
from chainstay.runtime.capture.values.lookups import values_looked_up
from chainstay.runtime.capture.values.sizes import sizes_looked_up
from chainstay.runtime.devices.backend_settings import BackendSettings, backend_settings

CapturedForward = Callable[..., Sequence[Any]]
"""Runs a captured graph: takes its inputs, gives its outputs."""

_Receiver = Callable[[fx.GraphModule, Sequence[Any]], CapturedForward]
"""Takes a graph and the inputs of the call it was traced on; says how it is to be run."""

Sizes = tuple[BackendSettings | type | torch.Size | float, ...]
"""Settings of kernels, the types of a call's inputs, and numbers and sizes that may differ."""

MOST_SHAPES: Final = 256
"""Shapes of calls whose graphs are kept; a graph and its plan may take ten megabytes."""

MOST_GRAPHS_BY_VALUES: Final = 3
"""Graphs, beside the first of each shape, for other sizes or numbers that values decide."""

_numbers = count(1)


class NothingToPlanError(NotRunError):
    """A call that was made only to be planned wants no gradients; nothing has run."""


class _NewConditionsError(NotRunError):
    """A graph asked for conditions whose answers its guards do not hold yet; nothing has run."""


class UnplannedGraphError(NotRunError):
    """A captured graph was called before there was a plan for it; nothing has run.

    Attributes:
        forward: The graph.
        inputs: The inputs of the call.
    """

    def __init__(self, forward: GraphForward, inputs: tuple[Any, ...]) -> None:
        super().__init__("a captured graph has no plan")
        self.forward = forward
        self.inputs = inputs


@dataclass(slots=True, eq=False)
class GraphForward:
    """Runs a captured graph by a plan.

    Attributes:
        graph: The graph as TorchDynamo gave it.
        inputs: The kinds and names of its inputs.
        is_dynamic: Whether sizes of tensors may differ between its calls.
        plans: The plans, by what `sizes` gives: with ``torch.func.functional_call``, tensors that
            a plan has to keep may stand for parameters, which it never holds.
    """

    graph: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    is_dynamic: bool = False
    plans: dict[Sizes, Callable[..., Sequence[Any]]] = field(default_factory=dict)

    @classmethod
    def from_graph(cls, graph: fx.GraphModule, inputs: Sequence[object]) -> GraphForward:
        """Return a forward without a plan; for use inside a backend of TorchDynamo."""
        return cls(graph, inputs_of(graph, inputs), takes_any_size(graph))

    @classmethod
    def if_trained(cls, graph: fx.GraphModule, inputs: Sequence[object]) -> CapturedForward:
        """Return a forward without a plan where gradients are wanted; elsewhere none is needed."""
        if torch.is_grad_enabled() and wants_gradients(inputs):
            return cls.from_graph(graph, inputs)
        return graph.forward

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run the plan of the graph for such inputs.

        Raises:
            UnplannedGraphError: There is no plan for such inputs.
        """
        planned = self.plans.get(self.sizes(inputs))
        if planned is None:
            raise UnplannedGraphError(self, inputs)
        return planned(*inputs)

    def sizes(self, inputs: Sequence[Any]) -> Sizes:
        """Return what tells plans apart: these inputs, and settings of torch's kernels.

        By other kernels, options of stages may save something else.
        """
        told = (backend_settings(), *map(type, inputs), *sizing_numbers(self.inputs, inputs))
        if not self.is_dynamic:
            return told
        return (*told, *(value.shape for value in inputs if isinstance(value, torch.Tensor)))


def wants_gradients(inputs: Sequence[object]) -> bool:
    """Whether any of the inputs requires a gradient."""
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


class _SizedFunction(NamedTuple):
    """The function, ready for calls whose tensors have certain sizes.

    Attributes:
        known: Runs graphs that were captured.
        traced: Captures others.
        forget: Lets the graphs go.
        conditions: What the graphs asked of values in the arguments.
        answers: The sizes and numbers that they got.
    """

    known: Callable[..., Any]
    traced: Callable[..., Any]
    forget: Callable[[], object]
    conditions: list[Condition]
    answers: set[tuple[Answer | None, ...]]


def _sizes_of(tensors: Sequence[torch.Tensor]) -> Sizes:
    """Return the sizes of these tensors; nested ones, which are refused, may have none."""
    return tuple([tensor.shape for tensor in tensors if not tensor.is_nested])


class GraphCapture:
    """The graphs of one function, by kind of call.

    Args:
        function: Takes whatever `run` is called with.
        receive: Called with each new graph and the inputs it was traced on.
        name: The name of the function, for messages.
    """

    def __init__(self, function: Callable[..., Any], receive: _Receiver, name: str) -> None:
        self._function = function
        self._receive = receive
        self._name = name
        self._draws_numbers = False  # Python's, which traced code draws in front of its graph
        self._environment: str | None = None  # of the first trace that read variables of it
        self._is_denied = False  # it is never told that it is traced
        self._masks_left_out: bool | None = False  # some were; with None they all stay
        self._has_graphs = False  # numbers that differ from theirs become inputs
        self._compiled: dict[Sizes, _SizedFunction] = {}

    def _compiled_for(self, sizes: Sizes) -> _SizedFunction:
        """Return the function for calls with these sizes, made if there is none yet."""
        import torch._dynamo  # noqa: PLC0415  # takes more than a second: not before it is needed

        if sizes in self._compiled:
            return self._compiled[sizes]
        if len(self._compiled) >= MOST_SHAPES:
            self._compiled.pop(next(iter(self._compiled))).forget()  # the oldest
        received = weakref.WeakMethod(self._received)  # torch holds backends until the process ends

        def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedForward:
            receive = received()
            assert receive is not None, "it traces"
            return receive(graph, inputs)

        code = guarded_call.__code__.replace(co_name=f"chainstay_{next(_numbers)}")
        own = FunctionType(code, guarded_call.__globals__, code.co_name)
        # Compiled code, and plans with it, would stay as well.
        reset: Callable[[CodeType], None] = torch._dynamo.reset_code  # type: ignore[attr-defined]  # noqa: SLF001  # no public way
        forget = weakref.finalize(self, reset, code)
        forget.atexit = False
        torch.compiler.allow_in_graph(stage_border)
        compiled = self._compiled[sizes] = _SizedFunction(
            known=torch._dynamo.run(own),  # noqa: SLF001  # no public way to run known code only
            traced=torch.compile(own, backend=backend, fullgraph=True, dynamic=None),
            forget=forget,
            conditions=[],
            answers=set(),
        )
        return compiled

    def _received(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedForward:
        """Take a graph that TorchDynamo has made; return what it will call.

        Raises:
            NoFullGraphError: Sizes or numbers that values decide differ too often.
        """
        asked = self._compiled[_sizes_of(inquiry.now.tensors)]
        if self._masks_left_out is not None:
            self._masks_left_out |= constant_masks_left_out(graph, inputs, inquiry.now.is_usual)
        if inquiry.now.asks_more_than(asked.conditions):
            raise _NewConditionsError("the graph is traced again, with guards")
        asked.answers.add(inquiry.now.amounts)
        known = (function.answers for function in self._compiled.values())
        if sum(len(answers) - 1 for answers in known if answers) > MOST_GRAPHS_BY_VALUES:
            raise NoFullGraphError(
                "values of its arguments decide how large something is, or are read as numbers "
                f"({inquiry.now.amounts_text}), and they differ from call to call; compute what "
                "depends on them in front of the model"
            )
        forward = self._receive(graph, inputs)
        self._has_graphs = True
        if self._environment is None and has_read_environment():
            self._environment = environment()

        def run(*given: Any) -> Sequence[Any]:
            if is_sample.now and not isinstance(forward, GraphForward):
                raise NothingToPlanError
            return in_modes(forward, given) if set_aside.now else forward(*given)

        return run

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the captured graph for such a call, and what the function does around it.

        Raises:
            UnknownCallError: There is none; nothing was run.
        """
        tensors = argument_tensors((args, kwargs))
        compiled = self._compiled.get(_sizes_of(tensors))
        if compiled is None:
            raise UnknownCallError
        random_state = random.getstate() if self._draws_numbers else None
        try:
            with modes_set_aside():
                state = self._state(args, tensors, compiled.conditions)
                return compiled.known(self._function, args, kwargs, state)
        except NotRunError:
            if random_state is not None:
                random.setstate(random_state)
            raise

    def capture(
        self,
        plan: Callable[[UnplannedGraphError], CapturedForward],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_run: bool = True,
    ) -> Any:
        """Trace such a call, let its graph be planned, then run it, if it `is_run`.

        A function whose graph is another one keeps its masks of attention; if that does not help,
        it is never told again that it is traced.

        Raises:
            NothingToPlanError: The call was to be planned only, and nothing in it is trained.
            ChainstayError: Whatever `trace` or `plan` raises.
        """
        difference: NotTheModelError | None = None
        while True:
            try:
                with is_sample.set_to(value=not is_run):
                    return self.trace(*args, **kwargs)
            except NoFullGraphError:
                if difference is None:
                    raise
                raise difference from None  # why the way that has a graph is not taken
            except UnplannedGraphError as found:
                try:
                    planned = plan(found)
                except NotTheModelError as other:
                    if not (self._keep_masks() or self.deny()):
                        raise
                    difference = other
                    continue
                except ChainstayError as refusal:
                    raise refusal from refusal.__cause__  # not from `found`
                found.forward.plans[found.forward.sizes(found.inputs)] = planned
            if not is_run:
                return None

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace such a call, then run it.

        A model may ask whether it is being traced, and take another way then. It is told the
        truth first, for which libraries are made; if that way has no full graph, that it is not.

        Raises:
            NoFullGraphError: The function cannot be traced into one graph.
            UnsupportedModelError: The function has too many graphs, or TorchDynamo is off.
            ChainstayError: Whatever `receive` or the captured graph's `CapturedForward` raises.
        """
        is_told = not self._is_denied
        try:
            return self._trace(args, kwargs, is_told=is_told)
        except NoFullGraphError as reason:
            if is_told:
                with suppress(NoFullGraphError):
                    return self._trace(args, kwargs, is_told=False)
            if self._has_graphs:  # at last, with numbers as constants, as theirs were
                with suppress(NoFullGraphError), constant_numbers():
                    return self._trace(args, kwargs, is_told=is_told)
            raise reason from reason.__cause__

    def _state(
        self,
        args: tuple[Any, ...],
        tensors: Sequence[torch.Tensor],
        conditions: Sequence[Condition],
    ) -> str:
        told = unguarded(args, traced_in=self._environment)
        return f"{told} {[c.answer(tensors) for c in conditions]}" if conditions else told

    def _keep_masks(self) -> bool:
        """Leave out no masks of attention from now on; ``False`` if none was left out."""
        were_any, self._masks_left_out = self._masks_left_out, None
        if were_any:
            self._forget_all()
        return bool(were_any)

    def deny(self) -> bool:
        """Never tell the function from now on that it is traced; ``False`` if it never was."""
        if self._is_denied:
            return False
        self._forget_all()
        self._is_denied = True
        return True

    def _forget_all(self) -> None:
        while self._compiled:
            self._compiled.popitem()[1].forget()

    def _trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_told: bool) -> Any:
        while True:
            with suppress(_NewConditionsError):
                return self._trace_once(args, kwargs, is_told=is_told)

    def _trace_once(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_told: bool
    ) -> Any:
        tensors = argument_tensors((args, kwargs))
        with (
            failures_named(self._name, args),
            tracing_settings(tree_leaves((args, kwargs))),
            nullcontext() if is_told else seeming_eager(),
            values_looked_up(tensors),
            sizes_looked_up(),
        ):
            random_state = random.getstate()
            compiled = self._compiled_for(_sizes_of(tensors))
            try:
                with is_tracing.set_to(value=True), modes_set_aside():
                    state = self._state(args, tensors, compiled.conditions)
                    return compiled.traced(self._function, args, kwargs, state)
            except NotRunError:
                if random.getstate() != random_state:
                    self._draws_numbers = True
                    random.setstate(random_state)
                raise
