"""Options of stages, and of blocks that are several stages: each is run alone and traced.

Stages that do the same on inputs that lie alike in memory, as the blocks of a transformer do,
have the same options with the same costs: one of them is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, TypeVar

from chainstay.errors import PlanMismatchError
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.backend_settings import backend_settings
from chainstay.runtime.joins.account import JoinAccount
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.costs import ObservedStage, Subject
from chainstay.runtime.measures.probe import StageMemory, StageProbe
from chainstay.runtime.measures.shared_bytes import LeafUses
from chainstay.runtime.measures.stage_cost import OptionCost, StageCost
from chainstay.runtime.options.graph import StageGraph, trace_stage
from chainstay.runtime.options.option import (
    Option,
    OptionPart,
    admitted,
    option_of,
    stage_options,
)
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.options.table import OptionTable
from chainstay.runtime.stage.chain_stage import ChainStage, fused, likeness_of
from chainstay.runtime.stage.spans import Span, spans_worth_keeping
from chainstay.runtime.stage.stage_errors import run_stage
from chainstay.runtime.stage.states import State, detached

_LEAST_PART: Final = 500
"""A stage that saves less than this part of what the whole chain saves is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedOption:
    """An option of stages from `first` on, or of stages alike, and its memory when run alone."""

    option: Option
    first: int
    memory: StageMemory


_MOST: Final = 8
"""Options of a block, and of a stage that is kept together with no other."""
_FEWER: Final = 3
"""Options of other spans and stages: further ones gain next to nothing, and each is run."""
_LARGE: Final = 12
"""Of stages that save together more than this part of the chain, one steady option is enough."""
_MOST_OPERATORS: Final = 8_000
"""Operators in all options of a stage, where there are more than so few options: each is run."""


Kept: TypeAlias = Callable[[StageMemory, int, int], tuple[int, int, int]]
"""What keeping stages saves, and both overheads; see `ChainAccountant.kept`."""


_A = TypeVar("_A", Account, JoinAccount)


class ChosenOption(NamedTuple):
    """An option's choice of operators, and how many stages it keeps together."""

    selection: Selection
    stages: int


