"""Measuring of a running join: each branch and the tail is taken as a chain of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise

from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.joins.account import JoinAccount
from chainstay.runtime.joins.cost_files import KIND, VERSION, account_from
from chainstay.runtime.joins.costs import JoinAccountant, ObservedPart
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.joins.staged_join import StagedJoin, staged
from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.measures.cost_files import (
    path_in,
    read_sealed,
    signature_of,
    write_sealed,
)
from chainstay.runtime.measures.costs import (
    ObservedStage,
    Subject,
    lasting_bytes,
    observe_chain,
    returned_tensors,
    timed,
    trace_chain,
)
from chainstay.runtime.measures.measured import effects_of
from chainstay.runtime.measures.option_costs import observe_options, options_on_file, with_options
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.options.table import OptionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJoin(StagedJoin):
    """A join and what its stages cost, the loss included."""

    account: JoinAccount


def measure_join(
    join: GraphJoin,
    parts: Sequence[Subject],
    *,
    repeats: int,
    cache: str | os.PathLike[str] | None,
    wants_options: bool,
) -> MeasuredJoin:
    """Measure time and memory of every stage of a join; call it inside `measuring`.

    `parts` are those that `parts_of` found; `repeats` and `cache` are as for `chainstay.measure`.

    Raises:
        UnsupportedModelError: A stage or the loss fails; the text names it.
    """
    path = None if cache is None else path_in(cache, _signature_of(join, parts))
    account = None
    if path is not None:
        parsed = partial(account_from, lengths=[len(part.stages) for part in parts])
        account = read_sealed(path, KIND, VERSION, parsed)
    if account is not None:
        options = options_on_file(account, parts) if wants_options else {}
        if options is not None:
            account = account if wants_options else account.without_options()
            return _measured(staged(join, parts, effects_of(parts)), account, options)
    observed = [timed(observe_chain(part), part, repeats) for part in parts]
    branches, stages = len(join.branches), list(chain.from_iterable(observed))
    options, found = {}, []
    with _summing(stages):
        memories = _memories(join, parts, observed)
        traced = list(chain.from_iterable(memories))
        if wants_options:
            found = observe_options(stages, traced, parts, has_spans=False)
    lasting = lasting_bytes(stages, traced, Autocast.now(parts[0].device))
    accountant = JoinAccountant(
        [ObservedPart(*part) for part in zip(observed, memories, strict=True)],
        branches,
        parts[0].counted_bytes + lasting,
    )
    account = accountant.account()
    if wants_options:
        account, options = with_options(account, found, accountant.kept)
    if path is not None:
        write_sealed(path, KIND, VERSION, asdict(account))
    effects = tuple(observation.effects for observation in stages if not observation.stage.is_loss)
    return _measured(staged(join, parts, effects), account, options)


def _measured(stages: StagedJoin, account: JoinAccount, options: OptionTable) -> MeasuredJoin:
    own = replace(stages.chain, options=options)
    return MeasuredJoin(graph=stages.graph, chain=own, lengths=stages.lengths, account=account)


def _memories(
    join: GraphJoin, parts: Sequence[Subject], observed: Sequence[list[ObservedStage]]
) -> list[list[StageMemory]]:
    """Return the memory of all stages, part by part; the tail tells how gradients come in."""
    branches = len(join.branches)
    met: Sequence[Gradients | None] = (None,) * branches
    tails = []
    for own, part in zip(observed[branches:], parts[branches:], strict=True):
        returned = returned_tensors(own)
        tails.append(trace_chain(own, part, returned=returned))
        met = _slices(replace(tails[0][0].input_gradients, held=returned[0]), join.widths)
    memories = []
    for own, part, below in zip(observed[:branches], parts[:branches], met, strict=True):
        returned = returned_tensors(own, None if below is None else below.held)
        memories.append(trace_chain(own, part, below, returned=returned))
    return [*memories, *tails]


def _signature_of(join: GraphJoin, parts: Sequence[Subject]) -> str:
    """Return all that times and sizes of a join depend on, as text."""
    stages = [stage for part in parts for stage in part.stages]
    reads = [position for stage in stages for position in stage.effects.reads]
    number = {position: index for index, position in enumerate(dict.fromkeys(reads))}
    lines = [
        f"join of {[len(part.stages) for part in parts]} stages, {join.given}, {join.widths}",
        f"tensors {[number[position] for position in reads]}",
        *(signature_of(part, Autocast.now(part.device)) for part in parts),
    ]
    return "\n".join(lines)


@contextmanager
def _summing(stages: Sequence[ObservedStage]) -> Iterator[None]:
    """A gradient of what several stages use takes as much again, as when it is summed."""
    uses = Counter(id(leaf) for stage in stages for leaf in stage.leaves)
    shared = {id(leaf): leaf for stage in stages for leaf in stage.leaves if uses[id(leaf)] > 1}
    with ExitStack() as hooks:
        for leaf in shared.values():
            hooks.enter_context(leaf.register_hook(lambda gradient: gradient + 0))
        yield


def _slices(gradients: Gradients, widths: Sequence[int]) -> list[Gradients]:
    """Return the gradients of each branch's last state; what two branches share counts for both."""
    slices = []
    for start, end in pairwise(accumulate(widths, initial=0)):
        storages = gradients.storages[start:end]
        own = tuple(map(storages.index, storages))
        held = frozenset(index - start for index in gradients.held if start <= index < end)
        slices.append(Gradients(gradients.layouts[start:end], own, held=held))
    return slices
