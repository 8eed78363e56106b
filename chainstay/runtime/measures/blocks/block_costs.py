"""Measures a model's blocks, with what the model does around them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.blocks.sample import blocks_run_by, sample_blocks
from chainstay.runtime.capture.trials.compiled_calls import compiler_of
from chainstay.runtime.capture.trials.isolation import StandIns
from chainstay.runtime.capture.trials.world import RandomNumbers
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.sharding import gathered, runs_alone
from chainstay.runtime.execute.block_executor import BlockSchedule
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.blocks.block_account import BlockAccountant
from chainstay.runtime.measures.cost_files import (
    AccountFile,
    path_in,
    signature_around,
    signature_of,
)
from chainstay.runtime.measures.costs import (
    ObservedStage,
    Subject,
    observe_chain,
    timed,
    trace_chain,
)
from chainstay.runtime.measures.measured import (
    Measurement,
    effects_of,
    found_on_file,
    measuring,
    with_options_of,
)
from chainstay.runtime.measures.option_costs import (
    ChosenOption,
    observe_options,
    options_again,
    restored_options,
)
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.progress import Progress, progress_bar, unseen
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.idle_cuts import freed_bytes
from chainstay.runtime.stage.loss_stage import Loss, traced_loss
from chainstay.runtime.stage.states import copied


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBlocks(Measurement):
    """A model's blocks and what a step with them costs."""

    blocks: BlockChain


_MOST_TRIES: Final = 6
"""How often a call is tried with other random numbers, which may let it run more blocks."""


def find_blocks(
    host: Host, graphs: BlockGraphs, unreached: Sequence[str] = (), *, may_vary: bool = False
) -> Around:
    """Find the blocks of a model.

    Their inputs and outputs are held from then on, on the CPU.

    Args:
        host: Runs the model's own Python.
        graphs: The graphs of its blocks.
        unreached: Paths of modules that no gradient of the loss reaches, besides those that none
            reaches from the model's output.
        may_vary: Whether a call that leaves modules out is tried with other random numbers: where
            layers are left out at random (LayerDrop), a plan is for as many as possible.

    Raises:
        UnsupportedModelError: There are no blocks, or they cannot be run as stages.
    """
    around = _blocks_of(host, graphs, unreached)
    for seed in range(_MOST_TRIES if may_vary and not host.is_sharded else 0):
        if not around.chain.uncalled:
            break
        other = Host(host.call, host.device)
        other.random = RandomNumbers.seeded(seed, host.device)
        try:
            found = _blocks_of(other, graphs, unreached)
        except UnsupportedModelError:  # too few of them
            continue
        if seed and found.chain.uncalled == around.chain.uncalled:
            break  # they are never called
        if len(found.chain.stages) > len(around.chain.stages):
            around = found
    return around


def _blocks_of(host: Host, graphs: BlockGraphs, unreached: Sequence[str]) -> Around:
    """Find the blocks that a model runs by the random numbers that `host` has."""
    device_at(host.device)  # refuses what counts no bytes
    # What is in a sharded module is whole only while that runs; in a compiled one nobody sees it.
    may_expand = not host.is_sharded and not any(map(compiler_of, host.model.modules()))
    reason = "no gradient reaches it"
    unfit = dict.fromkeys(unreached, reason)
    with measuring(host.device):
        while True:
            chain, sample = sample_blocks(host, graphs, may_expand=may_expand, unfit=unfit)
            around = Around(host, graphs, chain, sample, None, host.device)
            trip = around.step()
            missed = around.unreached(trip)
            if not missed:
                break
            unfit |= dict.fromkeys(missed, reason)
        held = frozenset(trip.held) - {*chain.starts}
        if held:
            chain, sample = sample_blocks(
                host, graphs, may_expand=may_expand, unfit=unfit, held=held
            )
            around = replace(around, chain=chain, sample=sample, leaves=())
    return around


def peak_around(around: Around) -> int:
    """Return the most bytes that a step takes outside of its blocks."""
    with measuring(around.device):
        return around.peak_bytes()


def with_loss(around: Around, loss: Loss) -> Around:
    """Return the same with a loss behind the model: a function from its output to a scalar.

    Raises:
        UnsupportedModelError: The loss cannot be traced on the model's output.
    """
    trip = around.trip()
    with (
        measuring(around.device),
        around.host.fresh() as (model, run),
        blocks_run_by(model, around.chain, around.graphs, trip.run),
    ):
        return replace(around, loss=traced_loss(loss, run()), leaves=())


