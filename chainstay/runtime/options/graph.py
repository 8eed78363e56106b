"""A stage as operators, and what autograd saves in each: what options are chosen from.

A *value* is one version of one storage. The first node that gives it represents it; later ones
are views, which take no memory and are run again with whoever reads them. What an operator
saves and no node gives (the noise of dropout, the statistics of a norm, the softmax in attention)
is an *extra* of the operator, known by its number among the operator's saved tensors. One kind of
extra is an operator of its own: the copy in another precision that autocast makes of an argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from chainstay.profiles.operators import Operator
from chainstay.runtime.devices.backend_settings import BackendSettings, backend_settings
from chainstay.runtime.execute.environment import random_states
from chainstay.runtime.options.composition import Composition, compose
from chainstay.runtime.options.instruments import MEASURED, Instruments
from chainstay.runtime.options.operator_parts import SplitLevel, takes_rate
from chainstay.runtime.options.special_operators import (
    is_arithmetic,
    is_dropout,
    operator_name,
    scratch_arguments,
)
from chainstay.runtime.options.stage_run import Cast, StageRun, operator_times
from chainstay.runtime.options.trace import (
    EXTERNAL,
    NotPlainError,
    Operation,
    OperatorTraits,
    Trace,
    TracedPack,
)
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import MemoryLayout, State

_RANDOM_TIME: Final = 20_000
"""Setting a generator and putting it back, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStep:
    """A recipe to run an operator of a `StageGraph` again.

    Attributes:
        node: The operator's node; for a copy by autocast, the node that it is made for.
        traits: What was seen of it.
        cast: For such a copy, of what, for whom and in which precision.
    """

    node: fx.Node
    traits: OperatorTraits
    cast: Cast | None = None

    def on(self, nodes: Mapping[fx.Node, fx.Node]) -> OperatorStep:
        """Return the same of another graph, whose nodes are those that `nodes` says."""
        cast = self.cast
        if cast is not None:
            cast = cast._replace(argument=nodes[cast.argument], user=nodes[cast.user])
        return replace(self, node=nodes[self.node], cast=cast)

    @property
    def name(self) -> str:
        """The operator's name, for people."""
        return operator_name(self.node) if self.cast is None else "cast"


