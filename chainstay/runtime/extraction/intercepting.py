"""The repeated blocks of a model as a chain, for models that cannot be exported.

The model runs once, and every module in a list of modules (ModuleList, Sequential,
ModuleDict) is watched. Lists of one class of modules are taken, those inside others where
most parameters are in them; where there is none, the list with most parameters. Blocks form
a segment as long as each takes, by identity, what the one before returns; whatever else they
take comes from in front of the segment. Between segments lies what the model does itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.binding import version_of
from chainstay.runtime.environment import RandomStates, random_states
from chainstay.runtime.extraction.blocks import BlockStage, InterceptedChain
from chainstay.runtime.extraction.calls import device_of, require_module_and_tuple
from chainstay.runtime.extraction.choosing import choose_calls, follows
from chainstay.runtime.extraction.driving import OnCall, drive
from chainstay.runtime.extraction.recording import BlockCall, SeenTensor, record_calls
from chainstay.runtime.extraction.templates import SharedSlot, StateSlot, Template
from chainstay.runtime.extraction.trying import trying
from chainstay.runtime.generators import OtherGenerators
from chainstay.runtime.probe import dropping
from chainstay.runtime.sharding import is_sharded
from chainstay.runtime.states import State, detached

__all__ = ["BlockSample", "intercept", "intercept_sampled"]

_LOOKS: Final = 6
"""Runs of a model that draws random numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockSample:
    """What a chain's blocks got and gave in the sample call; on the CPU if that is elsewhere.

    Attributes:
        states: Input of every stage.
        results: What every stage gave as next state.
        passed: By stage, the position in its state of every tensor it returned that is there.
        shared: By the first stage of a segment, what the segment shares.
    """

    states: tuple[State, ...]
    results: tuple[State, ...]
    passed: tuple[Mapping[int, int], ...]
    shared: Mapping[int, State]


def intercept(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
) -> InterceptedChain:
    """Find the blocks of `model` that can be run as stages, and what they pass on.

    The model runs a few times on the sample, its hooks included, and is left as it was.

    Args:
        model: Any module with lists of blocks that are called one after another.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.

    Raises:
        UnsupportedModelError: There are no two blocks that can be run as stages.

    Example:
        >>> import torch
        >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        >>> [stage.name for stage in intercept(model, (torch.zeros(2, 8),)).stages]
        ['0', '1', '2']
    """
    return intercept_sampled(model, sample_args, dict(sample_kwargs or {}))[0]


def intercept_sampled(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    held: frozenset[int] = frozenset(),
) -> tuple[InterceptedChain, BlockSample]:
    """As `intercept`; with what the blocks got and gave.

    Args:
        model: As there.
        args: As there.
        kwargs: As there.
        held: Stages whose input the model holds itself: segments begin there, too.
    """
    require_module_and_tuple(model, args)
    device = device_of(model, args, kwargs)
    with trying(model, device), dropping():
        calls = choose_calls(record_calls(model, args, kwargs))
    if len(calls) < 2:
        raise UnsupportedModelError(
            f"no blocks of {type(model).__name__} form a chain: none of its lists of modules has "
            "two that can run again (with nothing but tensors passed on, and nothing but "
            "those changed in place); put its blocks into a ModuleList, or pass a list of stages"
        )
    chain = _assembled(model, calls, held)
    if not held:
        _refuse_chance(chain, args, kwargs, device)
    with trying(model, device), dropping():
        return _sampled(chain, args, kwargs)


