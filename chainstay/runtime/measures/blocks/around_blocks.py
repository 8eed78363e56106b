"""Memory and time of a model's code around its blocks, with the blocks left out.

The model runs forward and backward. Each block is replaced by a node of the autograd
graph that hands out copies of what the block returned on the sample, and in the backward
gradients that lie as the block's. What is in use then is in use besides the blocks, however
they are scheduled: nothing outside of them runs twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.blocks.graphs import BlockGraph, BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.blocks.sample import BlockSample, blocks_run_by
from chainstay.runtime.capture.output_leaves import output_leaves
from chainstay.runtime.capture.trials.isolation import zeroed_gradients
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.memory import MemoryTrace, trace_marked
from chainstay.runtime.execute.environment import restore_random_states
from chainstay.runtime.measures.boundary import Gradients, noting, seeded
from chainstay.runtime.measures.probe import leaves_of
from chainstay.runtime.stage.assumed_loss import NO_LOSS, AssumedLoss
from chainstay.runtime.stage.loss_stage import TracedLoss, loss_in, require_number
from chainstay.runtime.stage.states import State, detached, state_bytes

START: Final = "start"
BEGIN: Final = "begin"
END: Final = "end"
BEFORE_BACKWARD: Final = "before backward"
AFTER_BACKWARD: Final = "after backward"
TURN: Final = "turn"


class UnreachedBlocksError(UnsupportedModelError):
    """No gradient of the loss reaches some blocks; `names` are their paths."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The memory and time since the mark before; in bytes and ns.

    Attributes:
        level: The bytes in use at the end.
        peak: The most bytes in use.
        nanoseconds: The time that it took, in ns.
        gradient_bytes: The bytes of the gradients that a block gets, where its backward begins.
    """

    level: int
    peak: int
    nanoseconds: int
    gradient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A step of the model without its blocks.

    Attributes:
        before: Phases that end where a block begins, block by block.
        behind: Phases of the blocks themselves, which do nothing here.
        loss: The phase from the end of the last block to the end of the loss's forward.
        backward: Phases that end where the backward of a block begins.
        last: The phase from the end of the first block's backward to the end of the step.
        leaves: What a gradient is sent to outside of the blocks.
        assumed: What a loss needs that is not known.
    """

    before: tuple[Phase, ...]
    behind: tuple[Phase, ...]
    loss: Phase
    backward: tuple[Phase, ...]
    last: Phase
    leaves: tuple[torch.Tensor, ...]
    assumed: AssumedLoss

    def behind_backward(self, stage: int) -> Phase:
        """The phase that begins where the backward of block `stage` ends."""
        return self.backward[stage - 1] if stage else self.last


