"""The sample call of a model, recorded as a chain of its blocks.

The model's own Python is run on a shadow of the model, so that it leaves no trace. Every
module in it is watched. Of lists (ModuleList, Sequential, ModuleDict) that are mainly of one class
of modules these are taken, those inside others where most parameters are in them; where such lists
have less than half of its parameters, the list with most. Of these, the modules that have a full
graph each are stages; one that has none is expanded: the outermost modules inside that have one are
stages. A model in whose lists there are no two is expanded itself. Blocks form a segment as long as
each takes, by identity, what the one before returns; whatever else they take comes from in front of
the segment. Between segments lies what the model does itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.blocks.calls import (
    BlockCall,
    SeenTensor,
    TensorNumbers,
    called_modules,
    choose_calls,
    compiled_blocks,
    follows,
    present_checkpoint,
    record_calls,
    require_not_checkpointed,
)
from chainstay.runtime.capture.blocks.chain import BlockChain, BlockStage
from chainstay.runtime.capture.blocks.entrances import block_handler, entered, run_plainly
from chainstay.runtime.capture.blocks.graphs import BlockGraph, BlockGraphs, BlockRunner
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.cuts.stage_names import (
    container_of,
    listed_children,
    modules_around,
    outermost,
)
from chainstay.runtime.capture.dynamo import NothingToPlanError, wants_gradients
from chainstay.runtime.capture.graph import NoStagesError
from chainstay.runtime.capture.output_leaves import output_leaves
from chainstay.runtime.capture.tracing import NoFullGraphError
from chainstay.runtime.capture.trials.compiled_calls import require_uncompiled_inside
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.execute.environment import RandomStates, random_states
from chainstay.runtime.execute.handles import dropping
from chainstay.runtime.stage.states import State, detached, version_of


@dataclass(frozen=True, slots=True, eq=False)
class BlockSample:
    """The inputs and results of a chain's blocks in the sample call, with states on the CPU.

    Attributes:
        states: Input of every stage.
        results: Output of every stage.
        passed: By stage, the position in its state of every tensor it returned that is there.
        shared: Values that all stages may read.
        counted: Tensors of that whose memory counts.
        random: By stage, what it leaves of torch's generators: the model may draw by them, too.
        autocasts: The settings of autocast that they ran under; the model may enter it itself.
    """

    states: tuple[State, ...]
    results: tuple[State, ...]
    passed: tuple[Mapping[int, int], ...]
    shared: tuple[Any, ...]
    counted: tuple[torch.Tensor, ...]
    random: tuple[RandomStates, ...]
    autocasts: frozenset[Autocast | None]


def sample_blocks(
    host: Host,
    graphs: BlockGraphs,
    *,
    may_expand: bool,
    unfit: Mapping[str, str],
    held: frozenset[int] = frozenset(),
) -> tuple[BlockChain, BlockSample]:
    """Find the blocks of a model that can be run as stages, and what they pass on.

    The model runs a few times.

    Args:
        host: Runs the model's own Python.
        graphs: The graphs of its blocks.
        may_expand: Whether modules inside of those that have no graph are taken.
        unfit: Modules that are not to be stages, with reasons.
        held: Stages whose input the model holds itself; segments begin at these, too.

    Raises:
        NothingToPlanError: Nothing that the model returns has a gradient.
        UnsupportedModelError: There are no two blocks that can be run as stages.
    """
    lists = {container_of(path) for path, _ in listed_children(host.model)}
    unreached, unfit = frozenset(unfit), dict(unfit)
    expanded: set[str] = set()
    paths: list[str] = []
    trained: list[bool] = []
    with host.fresh() as (model, run), dropping():
        recorded = record_calls(
            model, lambda: trained.append(wants_gradients(output_leaves(run())))
        )
    while True:
        chosen = choose_calls(recorded, lists, unfit, expanded)
        if len(chosen) < 2 and may_expand and expanded | unreached == unfit.keys():
            chosen = choose_calls(recorded, lists, unfit, expanded | {""})
        if len(chosen) < 2:
            if not any(trained):
                raise NothingToPlanError
            listed = [call for call in recorded if container_of(call.name) in lists]
            raise UnsupportedModelError(_no_chain(host.model, listed, unfit))
        known, before = graphs.count, paths
        paths = [call.name for call in chosen]
        sampler = _sampled(host, graphs, paths)
        if not sampler.unfit and (graphs.count == known or paths == before):
            chain, sample = sampler.assembled(type(host.model).__name__, held)
            reasons = _reasons({name: reason for name, reason in unfit.items() if name in expanded})
            uncalled = _uncalled(host, recorded, sampler.names.values())
            return replace(chain, uncalled=uncalled, expanded=tuple(reasons)), sample
        # After new graphs once more: blocks may go by those of later ones from then on.
        unfit.update(sampler.unfit)
        expanded.update(sampler.unfit.keys() - sampler.closed if may_expand else ())


def _sampled(host: Host, graphs: BlockGraphs, paths: Collection[str]) -> _Sampler:
    """Return what these modules get and give in the sample call, and which cannot be stages."""
    with host.fresh() as (model, run), dropping():
        names = {model.get_submodule(path): path for path in paths}
        written = host.written_of(model)
        sampler = _Sampler(graphs, names, sharded=host.is_sharded, written=written)
        with entered(names), block_handler.set_to(sampler.called):
            try:
                run()
            except Exception:
                # An unfit block may have run twice, and added to a cache of the model twice.
                if not sampler.unfit:
                    raise
        sampler.unfit.update(sampler.written_later())
    return sampler


def _no_chain(model: nn.Module, listed: Sequence[BlockCall], unfit: Mapping[str, str]) -> str:
    """Return why a model has no two blocks that can be stages; `listed` are calls in its lists."""
    failure = f"no blocks of {type(model).__name__} form a chain"
    if listed and not any(made.requires_grad for call in listed for made in call.outputs):
        return (
            f"{failure}: none of them has a gradient in this call, so they save nothing; train "
            "such a model without a plan (chainstay.unfit)"
        )
    told = "; ".join(map(": ".join, _reasons({**compiled_blocks(model), **unfit})))
    return (
        f"{failure}: it calls no two modules that can run again{told and f': {told}'}; make "
        "modules of the layers that its forward calls one after another"
    )


def _reasons(unfit: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield why blocks cannot be stages: each reason once, behind the blocks that it is for."""
    blocks: dict[str, list[str]] = {}
    for name, reason in unfit.items():
        blocks.setdefault(reason, []).append(name)
    for reason, names in blocks.items():
        first, *others = outermost(names)
        yield f"{first} and {len(others)} more" if others else first, reason