def _refuse_chance(
    chain: InterceptedChain, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> None:
    """Refuse a model whose random numbers decide which blocks it calls (layer drop).

    Some runs show that: any block that is left out in any of them is noticed.
    """
    model = chain.model
    if is_sharded(model):
        return  # other processes would not look as often

    def as_it_is(index: int, call: OnCall, state: State, _shared: State) -> tuple[object, State]:
        result = call()
        return result, chain.stages[index].next_state(result, state)

    with trying(model, device), dropping():
        before = random_states(device), OtherGenerators.now()
        for _ in range(_LOOKS):
            try:
                with drive(chain.stages, chain.starts, as_it_is):
                    model(*args, **kwargs)
            except PlanMismatchError as cause:
                raise UnsupportedModelError(
                    f"{type(model).__name__} calls other blocks when it draws other random numbers "
                    f"({cause}); a plan is for the same blocks in every step: switch off what "
                    "leaves layers out (layerdrop=0, say), or multiply by zero instead"
                ) from cause
            if not _has_drawn(before, device):
                return


def _has_drawn(before: tuple[RandomStates, OtherGenerators], device: torch.device) -> bool:
    states, others = before
    same = all(
        torch.equal(one, other)
        for (_, one), (_, other) in zip(states, random_states(device), strict=True)
    )
    return not same or others != OtherGenerators.now()


def _assembled(
    model: nn.Module, calls: Sequence[BlockCall], held: frozenset[int]
) -> InterceptedChain:
    starts = [0]
    for index in range(1, len(calls)):
        if index in held or not follows(calls[starts[-1] : index], calls[index]):
            starts.append(index)
    stages: list[BlockStage] = []
    boundaries: list[tuple[SeenTensor, ...]] = []
    for start, end in zip(starts, [*starts[1:], len(calls)], strict=True):
        states = _states(calls[start:end])
        stages += _segment(calls[start:end], states, is_sharded=is_sharded(model))
        boundaries += states[:-1]
    return InterceptedChain(
        model=model,
        stages=tuple(stages),
        starts=tuple(starts),
        boundaries=(*boundaries, states[-1]),
    )


def _states(calls: Sequence[BlockCall]) -> list[tuple[SeenTensor, ...]]:
    """The state in front of each call of a segment, and the one behind the last."""
    states = [calls[0].taken]
    for index, call in enumerate(calls):
        later = {each for other in calls[index + 1 :] for each in (*other.taken, *other.aside)}
        carried = (each for each in states[-1] if each in later)
        states.append(tuple(dict.fromkeys((*call.made, *carried))))
    return states


def _segment(
    calls: Sequence[BlockCall], states: Sequence[tuple[SeenTensor, ...]], *, is_sharded: bool
) -> Iterator[BlockStage]:
    shared: dict[SeenTensor, int] = {}
    for call, before, after in zip(calls, states[:-1], states[1:], strict=True):
        for each in call.aside:
            if each not in before:
                shared.setdefault(each, len(shared))
        behind = after[len(call.made) :]
        yield BlockStage(
            name=call.name,
            block=call.block,
            inputs=Template(tuple(_slots(call.inputs, before, shared)), call.input_spec),
            output=Template(tuple(_slots(call.outputs, call.made, {})), call.output_spec),
            carried=tuple(before.index(each) for each in behind),
            changes_input=call.changes_input,
            is_input_changed=call.changes_input,
            is_sharded=is_sharded,
        )


def _slots(
    leaves: Iterable[object], state: tuple[SeenTensor, ...], shared: Mapping[SeenTensor, int]
) -> Iterator[object]:
    for leaf in leaves:
        if not isinstance(leaf, SeenTensor):
            yield leaf
        elif leaf in state:
            yield StateSlot(state.index(leaf))
        else:
            yield SharedSlot(shared[leaf])


def _sampled(
    chain: InterceptedChain, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[InterceptedChain, BlockSample]:
    """Run the model again, now as the chain says, and keep what its blocks get and give."""
    states: list[State] = []
    results: list[State] = []
    passed: list[Mapping[int, int]] = []
    shared: dict[int, State] = {}
    held: list[tuple[State, tuple[int, ...]]] = []

    def keep(index: int, call: OnCall, state: State, aside: State) -> tuple[object, State]:
        held.append((detached(state), tuple(map(version_of, state))))
        states.append(_parked(state))
        result = call()
        after = chain.stages[index].next_state(result, state)
        results.append(_parked(after))
        is_changed = chain.stages[index].changes_input
        known = {} if is_changed else {id(each): n for n, each in enumerate(state)}
        passed.append({n: known[id(each)] for n, each in enumerate(after) if id(each) in known})
        shared[chain.segment_of(index)] = aside
        return result, after

    try:
        with drive(chain.stages, chain.starts, keep):
            chain.model(*args, **kwargs)
    except PlanMismatchError as cause:
        raise UnsupportedModelError(
            f"two runs of {type(chain.model).__name__} on the sample call its blocks differently: "
            f"{cause}"
        ) from cause
    stages = tuple(
        replace(stage, is_input_changed=tuple(map(version_of, state)) != versions)
        for stage, (state, versions) in zip(chain.stages, held, strict=True)
    )
    return replace(chain, stages=stages), BlockSample(
        tuple(states), tuple(results), tuple(passed), shared
    )


def _parked(state: State) -> State:
    """Without the graph, and off a device that may be short of memory."""
    return tuple(tensor.detach().to("cpu").requires_grad_(tensor.requires_grad) for tensor in state)