@dataclass(slots=True)
class Around:
    """Runs a model without its blocks.

    Attributes:
        host: Runs the model's own Python.
        graphs: The graphs of its blocks.
        chain: The blocks.
        sample: What they got and gave.
        loss: A function from the model's output to one number, if known.
        device: Where the model runs.
        leaves: What a gradient is sent to outside of the blocks, once that is known.
        assumed: What a loss needs that is not known, once the model has run.
    """

    host: Host
    graphs: BlockGraphs
    chain: BlockChain
    sample: BlockSample
    loss: TracedLoss | None
    device: torch.device
    leaves: tuple[torch.Tensor, ...] = ()
    assumed: AssumedLoss = NO_LOSS

    @property
    def input_bytes(self) -> int:
        """The bytes of the call's tensors."""
        inputs = self.host.call.tensors
        return state_bytes(tensor for tensor in inputs if tensor.device == self.device)

    def step(self) -> Trip:
        """Return what is seen of a step around the blocks without a look at memory or a clock."""
        trip = self.trip()
        self._run(trip)
        return trip

    def trip(self) -> Trip:
        """A run around the blocks in which nobody looks at memory or a clock."""
        return Trip(self, self._usual(), lambda: None)

    def peak_bytes(self) -> int:
        """Return the most bytes in use in one step without the blocks."""
        gradients = self._usual()
        traces = trace_marked(lambda mark: self._run(Trip(self, gradients, mark)), self.device)
        return max(trace.peak_bytes for trace in traces) - traces[0].end_bytes

    def given(self) -> dict[int, Gradients]:
        """Return how the gradients lie that the model's own code gives to blocks, by block.

        Raises:
            UnreachedBlocksError: No gradient reaches some block.
            UnsupportedModelError: Gradients reach them in another order.
        """
        trip = self.step()
        self._require_order(trip)
        return trip.given

    def measured(self, gradients: Sequence[Gradients], repeats: int) -> Outside:
        """Return the memory and time of a step without the blocks; `repeats` runs are timed.

        Raises:
            UnreachedBlocksError: No gradient reaches some block.
            UnsupportedModelError: Gradients reach them in another order.
        """
        runs = [self._durations(gradients) for _ in range(repeats)]
        traced: list[Trip] = []

        def run(mark: Callable[[], None]) -> None:
            traced.append(Trip(self, gradients, mark))
            self._run(traced[0])

        traces = trace_marked(run, self.device)
        (trip,) = traced
        self._require_order(trip)
        times = [int(median(durations)) for durations in zip(*runs, strict=True)]
        return self._assembled(trip, traces, times)

    def _usual(self) -> tuple[Gradients, ...]:
        """Return dense gradients of the input of every block."""
        return tuple(Gradients.usual(state, self.device) for state in self.sample.states)

    def _durations(self, gradients: Sequence[Gradients]) -> list[int]:
        """Return the durations of all phases of one run, in ns."""
        times: list[int] = []
        now = device_at(self.device).now
        trip = Trip(self, gradients, lambda: times.append(now()))
        start = now()
        self._run(trip)
        times.append(now())
        return [end - begin for begin, end in pairwise([start, *times])]

    def _run(self, trip: Trip) -> None:
        with self.host.fresh() as (model, run), zeroed_gradients(self.leaves):
            trip.mark(START, -1)  # gradients are there beforehand: a step only adds to them
            with blocks_run_by(model, self.chain, self.graphs, trip.run):
                output = run()
            trip.note_held()
            root = self.root(output)
            if not self.leaves:
                self.leaves = leaves_of((root,))
            trip.mark(TURN, -1)
            torch.autograd.backward(root)
            del root, output

    def root(self, output: object) -> torch.Tensor:
        """Return the root of a step's backward: the loss of `output`, or a sum over all of it."""
        root: object = loss_in(output) if self.loss is None else self.loss.of_output(output)
        self.assumed = NO_LOSS
        if isinstance(root, torch.Tensor):
            require_number(root)
            return root
        if self.loss is not None:
            raise UnsupportedModelError(
                f"the loss returns {type_with_article(root)}, must return one real number; reduce "
                "it with .mean() or .sum()"
            )
        leaves = (leaf for leaf in output_leaves(output) if isinstance(leaf, torch.Tensor))
        wanting = tuple({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
        if not wanting:
            raise UnsupportedModelError(
                "the model's output has no gradient; leave out what turns it into integers"
            )
        gradients = Gradients.usual(wanting)
        self.assumed = AssumedLoss.of(gradients.layouts)
        return seeded(wanting, gradients)

    def unreached(self, trip: Trip) -> list[str]:
        """Return the names of the blocks that no gradient reached in a step around them."""
        stages = enumerate(self.chain.stages)
        return [stage.name for index, stage in stages if index not in trip.reached]

    def _require_order(self, trip: Trip) -> None:
        if names := self.unreached(trip):
            raise UnreachedBlocksError(
                f"no gradient reaches {names[0]}; make the loss depend on all blocks", names
            )
        expected = list(range(len(self.chain.stages)))[::-1]
        if trip.reached != expected:
            pairs = zip(trip.reached, expected, strict=False)
            odd = next((stage for stage, other in pairs if stage != other), 0)
            raise UnsupportedModelError(
                f"the backward does not go through the blocks in the order of their calls: "
                f"{self.chain.stages[odd].name} gets its gradient out of turn; pass a list of "
                "stages"
            )

    def _assembled(
        self, trip: Trip, traces: Sequence[MemoryTrace], times: Sequence[int]
    ) -> Outside:
        found: dict[tuple[str, int], Phase] = {}
        base = traces[0].end_bytes
        for mark, trace, duration in zip([*trip.marks, (END, -1)], traces, times, strict=True):
            is_backward = mark[0] == BEFORE_BACKWARD
            found[mark] = Phase(
                level=trace.end_bytes - base,
                peak=trace.peak_bytes - base,
                nanoseconds=duration,
                gradient_bytes=trip.gradient_bytes[mark[1]] if is_backward else 0,
            )
        stages = range(len(self.chain.stages))
        return Outside(
            before=tuple(found[BEGIN, stage] for stage in stages),
            behind=tuple(found[END, stage] for stage in stages),
            loss=found[TURN, -1],
            backward=tuple(found[BEFORE_BACKWARD, stage] for stage in stages),
            last=found[END, -1],
            leaves=self.leaves,
            assumed=self.assumed,
        )


@dataclass(slots=True, eq=False)
class Trip:
    """One run around the blocks."""

    around: Around
    gradients: Sequence[Gradients]
    on_mark: Callable[[], None]
    marks: list[tuple[str, int]] = field(default_factory=list)
    gradient_bytes: dict[int, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)  # stages whose input outlived the forward
    given: dict[int, Gradients] = field(default_factory=dict)  # of the stage's output
    following: int = 0
    _gradients: dict[int, StorageWeakRef] = field(default_factory=dict)  # by output
    _starts: dict[int, State] = field(default_factory=dict)
    _shared: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _state: State = ()
    _inputs: dict[int, list[weakref.ref[torch.Tensor]]] = field(default_factory=dict)

    @property
    def reached(self) -> list[int]:
        """The blocks whose backward began, in order."""
        return [stage for kind, stage in self.marks if kind == BEFORE_BACKWARD]

    def mark(self, kind: str, stage: int) -> None:
        """End a phase."""
        self.marks.append((kind, stage))
        self.on_mark()

    def run(self, graph: BlockGraph, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Stand in for a block."""
        chain, index = self.around.chain, self.following
        self.following += 1
        self.mark(BEGIN, index)
        given, shared = graph.chain.begin(inputs)
        if index in chain.starts:
            self._state = given
            self._starts[index] = detached(given)  # as a plan does, until the block's backward
        stage = chain.stages[index]
        self._shared[index] = graph.retained(shared)
        self._inputs[index] = [weakref.ref(tensor) for tensor in self._state]
        made = self._bridged(index, self._state)
        self._state = (*made, *(self._state[position] for position in stage.carried))
        restore_random_states(self.around.sample.random[index])
        self.mark(END, index)
        return graph.chain.finish(made, shared)

    def note_held(self) -> None:
        """See whose input is alive; call it when the model's forward is over."""
        self._state = ()
        for index, references in self._inputs.items():
            if any(reference() is not None for reference in references):
                self.held.append(index)

    def note_lasting(self, index: int) -> None:
        """See which gradients live on; call it when the backward of their block is over."""
        living = (n for n, gradient in self._gradients.items() if not gradient.expired())
        self.given[index] = replace(self.given[index], lasting=frozenset(living))

    def before_backward(
        self, index: int, new: Sequence[int], given: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Return gradients of a block's inputs, given those of its outputs `new`."""
        usual = Gradients.usual(self.around.sample.results[index], self.around.device)
        self.given[index] = usual.with_known(dict(zip(new, given, strict=True)))
        gradients = {n: g for n, g in zip(new, given, strict=True) if g is not None}
        self.gradient_bytes[index] = state_bytes(gradients.values())
        self._gradients = {
            n: StorageWeakRef(gradient.untyped_storage()) for n, gradient in gradients.items()
        }
        del gradients
        self.mark(BEFORE_BACKWARD, index)
        self._starts.pop(index, None)
        made: list[torch.Tensor | None] = []
        for layout in self.gradients[index].layouts:
            made.append(None)
            if layout is not None:
                made[-1] = layout.over(layout.allocate_storage()).zero_()
        self.mark(AFTER_BACKWARD, index)
        return made

    def _bridged(self, index: int, state: State) -> State:
        """Return new tensors for a block's outputs; one that passes through it is the input."""
        sample = self.around.sample
        passed = sample.passed[index]
        count = len(sample.results[index]) - len(self.around.chain.stages[index].carried)
        values = sample.results[index][:count]
        new = [n for n, value in enumerate(values) if n not in passed and value.requires_grad]
        noted = noting(state, partial(self.note_lasting, index))
        anchor = torch.empty(0, device=self.around.device, requires_grad=True)
        bridged = _Bridge.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            self, index, {n: values[n] for n in new}, anchor, *noted
        )
        known = dict(zip(new, bridged, strict=True))
        device = self.around.device
        return tuple(
            known[n]
            if n in known
            else state[passed[n]]
            if n in passed
            else value.to(device, copy=True)
            for n, value in enumerate(values)
        )


class _Bridge(torch.autograd.Function):
    """An autograd node in the place of a block."""

    @staticmethod
    def forward(
        ctx: Any,
        trip: Trip,
        index: int,
        values: Mapping[int, torch.Tensor],
        anchor: torch.Tensor,
        *state: torch.Tensor,
    ) -> State:
        ctx.trip, ctx.index, ctx.new = trip, index, tuple(values)
        ctx.wanting = tuple(tensor.requires_grad for tensor in state)
        ctx.set_materialize_grads(False)
        return tuple(value.detach().to(anchor.device, copy=True) for value in values.values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        made = ctx.trip.before_backward(ctx.index, ctx.new, gradients)
        wanted = (
            gradient if wants else None for gradient, wants in zip(made, ctx.wanting, strict=True)
        )
        return (None, None, None, None, *wanted)
