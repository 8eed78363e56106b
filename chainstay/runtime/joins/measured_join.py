"""Measuring of a running join: each branch and the tail is taken as a chain of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain, pairwise

from chainstay.errors import PlanMismatchError
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.joins.account import JoinAccount
from chainstay.runtime.joins.cost_files import read_account, write_account
from chainstay.runtime.joins.costs import Seen, account_for_join
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.joins.staged_join import StagedJoin, staged
from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.measures.cost_files import path_in, signature_of
from chainstay.runtime.measures.costs import (
    ObservedStage,
    Subject,
    observe_chain,
    timed,
    trace_chain,
)
from chainstay.runtime.measures.measured import traits_of
from chainstay.runtime.measures.option_costs import (
    ObservedOption,
    chosen_options,
    observe_options,
    restored_options,
)
from chainstay.runtime.measures.shared_bytes import autocast_copies_bytes
from chainstay.runtime.options.table import OptionTable
from chainstay.runtime.stage.states import state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJoin(StagedJoin):
    """A join and what it costs.

    Attributes:
        account: What the stages cost, the loss included.
    """

    account: JoinAccount

    @classmethod
    def of(cls, stages: StagedJoin, account: JoinAccount, options: OptionTable) -> MeasuredJoin:
        """`stages`, what they cost, and their options."""
        known = {field.name: getattr(stages, field.name) for field in fields(stages)}
        return cls(account=account, **known | {"chain": replace(stages.chain, options=options)})


def measure_join(  # noqa: PLR0913  # what to measure, and how
    join: GraphJoin,
    parts: Sequence[Subject],
    names: tuple[str, ...],
    *,
    repeats: int,
    cache: str | os.PathLike[str] | None,
    wants_options: bool = False,
) -> MeasuredJoin:
    """Measure time and memory of every stage of a join; call it inside `measuring`.

    Args:
        join: See `cut_into_join`.
        parts: Its branches and its tail; see `parts_of`.
        names: What messages call the values that all stages may read.
        repeats: The least number of timed runs of each stage; see `chainstay.measure`.
        cache: A directory for what was measured, as for `chainstay.fit`.
        wants_options: Whether to look for options of stages.

    Raises:
        UnsupportedModelError: A stage or the loss fails; the text names it.
    """
    path = None if cache is None else path_in(cache, _signature_of(join, parts))
    lengths = [len(part.stages) for part in parts]
    account = None if path is None else read_account(path, lengths)
    if account is not None:
        known = _found_on_file(account, parts, wants_options=wants_options)
        if known is not None:
            own = staged(join, parts, traits_of(parts), names)
            return MeasuredJoin.of(own, *known)
    seen, found = _observed(join, parts, repeats, wants_options=wants_options)
    account = account_for_join(
        seen, len(join.branches), _common_bytes(seen, parts), has_options=wants_options
    )
    observed = (
        observation for own in seen for observation in own.observed if not observation.stage.is_loss
    )
    if path is not None:
        write_account(path, account)
    own = staged(join, parts, tuple(observation.traits for observation in observed), names)
    return MeasuredJoin.of(own, account, found)


def _found_on_file(
    account: JoinAccount, parts: Sequence[Subject], *, wants_options: bool
) -> tuple[JoinAccount, OptionTable] | None:
    """Return what a file knows, with options if they are wanted; ``None`` if it lacks these."""
    if not wants_options:
        return account.without_options(), {}
    if account.has_options:
        with suppress(PlanMismatchError):  # otherwise all is measured anew
            return account, restored_options(parts, chosen_options(account.costs))
    return None


def _observed(
    join: GraphJoin, parts: Sequence[Subject], repeats: int, *, wants_options: bool
) -> tuple[list[Seen], OptionTable]:
    """Time and memory of all stages, part by part, and their options."""
    branches = len(join.branches)
    observed = [timed(observe_chain(part), part, repeats) for part in parts]
    met: Sequence[Gradients | None] = (None,) * branches
    memories = []
    found: list[ObservedOption] = []
    with _summing(observed):
        for own, part in reversed(list(zip(observed[branches:], parts[branches:], strict=True))):
            memories.append(trace_chain(own, part))
            met = _slices(memories[0][0].input_gradients, join.widths)
        behind = zip(observed[:branches], parts[:branches], met, strict=True)
        memories = [*(trace_chain(own, part, below) for own, part, below in behind), *memories]
        if wants_options:
            found = observe_options(
                list(chain.from_iterable(observed)),
                list(chain.from_iterable(memories)),
                parts,
                has_spans=False,
            )
    of_stage: dict[int, list[ObservedOption]] = {}
    for option in found:
        of_stage.setdefault(option.first, []).append(option)
    seen, start = [], 0
    for own, some in zip(observed, memories, strict=True):
        options = {index: of_stage.get(start + index, []) for index in range(len(own))}
        seen.append(Seen(own, some, options))
        start += len(own)
    table = {
        (first, number): observation.option
        for first, options in of_stage.items()
        for number, observation in enumerate(options, 1)
    }
    return seen, table


def _common_bytes(seen: Sequence[Seen], parts: Sequence[Subject]) -> int:
    """Return the bytes that stand through the whole step, whatever the stages."""
    device, counted = parts[0].device, parts[0].counted
    leaves = [observation.leaves for own in seen for observation in own.observed]
    held = state_bytes(tensor for tensor in counted if tensor.device == device)
    return held + autocast_copies_bytes(leaves, Autocast.now(device))


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
def _summing(observed: Sequence[Sequence[ObservedStage]]) -> Iterator[None]:
    """A gradient of what several stages use takes as much again, as when it is summed."""
    stages = [stage for own in observed for stage in own]
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
        slices.append(Gradients(gradients.layouts[start:end], own))
    return slices