def observe_options(
    observed: Sequence[ObservedStage],
    memories: Sequence[StageMemory],
    subjects: Iterable[Subject],
    *,
    has_spans: bool = True,
    is_whole: bool = False,
) -> list[ObservedOption]:
    """Return the options of every stage of a chain; call it inside `measuring`.

    With `has_spans`, several stages may be kept together; `is_whole` is as for `trace_chain`.
    """
    everything = sum(memory.kept_bytes for memory in memories)
    if has_spans:
        subjects = (_with_spans(subject, everything // _LEAST_PART) for subject in subjects)
    leaves_by_stage = [observation.leaves for observation in observed]
    held = [memory.leaf_gradients for memory in memories]
    alike: dict[Hashable, list[tuple[Option, StageMemory]]] = {}
    found: list[ObservedOption] = []
    for first, place in enumerate(_places(subjects)):
        subject = place.subject
        if place.state is subject.source:
            subject.progress("looking for options", steps=0, more=len(place.stages))
        subject.progress("looking for options")
        spans = (*subject.blocks, *subject.spans)
        in_span = any(start <= first <= last for start, last in spans)
        for last in _ends(first, spans, observed):
            saved = sum(memory.kept_bytes for memory in memories[first : last + 1])
            if saved * _LEAST_PART < everything:
                continue
            count = last - first + 1
            gradients = memories[last].output_gradients
            own_leaves = leaves_by_stage[first : last + 1]
            leaves = {id(leaf): leaf for own_of_stage in own_leaves for leaf in own_of_stage}
            has_values = subject.instruments.has_values
            uses = LeafUses.of(leaves_by_stage, first, last, held, has_values=has_values)
            key = (
                place.key(count),
                gradients,
                tuple(uses.of_leaf(leaf) for leaf in leaves.values()),  # sums take memory
                (is_whole, Autocast.now(subject.device), backend_settings()),
            )
            known = alike if subject.options is None else subject.options
            if key not in known:
                is_block = (first, last) in subject.blocks
                most = _MOST if is_block or not in_span else _FEWER
                kept_time = sum(observation.time.kept for observation in observed[first : last + 1])
                is_large = count > 1 and saved * _LARGE > everything
                options = _options(place, count, kept_time, most, is_large=is_large)
                options = [option for option in options if option.saved_bytes < saved]
                new_probe = partial(
                    StageProbe,
                    leaves=tuple(leaves.values()),
                    output_gradients=gradients,
                    uses=uses if is_whole else None,
                )
                known[key] = _with_memory(options, place, new_probe)
            for option, memory in known[key]:
                if not option.selection.drops and memory.kept_bytes >= saved:
                    continue  # no less than these stages save one by one
                own = replace(option, stages=count)
                found.append(ObservedOption(option=own, first=first, memory=memory))
    return found


def _options(
    place: _StagePosition, count: int, kept_time: int, most: int, *, is_large: bool
) -> list[Option]:
    """Return options of `count` stages, `most` and the steady ones, or fewer.

    There are fewer where they have many operators, or save a large part of what the chain does.
    """
    graph = place.traced(count, repeats=2)
    if graph is None:
        return []
    fewer = max(_FEWER, _MOST_OPERATORS // max(len(graph.operators), 1))
    given = (place.state, place.subject.shared)
    options = stage_options(
        graph.taking(kept_time),
        given,
        min(most, fewer),
        is_large=is_large,
        is_checked=place.subject.instruments.has_values,
    )
    return [option for option in options if count > 1 or option.selection.drops]


def with_options(
    account: _A, found: Sequence[ObservedOption], kept: Kept
) -> tuple[_A, OptionTable]:
    """Return the account with the costs of options, and the options by stage and number."""
    table: dict[tuple[int, int], Option] = {}
    costs: list[list[OptionCost]] = [[] for _ in account.costs]
    for candidate in found:
        option, first = candidate.option, candidate.first
        sizes = kept(candidate.memory, first, first + option.stages - 1)
        costs[first].append(_option_cost(option, sizes))
        table[first, len(costs[first])] = option
    return account.with_options(map(tuple, costs)), table


def options_on_file(
    account: Account | JoinAccount, subjects: Iterable[Subject]
) -> OptionTable | None:
    """Return the options of an account that was read, made anew; ``None`` if it lacks some."""
    if account.has_options:
        with suppress(PlanMismatchError):  # otherwise all is measured anew
            return restored_options(subjects, chosen_options(account.costs))
    return None


def _option_cost(option: Option, sizes: tuple[int, int, int]) -> OptionCost:
    saved, recording, backward = sizes
    return OptionCost(
        name=option.name,
        saved_bytes=saved,
        recording_bytes=recording,
        backward_bytes=backward,
        replay_time=option.replay_time,
        stages=option.stages,
        replayed=tuple(sorted(option.selection.replayed)),
        redrawn=tuple(sorted(option.selection.redrawn)),
        is_steady=option.is_steady,
    )


def restored_options(
    subjects: Iterable[Subject],
    wanted: Mapping[tuple[int, int], ChosenOption],
    *,
    is_checked: bool = False,
) -> OptionTable:
    """Make options that were chosen before; call it inside `measuring`.

    Of stages that are alike, one is looked at. With `is_checked`, each option is run once, and what
    it makes again is compared with what was saved.

    Raises:
        PlanMismatchError: A stage has no such option, or it fails this comparison.
    """
    table: dict[tuple[int, int], Option] = {}
    graphs: dict[Hashable, StageGraph | None] = {}
    made: dict[Hashable, Option] = {}
    for first, place in enumerate(_places(subjects)):
        own = {key: option for key, option in wanted.items() if key[0] == first}
        for key, known in own.items():
            alike = place.key(known.stages)
            if alike not in graphs:
                graphs[alike] = place.traced(known.stages, repeats=1)
            graph, selection = graphs[alike], known.selection
            if graph is None or not selection.is_of(graph.operators):
                raise _no_option(*key)
            choice = (alike, selection.replayed, selection.redrawn)
            if choice not in made:
                option = replace(option_of(graph, selection), stages=known.stages)
                if is_checked and not admitted(option, (place.state, place.subject.shared)):
                    raise _no_option(*key)
                made[choice] = option
            again = made[choice].for_stage(place.fused(known.stages))
            assert again is not None, "it does the same"
            table[key] = again
    return table


def options_again(
    table: OptionTable, stages: Sequence[ChainStage], subjects: Callable[[], Iterable[Subject]]
) -> OptionTable | None:
    """Return the same options of a chain that differs in numbers; call it inside `measuring`.

    `subjects` makes subjects of its `stages`, to run those that have other numbers.

    Returns:
        The options, or ``None`` if one of these stages saves something else now.
    """
    again: dict[tuple[int, int], Option] = {}
    for (first, number), option in table.items():
        own = option.for_stage(fused(stages[first : first + option.stages]))
        if own is not None:
            again[first, number] = own
    other = {key: option for key, option in table.items() if key not in again}
    spans = {(first, option.stages) for (first, _), option in other.items()}
    graphs: dict[tuple[int, int], StageGraph | None] = {}
    if spans:
        for first, place in enumerate(_places(subjects())):
            for span in (span for span in spans if span[0] == first):
                graphs[span] = place.traced(span[1], repeats=1)
    for (first, number), option in other.items():
        graph = graphs[first, option.stages]
        if graph is None or not graph.saves_like(option.code.graph):
            return None
        again[first, number] = replace(option_of(graph, option.selection), stages=option.stages)
    return again


def chosen_options(costs: Iterable[StageCost]) -> dict[tuple[int, int], ChosenOption]:
    """Return what all options of these stages keep, by stage and number."""
    return {
        (first, number): ChosenOption(_selection(cost), cost.stages)
        for first, stage in enumerate(costs)
        for number, cost in enumerate(stage.options, 1)
    }


def _no_option(first: int, number: int) -> PlanMismatchError:
    return PlanMismatchError(
        f"stage {first} has no option {number} here as it was measured; plan again, or with "
        "stage_options=False"
    )


def _selection(cost: OptionCost) -> Selection:
    return Selection(
        kept_bytes=cost.saved_bytes,
        replay_time=cost.replay_time,
        replayed=frozenset(cost.replayed),
        redrawn=frozenset(cost.redrawn),
    )


class _StagePosition(NamedTuple):
    """A stage with those behind it, its input, and the subject that they are part of."""

    subject: Subject
    stages: Sequence[ChainStage]
    state: State

    def fused(self, count: int) -> ChainStage:
        """The first `count` stages as one."""
        return fused(self.stages[:count])

    def traced(self, count: int, *, repeats: int) -> StageGraph | None:
        """The graph of the first `count` stages as one, each operator timed so often."""
        given = (self.state, self.subject.shared)
        return trace_stage(
            self.fused(count),
            given,
            self.subject.device,
            output_stays=self._output_stays(count),
            repeats=repeats,
            instruments=self.subject.instruments,
        )

    def key(self, count: int) -> Hashable:
        """A key that is equal where the first `count` stages have options that do the same."""
        parts, shared = self.fused(count).parts, self.subject.shared
        return likeness_of(parts, self.state, shared), self._output_stays(count)

    def _output_stays(self, count: int) -> bool:
        """Whether nobody changes the output of the first `count` stages in place."""
        return count < len(self.stages) and not self.subject.hands_out


def _places(subjects: Iterable[Subject]) -> Iterator[_StagePosition]:
    """Yield the place in front of every stage but the loss."""
    for subject in subjects:
        stages, state = subject.model_stages, subject.source
        for index, stage in enumerate(stages):
            yield _StagePosition(subject, stages[index:], state)
            state = detached(run_stage(stage, index, state, subject.shared))


def _with_spans(subject: Subject, least: int) -> Subject:
    """Return the subject with the spans that are no blocks of the model, too."""
    if subject.hands_out:
        return subject
    stages, source, shared = subject.model_stages, subject.source, subject.shared
    spans = spans_worth_keeping(stages, source, shared, subject.blocks, least)
    return replace(subject, spans=spans)


def _ends(first: int, spans: Sequence[Span], observed: Sequence[ObservedStage]) -> list[int]:
    """Return the last stages of what may be kept together from stage `first` on."""
    lasts = (last for start, last in spans if start == first)
    return [first, *(last for last in lasts if _is_apart(observed[first : last + 1]))]


def _is_apart(observed: Sequence[ObservedStage]) -> bool:
    """Whether no stage reads what another one of these changes, so that they run again as one."""
    written = [set(observation.effects.written) for observation in observed]
    return not any(
        set(observation.effects.reads) & written[other]
        for index, observation in enumerate(observed)
        for other in range(len(observed))
        if other != index
    )


def _with_memory(
    options: Sequence[Option], place: _StagePosition, new_probe: Callable[..., StageProbe]
) -> list[tuple[Option, StageMemory]]:
    """Return options of the stages at `place` with their memory, traced in one session.

    `new_probe` takes a stage, what it shares with others, and whether it also runs dropping all.
    """
    if not options:
        return []
    shared, device = place.subject.shared, place.subject.device
    stages = (ChainStage(option.code.graph.stage.name, (OptionPart(option),)) for option in options)
    probes = [new_probe(stage=stage, shared=shared, drops=False) for stage in stages]
    phases = chain.from_iterable(probe.phases(place.state, device) for probe in probes)
    traces = iter(place.subject.instruments.trace_phases(phases, device))
    return [(option, probe.memory(traces)) for option, probe in zip(options, probes, strict=True)]
