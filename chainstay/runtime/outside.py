"""What a model does around its blocks: memory and time, with the blocks left out.

The model runs forward and backward. Each block is replaced by a node of the autograd
graph that hands out copies of what the block returned on the sample, and in the backward
gradients that lie as the block's. What is in use then is in use besides the blocks, however
they are scheduled: nothing outside of them runs twice.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.boundary import Gradients, seeded
from chainstay.runtime.costs import require_number
from chainstay.runtime.extraction.blocks import InterceptedChain
from chainstay.runtime.extraction.driving import OnCall, drive
from chainstay.runtime.extraction.intercepting import BlockSample
from chainstay.runtime.extraction.trying import trying
from chainstay.runtime.losses import loss_in
from chainstay.runtime.memory import MemoryTrace, allocated_bytes, trace_marked
from chainstay.runtime.preserve import zeroed_gradients
from chainstay.runtime.probe import leaves_of
from chainstay.runtime.states import State, address_of, detached, state_bytes

__all__ = ["Around", "Outside", "Phase"]

START: Final = "start"
BEGIN: Final = "begin"
END: Final = "end"
BEFORE_BACKWARD: Final = "before backward"
AFTER_BACKWARD: Final = "after backward"
TURN: Final = "turn"

Loss = Callable[[Any], torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What happened since the mark before; in bytes and ns.

    Attributes:
        level: In use at the end.
        peak: The most in use.
        nanoseconds: How long it took.
        gradient_bytes: Of the gradients that a block gets, where its backward begins.
        lasting_bytes: Of those of them that others hold when that backward is over.
    """

    level: int
    peak: int
    nanoseconds: int
    gradient_bytes: int = 0
    lasting_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A step of the model without its blocks.

    Attributes:
        before: Phases that end where a block begins, block by block.
        behind: Phases of the blocks themselves, which do nothing here.
        loss: From the end of the last block to the end of the loss's forward.
        backward: Phases that end where the backward of a block begins.
        last: From the end of the first block's backward to the end of the step.
        leaves: What a gradient is sent to outside of the blocks.
    """

    before: tuple[Phase, ...]
    behind: tuple[Phase, ...]
    loss: Phase
    backward: tuple[Phase, ...]
    last: Phase
    leaves: tuple[torch.Tensor, ...]

    def behind_backward(self, stage: int) -> Phase:
        """The phase that begins where the backward of block `stage` ends."""
        return self.backward[stage - 1] if stage else self.last


@dataclass(slots=True)
class Around:
    """Runs a model without its blocks.

    Attributes:
        chain: The model and its blocks.
        sample: What the blocks got and gave.
        args: Positional arguments of the call.
        kwargs: Keyword arguments.
        loss: From the model's output to one number, if known.
        device: Where the model runs.
    """

    chain: InterceptedChain
    sample: BlockSample
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Loss | None
    device: torch.device
    leaves: tuple[torch.Tensor, ...] = ()

    def held(self) -> frozenset[int]:
        """Stages in mid-segment whose input the model holds until its forward ends."""
        trip = _Trip(self, tuple(map(Gradients.usual, self.sample.states)), lambda: None)
        self._run(trip)
        return frozenset(trip.held) - {*self.chain.starts}

    def measured(self, gradients: Sequence[Gradients], repeats: int) -> Outside:
        """Memory and time.

        Args:
            gradients: Of the input of every block.
            repeats: Timed runs.

        Raises:
            UnsupportedModelError: No gradient reaches some block, or in another order.
        """
        runs = [self._durations(gradients) for _ in range(repeats)]
        traced: list[_Trip] = []

        def run(mark: Callable[[], None]) -> None:
            traced.append(_Trip(self, gradients, mark))
            self._run(traced[0])

        traces = trace_marked(run, self.device)
        (trip,) = traced
        self._require_order(trip.marks)
        times = [int(median(each)) for each in zip(*runs, strict=True)]
        return self._assembled(trip, traces, times)

    def _durations(self, gradients: Sequence[Gradients]) -> list[int]:
        """Of every phase in one run, in ns."""
        times: list[int] = []
        trip = _Trip(self, gradients, lambda: times.append(_now(self.device)))
        start = _now(self.device)
        self._run(trip)
        times.append(_now(self.device))
        return [end - begin for begin, end in pairwise([start, *times])]

    def _run(self, trip: _Trip) -> None:
        model = self.chain.model
        with trying(model, self.device), zeroed_gradients(self.leaves):
            trip.mark(START, -1)  # gradients are there beforehand: a step only adds to them
            with drive(self.chain.stages, self.chain.starts, trip.run):
                output = model(*self.args, **self.kwargs)
            trip.note_held()
            root = self._root(output)
            if not self.leaves:
                self.leaves = leaves_of((root,))
            trip.mark(TURN, -1)
            torch.autograd.backward(root)
            trip.note_lasting()
            del root, output

    def _root(self, output: object) -> torch.Tensor:
        root: object = loss_in(output) if self.loss is None else self.loss(output)
        if isinstance(root, torch.Tensor):
            require_number(root)
            return root
        if self.loss is not None:
            raise UnsupportedModelError(
                f"the loss returns a {type(root).__name__}, must return one real number; reduce "
                "it with .mean() or .sum()"
            )
        leaves = (each for each in tree_leaves(output) if isinstance(each, torch.Tensor))
        wanting = tuple({id(each): each for each in leaves if each.requires_grad}.values())
        if not wanting:
            raise UnsupportedModelError(
                "the model's output has no gradient; leave out what turns it into integers"
            )
        return seeded(wanting, Gradients.usual(wanting))

    def _require_order(self, marks: Sequence[tuple[str, int]]) -> None:
        reached = [stage for kind, stage in marks if kind == BEFORE_BACKWARD]
        expected = list(range(len(self.chain.stages)))[::-1]
        if reached != expected:
            odd = next(
                (stage for stage in expected if stage not in reached),
                next((a for a, b in zip(reached, expected, strict=False) if a != b), 0),
            )
            raise UnsupportedModelError(
                f"the backward does not go through the blocks in the order of their calls: "
                f"{self.chain.stages[odd].name} gets its gradient out of turn, or none; "
                "make the loss depend on all blocks, or pass a list of stages"
            )

    def _assembled(
        self, trip: _Trip, traces: Sequence[MemoryTrace], times: Sequence[int]
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
                lasting_bytes=trip.lasting_bytes.get(mark[1], 0) if is_backward else 0,
            )
        stages = range(len(self.chain.stages))
        return Outside(
            before=tuple(found[BEGIN, stage] for stage in stages),
            behind=tuple(found[END, stage] for stage in stages),
            loss=found[TURN, -1],
            backward=tuple(found[BEFORE_BACKWARD, stage] for stage in stages),
            last=found[END, -1],
            leaves=self.leaves,
        )


@dataclass(slots=True, eq=False)
class _Trip:
    """One run around the blocks.

    Attributes:
        around: What runs.
        gradients: Of the input of every block.
        on_mark: Called at the end of each phase.
        marks: What ended each phase.
        gradient_bytes: By stage, of the gradients that it gets.
        lasting_bytes: By stage, of those of them that live on behind its backward.
        held: Stages whose input lived on at the end of the forward.
    """

    around: Around
    gradients: Sequence[Gradients]
    on_mark: Callable[[], None]
    marks: list[tuple[str, int]] = field(default_factory=list)
    gradient_bytes: dict[int, int] = field(default_factory=dict)
    lasting_bytes: dict[int, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    _gradients: dict[int, list[tuple[StorageWeakRef, int]]] = field(default_factory=dict)
    _starts: dict[int, State] = field(default_factory=dict)
    _shared: dict[int, State] = field(default_factory=dict)
    _inputs: dict[int, list[weakref.ref[torch.Tensor]]] = field(default_factory=dict)

    def mark(self, kind: str, stage: int) -> None:
        """End a phase."""
        self.marks.append((kind, stage))
        self.on_mark()

    def run(self, index: int, _call: OnCall, state: State, shared: State) -> tuple[object, State]:
        """Stand in for a block."""
        self.mark(BEGIN, index)
        chain, sample = self.around.chain, self.around.sample
        if index in chain.starts:  # as a plan does, until the block's backward
            self._starts[index] = detached(state)
        self._shared[chain.segment_of(index)] = shared
        self._inputs[index] = [weakref.ref(each) for each in state]
        stage = chain.stages[index]
        made = self._bridged(index, state)
        result = stage.output.filled(made, ())
        after = (*made, *(state[position] for position in stage.carried))
        assert len(after) == len(sample.results[index]), "as on the sample"
        self.mark(END, index)
        return result, after

    def note_held(self) -> None:
        """See whose input is alive; call it when the model's forward is over."""
        for index, references in self._inputs.items():
            if any(each() is not None for each in references):
                self.held.append(index)

    def note_lasting(self) -> None:
        """See which gradients live on; call it when the backward of their block is over."""
        for index, references in self._gradients.items():
            self.lasting_bytes[index] = sum(
                size for reference, size in references if not reference.expired()
            )
        self._gradients.clear()

    def before_backward(self, index: int, gradients: State) -> list[torch.Tensor | None]:
        """The gradients that a block gives for those it gets."""
        self.note_lasting()
        self.gradient_bytes[index] = state_bytes(gradients)
        distinct = {address_of(each): each for each in gradients}.values()
        self._gradients[index] = [
            (StorageWeakRef(each.untyped_storage()), allocated_bytes(each)) for each in distinct
        ]
        del distinct
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
        """New tensors for what the block returned; what passed through it passes through."""
        sample = self.around.sample
        passed = sample.passed[index]
        count = len(sample.results[index]) - len(self.around.chain.stages[index].carried)
        values = sample.results[index][:count]
        new = [n for n, each in enumerate(values) if n not in passed and each.requires_grad]
        anchor = torch.empty(0, device=self.around.device, requires_grad=True)
        bridged = _Bridge.apply(  # type: ignore[no-untyped-call]
            self, index, tuple(values[n] for n in new), anchor, *state
        )
        known = dict(zip(new, bridged, strict=True))
        device = self.around.device
        return tuple(
            known[n]
            if n in known
            else state[passed[n]]
            if n in passed
            else each.to(device, copy=True)
            for n, each in enumerate(values)
        )


class _Bridge(torch.autograd.Function):
    """Where a block would be."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # autograd's context has no type
        trip: _Trip,
        index: int,
        values: State,
        anchor: torch.Tensor,
        *state: torch.Tensor,
    ) -> State:
        ctx.trip, ctx.index = trip, index
        ctx.wanting = tuple(each.requires_grad for each in state)
        ctx.set_materialize_grads(False)
        return tuple(each.detach().to(anchor.device, copy=True) for each in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:  # noqa: ANN401
        present = tuple(each for each in gradients if each is not None)
        made = ctx.trip.before_backward(ctx.index, present)
        wanted = (each if wants else None for each, wants in zip(made, ctx.wanting, strict=True))
        return (None, None, None, None, *wanted)


def _now(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    # With one thread, time spent by other processes on this core does not count.
    return time.thread_time_ns() if torch.get_num_threads() == 1 else time.perf_counter_ns()