def _uncalled(host: Host, recorded: Iterable[BlockCall], taken: Collection[str]) -> tuple[str, ...]:
    """Return the outermost modules of which nothing was called and that are in no stage."""
    if host.is_sharded:  # no plan takes other blocks in
        return ()
    called = {path for call in recorded for path in (call.name, *modules_around(call.name))}
    stages = set(taken)
    paths = [path for path in called_modules(host.model).values() if path not in called]
    return tuple(path for path in outermost(paths) if stages.isdisjoint(modules_around(path)))


@contextmanager
def blocks_run_by(
    model: nn.Module, chain: BlockChain, graphs: BlockGraphs, runner: BlockRunner
) -> Iterator[None]:
    """Inside, a chain's blocks are run by `runner`; without gradients, by themselves."""

    def handler(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return graphs.call(block, (args, kwargs), runner)

    names = dict.fromkeys(stage.name for stage in chain.stages)
    with entered(map(model.get_submodule, names)), block_handler.set_to(handler):
        yield


@dataclass(slots=True, kw_only=True)
class _SampledCall:
    """One call of a block."""

    call: BlockCall
    graph: BlockGraph
    state: State
    result: State
    given: State  # its state itself
    shared: tuple[Any, ...]
    aside: tuple[torch.Tensor, ...]
    random: RandomStates

    @property
    def is_input_changed(self) -> bool:
        """Whether somebody has changed its state since."""
        then = [tensor.version for tensor in self.call.inputs]
        return list(map(version_of, self.given)) != then


@dataclass(slots=True)
class _Sampler:
    """Runs blocks by their graphs, and keeps what they get and give."""

    graphs: BlockGraphs
    names: Mapping[nn.Module, str]
    sharded: bool
    written: frozenset[nn.Parameter]  # parameters that the model changes
    around: object = field(default_factory=present_checkpoint)  # the checkpoint around the model
    unfit: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)  # of `unfit`: their inner modules are not tried
    pieces: list[_SampledCall] = field(default_factory=list)
    numbers: TensorNumbers = field(default_factory=TensorNumbers)
    autocasts: set[Autocast | None] = field(default_factory=set)
    read: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def called(self, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a block by its graph if it can be a stage, or else plainly; a `BlockHandler`."""
        name = self.names.get(block)
        if name is not None and name not in self.unfit:
            runner = partial(self._run, block)
            try:
                require_not_checkpointed(self.around)
                require_uncompiled_inside(block)
                return self.graphs.call(block, (args, kwargs), runner, checked=not self.sharded)
            except UnsupportedModelError as refusal:
                self.unfit[name] = str(refusal)
                if not isinstance(refusal, NoFullGraphError | NoStagesError):
                    self.closed.add(name)
        return run_plainly(block, args, kwargs)

    def _run(self, block: nn.Module, graph: BlockGraph, inputs: tuple[Any, ...]) -> Sequence[Any]:
        self.autocasts.add(Autocast.now(self.graphs.device))
        chain = graph.chain
        state, shared = chain.begin(inputs)
        elsewhere = {tensor.device for tensor in state if tensor.dim()} - {self.graphs.device}
        if elsewhere:
            raise UnsupportedModelError(
                f"it is given a tensor on {elsewhere.pop()}, and the model is on "
                f"{self.graphs.device}; move that to the model's device before"
            )
        taken = tuple(map(self.numbers.seen, state))
        given = detached(state)
        on_the_host = _on_the_host(state)
        (stage,) = chain.stages
        result = stage(state, shared)
        made = tuple(map(self.numbers.seen, result))
        name = self.names[block]
        read = self.written.intersection(block.parameters()) if self.written else ()
        self.read += [(name, parameter, parameter.detach().clone()) for parameter in read]
        self.pieces.append(
            _SampledCall(
                call=BlockCall(name, block, taken, made),
                graph=graph,
                state=on_the_host,
                result=_on_the_host(result),
                given=given,
                shared=graph.retained(shared),
                aside=chain.counted(shared),
                random=random_states(self.graphs.device),
            )
        )
        return chain.finish(result, shared)

    def written_later(self) -> dict[str, str]:
        """Return why blocks cannot run again whose parameters the model has changed since.

        By way of ``.data`` no version tells that.
        """
        reason = (
            "the model changes its weights after it has run, and it would run again with others; "
            "change them before it runs, or after the step"
        )
        return {name: reason for name, now, then in self.read if not torch.equal(now, then)}

    def assembled(self, name: str, held: frozenset[int]) -> tuple[BlockChain, BlockSample]:
        """Return the chain, and what its blocks got and gave, once the model has run."""
        pieces = self.pieces
        if len(pieces) < 2:
            raise UnsupportedModelError(
                f"{name} calls fewer than two of its blocks with gradients: nothing can be planned"
            )
        calls = [piece.call for piece in pieces]
        starts = [0]
        for index in range(1, len(calls)):
            if index in held or not follows(calls[starts[-1] : index], calls[index]):
                starts.append(index)
        ends = pairwise([*starts, len(calls)])
        states = [pair for start, end in ends for pair in pairwise(_states(calls[start:end]))]
        firsts = accumulate((len(piece.shared) for piece in pieces), initial=0)
        values: dict[SeenTensor, torch.Tensor] = {}
        for piece in pieces:
            values.update(zip(piece.call.taken, piece.state, strict=False))
            values.update(zip(piece.call.outputs, piece.result, strict=True))
        stages = tuple(
            BlockStage(
                name=piece.call.name,
                block=piece.call.block if self.sharded else None,
                graph=piece.graph,
                first_shared=first,
                taken=tuple(map(before.index, piece.call.taken)),
                carried=tuple(map(before.index, after[len(piece.call.outputs) :])),
                is_input_changed=piece.is_input_changed,
            )
            for piece, first, (before, after) in zip(pieces, firsts, states, strict=False)
        )
        chain = BlockChain(
            name=name,
            stages=stages,
            starts=tuple(starts),
            boundaries=(*(before for before, _ in states), states[-1][1]),
        )
        sample = BlockSample(
            states=tuple(tuple(values[tensor] for tensor in before) for before, _ in states),
            results=tuple(tuple(values[tensor] for tensor in after) for _, after in states),
            passed=tuple(
                {
                    n: before.index(made)
                    for n, made in enumerate(piece.call.outputs)
                    if made in piece.call.taken and not stage.is_input_changed
                }
                for piece, stage, (before, _) in zip(pieces, stages, states, strict=True)
            ),
            shared=tuple(value for piece in pieces for value in piece.shared),
            counted=tuple({id(t): t for piece in pieces for t in piece.aside}.values()),
            random=tuple(piece.random for piece in pieces),
            autocasts=frozenset(self.autocasts),
        )
        return chain, sample


def _states(calls: Sequence[BlockCall]) -> list[tuple[SeenTensor, ...]]:
    """Return the state in front of each call of a segment, and the one behind the last."""
    states = [tuple(dict.fromkeys(calls[0].taken))]
    for index, call in enumerate(calls):
        later = {tensor for other in calls[index + 1 :] for tensor in other.taken}
        carried = (t for t in states[-1] if t in later and t not in call.outputs)
        states.append((*call.outputs, *dict.fromkeys(carried)))
    return states


def _on_the_host(state: State) -> State:
    """Return a state without its graph, and off a device that may be short of memory."""
    return tuple(tensor.detach().to("cpu").requires_grad_(tensor.requires_grad) for tensor in state)