def measure_blocks(
    around: Around,
    *,
    repeats: int,
    progress: bool,
    cache: str | os.PathLike[str] | None,
    wants_options: Callable[[MeasuredBlocks], bool] = lambda _: False,
) -> MeasuredBlocks:
    """Measure time and memory of a step with the blocks of a model.

    Args:
        around: The model around its blocks; see `find_blocks` and `with_loss`.
        repeats: Timed runs of each stage, and of what is around them.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured; of several processes, all find a file there
            or all measure. Compiled blocks are always measured: no signature has all settings of
            torch.compile that decide what they save.
        wants_options: Whether to look for options of blocks, told what is known without them;
            not asked where parameters are spread over processes, or where the model's forward
            enters autocast around some blocks, all of which are measured outside of it.

    Raises:
        UnreachedBlocksError: No gradient of the loss reaches some block.
        UnsupportedModelError: The backward does not go through the blocks in turn.
    """
    device, model = around.device, around.host.model
    with progress_bar(wanted=progress) as bar, measuring(device), runs_alone.set_to(value=True):
        stages = around.chain.chain_stages
        autocast = _autocast_inside(around)
        inside = partial(Autocast.entered, autocast, device)
        subjects = partial(_subjects, stages, around, bar)
        file = None
        if cache is not None and not any(s.graph.is_compiled for s in around.chain.stages):
            file = _file_of(subjects(), around, autocast, cache)
        account = None if file is None else file.read()
        chain = partial(Chain, stages=stages, device=device, names=around.chain.shared_names)
        with inside():
            freed = tuple(
                size for s in subjects() for size in freed_bytes(s.model_stages, s.source, s.shared)
            )
        blocks = partial(MeasuredBlocks, blocks=around.chain, freed_bytes=freed)

        def wanted(measured: MeasuredBlocks) -> bool:
            has_none = around.host.is_sharded or len(around.sample.autocasts) > 1
            return not has_none and wants_options(measured)

        if all(gathered(model, account is not None)) and account is not None:
            with inside():
                seen = blocks(account=account, chain=chain(effects=effects_of(subjects())))
                known = found_on_file(seen, subjects(), wanted)
            if known is not None:
                return known
        observed: list[ObservedStage] = []
        memories: list[StageMemory] = []
        given = around.given()
        with inside():
            for subject in subjects():
                found = timed(observe_chain(subject), subject, repeats)
                observed += found
                memories += trace_chain(found, subject, given[len(observed) - 1])
        bar("running what is around the blocks", steps=0, more=1)
        outside = around.measured([memory.input_gradients for memory in memories], repeats)
        bar("running what is around the blocks")
        accountant = BlockAccountant(around, observed, memories, outside, autocast)
        effects = tuple(observation.effects for observation in observed)
        measured = blocks(account=accountant.account(), chain=chain(effects=effects))
        if wanted(measured):
            with inside():
                options = observe_options(observed, memories, subjects())
            measured = with_options_of(measured, options, accountant.kept)
        if file is not None:
            file.write(measured.account)
    return measured


def unmeasured_blocks(around: Around, wanted: Mapping[tuple[int, int], ChosenOption]) -> Chain:
    """Return the blocks as stages, with the options that are wanted, tested.

    Raises:
        PlanMismatchError: As `restored_options`.
    """
    device = around.device
    with measuring(device), Autocast.entered(_autocast_inside(around), device):
        stages = around.chain.chain_stages
        subjects = partial(_subjects, stages, around, unseen)
        return Chain(
            stages=stages,
            device=device,
            names=around.chain.shared_names,
            effects=effects_of(subjects()),
            options=restored_options(subjects(), wanted, is_checked=True),
        )


def blocks_again(around: Around, known: BlockSchedule) -> BlockSchedule | None:
    """Return a known schedule for blocks that differ in numbers.

    ``None`` if options of it are no longer what they were; see `StagedGraph.with_graph`.
    """
    blocks, former = around.chain, known.chain
    if known.is_for(blocks, around.sample.shared):
        return known  # what differs is exchanged in every run
    stages = blocks.chain_stages
    subjects = partial(_subjects, stages, around, unseen)
    inside = Autocast.entered(_autocast_inside(around), around.device)
    with measuring(around.device), inside:
        options = options_again(former.options, stages, subjects)
    if options is None:
        return None
    same = (
        one.graph is other.graph
        for one, other in zip(blocks.stages, known.blocks.stages, strict=True)
    )
    chain = Chain(
        stages=stages,
        device=former.device,
        names=blocks.shared_names,
        effects=tuple(
            seen if is_same else stage.effects
            for is_same, seen, stage in zip(same, former.effects, stages, strict=True)
        ),
        options=options,
    )
    again = replace(known, blocks=blocks, chain=chain)
    return again if again.is_for(blocks, around.sample.shared) else None


def _autocast_inside(around: Around) -> Autocast | None:
    """Return the settings of autocast that blocks run under; the caller's, if these differ."""
    found = around.sample.autocasts
    return next(iter(found)) if len(found) == 1 else Autocast.now(around.device)


def _subjects(
    stages: Sequence[ChainStage], around: Around, progress: Progress
) -> Iterator[Subject]:
    """One per segment, with a copy of its input on the device."""
    sample = around.sample
    written = {position for stage in stages for position in stage.effects.written}
    shared = StandIns({id(sample.shared[position]) for position in written}).of_all(sample.shared)
    for segment in around.chain.segments():
        state = sample.states[segment.start]
        yield Subject(
            stages=tuple(stages[segment.start : segment.stop]),
            source=copied(state, (around.device,) * len(state)),
            shared=shared,
            counted=sample.counted,
            device=around.device,
            progress=progress,
            hands_out=True,
        )


def _file_of(
    subjects: Iterator[Subject],
    around: Around,
    autocast: Autocast | None,
    cache: str | os.PathLike[str],
) -> AccountFile:
    """Return the file for the account, whether or not it exists."""
    call, loss = around.host.call, "no loss" if around.loss is None else around.loss.text
    signatures = [
        signature_around(call.model, (call.args, call.kwargs), loss),
        *(signature_of(subject, autocast) for subject in subjects),
    ]
    names = tuple(stage.name for stage in around.chain.stages)
    return AccountFile(path_in(cache, "\n".join(signatures)), names)