@dataclass(frozen=True, slots=True)
class Pack:
    """A tensor that autograd saves, one of several in their order; parameters are not among them.

    Attributes:
        layout: How it lies in memory.
        saver: The operator that saves it.
        operator: The operator that can make it again; ``None`` if it always stays.
        extra: Its number among what that operator saves; ``None`` if it lies in the result.
    """

    layout: MemoryLayout
    saver: int
    operator: int | None = None
    extra: int | None = None

    def is_dropped(self, replayed: frozenset[int], redrawn: frozenset[int]) -> bool:
        """Whether it is made again, where these operators are run again."""
        return self.operator in replayed or (self.extra is not None and self.operator in redrawn)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageGraph:
    """A stage that has been looked at.

    Attributes:
        stage: The stage, or several as one.
        device: Where it runs.
        composition: Its graph.
        operators: What options are chosen from; see `front`.
        steps: How to run each of them.
        packs: All that autograd saves.
        views: Nodes that are run again with whoever reads them.
        fixed_bytes: The bytes that every option holds: of the stage's output, as far as the stage
            makes it, and of what cannot be made again nor told from others.
        flags: Whether the graph's inputs require gradients.
        rates: Which of the shared values that the graph takes are probabilities of dropout.
        backends: The settings of torch's kernels.
        time: What its nodes take together, in ns, each with what it reads at hand.
    """

    stage: ChainStage
    device: torch.device
    composition: Composition
    operators: tuple[Operator, ...]
    steps: tuple[OperatorStep, ...]
    packs: tuple[Pack, ...]
    views: frozenset[fx.Node]
    fixed_bytes: int
    flags: tuple[bool, ...]
    rates: tuple[int, ...]
    backends: BackendSettings
    time: int

    def taking(self, time: int) -> StageGraph:
        """Return the graph with operators that together take `time` ns, as they do in a step."""
        operators = [
            replace(operator, time=max(operator.time * time // max(self.time, 1), 1))
            for operator in self.operators
        ]
        return replace(self, operators=tuple(operators), time=time)

    def is_for(self, shared: Sequence[Any], backends: BackendSettings) -> bool:
        """Whether a run that may read these values, by `backends`, saves and draws what was seen.

        By other settings of kernels, whatever they are, that is not known.
        """
        rates = (shared[self.composition.shared[index]] for index in self.rates)
        return self.backends == backends and all(0 < rate < 1 for rate in rates)

    def saves_like(self, other: StageGraph) -> bool:
        """Whether what was seen of another stage is the same, but for times and numbers."""
        return self._seen() == other._seen()

    def _seen(self) -> object:
        operators = [replace(operator, time=0) for operator in self.operators]
        steps = [(s.name, s.traits, [*scratch_arguments(s.node)]) for s in self.steps]
        return operators, steps, self.packs, self.fixed_bytes, self.backends

    def for_stage(self, stage: ChainStage) -> StageGraph | None:
        """Return the graph of a stage that does the same with parameters of its own."""
        known = self.stage.parts
        if [part.text for part in stage.parts] != [part.text for part in known]:
            return None  # another number may save other tensors: dropout with 0 saves none
        composition = compose(stage.parts, self.composition.width, self.composition.split)
        if composition is None:
            return None
        nodes = dict(zip(self.composition.graph.nodes, composition.graph.nodes, strict=True))
        return replace(
            self,
            stage=stage,
            composition=composition,
            steps=tuple(step.on(nodes) for step in self.steps),
            views=frozenset(nodes[view] for view in self.views),
        )


def trace_stage(  # noqa: PLR0913  # a stage on its input, and how to look at it, by name
    stage: ChainStage,
    given: tuple[State, Sequence[Any]],
    device: torch.device,
    *,
    output_stays: bool = True,
    repeats: int = 3,
    instruments: Instruments = MEASURED,
) -> StageGraph | None:
    """Run a stage node by node; ``None`` if it cannot be taken apart.

    A stage whose parameters are sharded cannot: when a replay reads them, they may not be there.
    Call it inside `measuring`: statistics are updated and random numbers drawn. Every operator is
    timed `repeats` times; the least time counts. With `output_stays`, nobody changes its output in
    place, so that replays may start from it: true of all stages but a model's last. On stand-ins
    operators stay whole, and draw nothing: an accelerator's random states are in host memory.
    """
    if stage.is_sharded:
        return None
    try:
        run = _stage_run(stage, given, device, has_values=instruments.has_values)
        rates = _rates(run.composition, given[1])
        trace = Trace(run, device, instruments.has_values)
        trace.trace()
    except NotPlainError:
        return None
    times = operator_times(run, trace.casts, device, instruments, repeats)
    return _Assembly(trace, times, output_stays, rates).graph()


def _stage_run(
    stage: ChainStage,
    given: tuple[State, Sequence[Any]],
    device: torch.device,
    *,
    has_values: bool,
) -> StageRun:
    """Return what runs a stage node by node, operators in parts where that gives the same bits.

    Raises:
        NotPlainError: Its graph does not tell all that it does.
    """
    for split in SplitLevel if has_values else (SplitLevel.WHOLE,):
        composition = compose(stage.parts, len(given[0]), split)
        if composition is None or any(
            isinstance(node.target, HigherOrderOperator) for node in composition.graph.nodes
        ):
            raise NotPlainError
        run = StageRun(composition, stage, given)
        if composition.split is SplitLevel.WHOLE or run.is_faithful(device):
            break
    return run


def _rates(composition: Composition, shared: Sequence[Any]) -> tuple[int, ...]:
    """Return which shared values are probabilities of dropout.

    Raises:
        NotPlainError: What a stage saves, or whether it draws, may be otherwise with another
            number than the present one.
    """
    rates: list[int] = []
    places = list(composition.graph.find_nodes(op="placeholder"))[composition.width :]
    for index, (node, position) in enumerate(zip(places, composition.shared, strict=True)):
        number = shared[position]
        if isinstance(number, torch.Tensor) or all(map(is_arithmetic, node.users)):
            continue
        is_rate = all(is_dropout(user) or takes_rate(user) for user in node.users)
        if not is_rate or not 0 < number < 1:
            raise NotPlainError
        rates.append(index)
    return tuple(rates)


@dataclass(slots=True)
class _Assembly:
    """Makes a `StageGraph` of what was seen."""

    trace: Trace
    times: Mapping[fx.Node | Cast, int]
    output_stays: bool
    rates: tuple[int, ...]
    places: dict[fx.Node | Cast, int] = field(default_factory=dict)  # of the operators
    saved: set[int] = field(default_factory=set)  # operators whose result is
    extras: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # bytes

    def graph(self) -> StageGraph:
        trace = self.trace
        keys: list[fx.Node | Cast] = []
        for node in trace.operations:
            keys += [*(cast for cast in trace.casts if cast.user is node), node]
        self.places = {key: place for place, key in enumerate(keys)}
        packs = tuple(map(self._pack, trace.packs))
        fixed = set(trace.outputs)
        for index in {pack.value for pack in trace.packs} - {EXTERNAL}:
            match self._source(index):
                case None:
                    fixed.add(index)
                case operator, None:
                    self.saved.add(operator)
                case operator, _:
                    self.extras[operator] += trace.values[index].bytes
        made = [self._cast(key) if isinstance(key, Cast) else self._operator(key) for key in keys]
        return StageGraph(
            stage=trace.run.stage,
            device=trace.device,
            composition=trace.run.composition,
            operators=tuple(operator for operator, _ in made),
            steps=tuple(step for _, step in made),
            packs=packs,
            views=frozenset(trace.views),
            fixed_bytes=sum(trace.values[index].bytes for index in fixed),
            flags=tuple(trace.flags),
            rates=self.rates,
            backends=backend_settings(),
            time=sum(time for key, time in self.times.items() if isinstance(key, fx.Node)),
        )

    def _pack(self, pack: TracedPack) -> Pack:
        return Pack(pack.layout, self.places[pack.saver], *(self._source(pack.value) or ()))

    def _source(self, index: int) -> tuple[int, int | None] | None:
        """The operator that makes a value, and its number if it is an extra; ``None``: it stays."""
        if index == EXTERNAL or index in self.trace.outputs:
            return None
        value = self.trace.values[index]
        if value.is_overwritten:
            return None
        if value.cast is not None:
            return self.places[value.cast], None
        if value.representative is not None:
            return self.places[value.representative], None
        if value.saver is not None and value.saver[0] is value.maker:
            return self.places[value.maker], value.saver[1]
        return None

    def _operator(self, node: fx.Node) -> tuple[Operator, OperatorStep]:
        trace, place = self.trace, self.places[node]
        seen = trace.operations[node]
        scratch = scratch_arguments(node).values()
        ignored = {key for argument in scratch for key in trace.made[argument]}
        value = None if seen.value is None else trace.values[seen.value]
        is_output = seen.value in trace.outputs
        inputs, views = self._sources_of(node.all_input_nodes)
        operator = Operator(
            time=self.times[node]
            + sum(self.times[view] for view in views)
            + _RANDOM_TIME * bool(seen.traits.generators),
            inputs=tuple(sorted(inputs)),
            result_bytes=0 if value is None or is_output else value.bytes,
            is_saved=place in self.saved,
            extra_bytes=self.extras[place],
            is_keepable=value is not None
            and not value.is_overwritten
            and (self.output_stays or not is_output),
            is_replayable=self._is_replayable(seen, ignored),
            state_bytes=self._state_bytes(seen),
            is_redrawable=seen.traits.noise is not None,
        )
        return operator, OperatorStep(node=node, traits=seen.traits)

    def _cast(self, cast: Cast) -> tuple[Operator, OperatorStep]:
        """A copy by autocast; its argument is there when its user runs."""
        inputs, _ = self._sources_of([cast.argument])
        seen = self.trace.operations[cast.user]
        operator = Operator(
            time=self.times[cast],
            inputs=tuple(sorted(inputs)),
            result_bytes=self.trace.values[cast.value].bytes,
            is_saved=self.places[cast] in self.saved,
            is_replayable=self._is_replayable(seen, set()),
        )
        return operator, OperatorStep(node=cast.user, traits=OperatorTraits(), cast=cast)

    def _is_replayable(self, seen: Operation, ignored: set[int]) -> bool:
        return seen.is_repeatable and not (seen.reads - ignored) & self.trace.written

    def _state_bytes(self, seen: Operation) -> int:
        kinds = seen.traits.generators
        states = random_states(self.trace.device) if kinds else ()
        return sum(
            state.nbytes
            for device, state in states
            if device.type in kinds and state.device == self.trace.device
        )

    def _sources_of(self, nodes: Sequence[fx.Node]) -> tuple[set[int], set[fx.Node]]:
        """Operators that make these, and the views that lie between."""
        sources: set[int] = set()
        views: set[fx.Node] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node in self.places:
                sources.add(self.places[node])
            elif node in self.trace.views and node not in views:
                views.add(node)
                pending += node.all_input_nodes
        return sources, views
