"""The environment of a stage's forward, besides its input: saved, and put back.

A stage that is run again must see the random numbers, the shared values with their flags, and the
settings of autocast and of torch's kernels of its first run, and must leave the present ones alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Final

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.backend_settings import (
    BackendSettings,
    backend_settings,
    entered_settings,
)
from chainstay.runtime.devices.device import accelerator_at, device_at
from chainstay.runtime.devices.memory import allocated_bytes
from chainstay.runtime.execute.handles import is_parameter
from chainstay.runtime.execute.repeatable import REMEDY, OperatorLog, first_difference, is_repeated
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.states import (
    State,
    changeable,
    changed_in_place_error,
    copied,
    non_leaves,
    version_of,
)

RandomStates = tuple[tuple[torch.device, torch.Tensor], ...]
SharedRead = tuple[int, object, bool]
"""Position of a shared value, what tells whether it has changed, whether it requires a gradient."""
_AutocastSetting = tuple[str, bool, torch.dtype, bool]
"""Type of device, whether autocast is on there, its low precision, whether it has its cache."""

_NOTHING: Final = nullcontext()
_HOST: Final = torch.device("cpu")
_ALONE: Final = RLock()
"""Generators of random numbers belong to all threads, buffers and leaves to those of one model."""


def alone(effects: Effects) -> AbstractContextManager[object]:
    """Inside, no other thread runs a stage that draws random numbers or changes shared values.

    A run of such a stage and what is saved for its recomputation belong together; a thread
    between them would get the dropout of one step into the gradients of another. Nothing but
    the stage's own operators runs inside.
    """
    return _ALONE if effects.are_noticed else _NOTHING


def first_look(
    stage: ChainStage, state: State, shared: Sequence[Any], device: torch.device
) -> tuple[Effects, Environment, State]:
    """Run `stage` once: how it touches the world, what it ran in, and the next state.

    A stage that may draw random numbers, and draws none here, may do so in a later run: for other
    values, ``poisson`` does. This run shows from which devices' generators it draws.
    """
    effects = stage.effects
    environment = Environment.capture(stage, effects, shared, Settings.now(device), device)
    output = stage(incoming(stage, state), shared)
    after = random_states(device) if environment.random else ()
    pairs = zip(environment.random, after, strict=True)
    drawn = tuple(old for old, new in pairs if not torch.equal(old[1], new[1]))
    on_host = any(where is _HOST for where, _ in drawn) or not drawn
    effects = replace(effects, draws_on_host=on_host)
    environment.random = drawn or environment.random
    return effects, environment, output


def incoming(stage: ChainStage, state: State) -> State:
    """`state` to be given to `stage`: a copy, if the stage changes it."""
    return changeable(state, copied(state)) if stage.effects.changes_input else state


def in_mid_chain(stage: ChainStage, state: State) -> State:
    """`state` as a stage gets it behind others: no leaves, and a copy if the stage changes it."""
    return incoming(stage, state) if stage.effects.changes_input else non_leaves(state)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide which kernels a stage runs.

    Attributes:
        autocast: Settings of autocast, by kind of device.
        backends: Settings of torch's kernels.
    """

    autocast: tuple[_AutocastSetting, ...]
    backends: BackendSettings

    @classmethod
    def now(cls, device: torch.device) -> Settings:
        """Return the present ones, for the host and `device`."""
        kinds = ("cpu",) if device.type == "cpu" else ("cpu", device.type)
        return cls(tuple([_autocast_setting(kind) for kind in kinds]), backend_settings())


@dataclass(slots=True)
class Environment:
    """The surroundings of a stage's first run, to be entered again for each later run.

    Attributes:
        stage: The stage's name, for messages.
        random: States of the generators that it draws from.
        written: Copies of the shared values that it changes, by position.
        reads: Positions of those that it only reads, their versions, and whether they require a
            gradient.
        settings: The settings that it ran with.
        device: Where it ran.
    """

    stage: str
    random: RandomStates
    written: dict[int, torch.Tensor]
    reads: tuple[SharedRead, ...]
    settings: Settings
    device: torch.device

    @classmethod
    def capture(
        cls,
        stage: ChainStage,
        effects: Effects,
        shared: Sequence[Any],
        settings: Settings,
        device: torch.device,
    ) -> Environment:
        """Save what the stage is about to change, how what it reads is now, and the `settings`."""
        changed = tuple(shared[position] for position in effects.written)
        return cls(
            stage=stage.name,
            random=random_states(device, on_host=effects.draws_on_host)
            if effects.draws_random
            else (),
            written=dict(zip(effects.written, copied(changed), strict=True)),
            reads=tuple(
                [(p, _place_of(shared[p]), _has_gradient(shared[p])) for p in effects.only_read]
            ),
            settings=settings,
            device=device,
        )

    @classmethod
    def first_of(cls, several: Sequence[Environment]) -> Environment:
        """Return what stages that run one behind another are entered in, as one."""
        if len(several) == 1:
            return several[0]
        states = (state for environment in reversed(several) for state in environment.random)
        first = {state[0]: state for state in states}
        reads = tuple(read for environment in several for read in environment.reads)
        return replace(several[0], random=tuple(first.values()), reads=reads)

    def size_on(self, device: torch.device) -> int:
        """Return the bytes that this holds on `device`; random states are host memory."""
        tensors = [*(state for _, state in self.random), *self.written.values()]
        return sum(allocated_bytes(tensor) for tensor in tensors if tensor.device == device)

    def shared_for(
        self, shared: Sequence[Any], names: Sequence[str], *, for_last_time: bool
    ) -> Sequence[Any]:
        """Return the shared values as they were at the first run.

        The last time, the saved copies themselves are given away.

        Raises:
            PlanMismatchError: One that the stage only reads was changed since.
        """
        self.require_unchanged(shared, names)
        if not self.written:
            return shared
        values = tuple(self.written.values())
        given = values if for_last_time else copied(values)
        present: list[Any] = list(shared)
        for position, value in zip(self.written, given, strict=True):
            is_told_apart = is_parameter(shared[position])  # by hooks on what a stage saves
            present[position] = nn.Parameter(value, value.requires_grad) if is_told_apart else value
        if for_last_time:
            self.written = {}
        return present

    def require_unchanged(
        self, shared: Sequence[Any], names: Sequence[str], positions: Collection[int] | None = None
    ) -> None:
        """Refuse shared values that were changed since, of all that are only read or of some.

        Raises:
            PlanMismatchError: One was changed.
        """
        for position, place, _ in self.reads:
            is_needed = positions is None or position in positions
            if is_needed and _place_of(shared[position]) != place:
                raise changed_in_place_error(names[position], f"stage {self.stage}")

    def entered(self, shared: Sequence[Any]) -> AbstractContextManager[None]:
        """Run the body in these surroundings; afterwards the present ones are back.

        Leaves among the `shared` values require a gradient as they did. Plain training does not
        care whether a parameter is frozen behind the forward, or trained again: autograd's graph is
        there. What runs again saves the same only if its leaves are as they were.
        """
        if (level := _vmap_level()) > 0:
            return self._without_vmap(level, shared)
        contexts = [*self._entered_settings()]
        if leaves := self._other_leaves(shared):
            contexts.append(_inverted(leaves))
        if self.random:
            contexts.append(_entered_random(self.random))
        match contexts:
            case []:
                return _NOTHING
            case [context]:
                return context
        return _all_of(contexts)

    def _entered_settings(self) -> Iterator[AbstractContextManager[None]]:
        """Yield what enters the settings, as far as the present ones are others."""
        if (present := Settings.now(self.device)) == self.settings:
            return
        if present.backends != self.settings.backends:
            yield entered_settings(self.settings.backends)
        for setting, other in zip(self.settings.autocast, present.autocast, strict=True):
            if setting != other:
                kind, is_on, dtype, has_cache = setting
                yield torch.autocast(kind, dtype=dtype, enabled=is_on, cache_enabled=has_cache)

    def _other_leaves(self, shared: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Return the leaves that require a gradient and did not, or the other way round."""
        found: dict[int, torch.Tensor] = {}
        for position, _, had_gradient in self.reads:
            value = shared[position]
            if had_gradient is not _has_gradient(value) and value.is_leaf:
                found[id(value)] = value
        return list(found.values())

    @contextmanager
    def _without_vmap(self, level: int, shared: Sequence[Any]) -> Iterator[None]:
        """Leave the vmap in which backwards run, but no forward did: it draws no random numbers."""
        for _ in range(level):
            torch._C._vmapmode_decrement_nesting()  # noqa: SLF001  # no public way
        try:
            with self.entered(shared):
                yield
        finally:
            for _ in range(level):
                torch._C._vmapmode_increment_nesting()  # noqa: SLF001  # no public way


@contextmanager
def _all_of(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def _entered_random(states: RandomStates) -> Iterator[None]:
    """Inside, generators go on from `states`."""
    present = tuple([(where, _random_state(where)) for where, _ in states])
    restore_random_states(states)
    try:
        yield
    finally:
        restore_random_states(present)


@contextmanager
def _inverted(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, these require a gradient if they do not, and the other way round."""
    with _ALONE:
        _invert(leaves)
        try:
            yield
        finally:
            _invert(leaves)


def _invert(leaves: Sequence[torch.Tensor]) -> None:
    for leaf in leaves:
        leaf.requires_grad_(not leaf.requires_grad)


def _has_gradient(value: object) -> bool:
    return getattr(value, "requires_grad", False) is True


def _vmap_level() -> int:
    """Return how deep the backward is in the vmap of ``is_grads_batched``, which has no getter."""
    torch._C._vmapmode_increment_nesting()  # noqa: SLF001  # no public way
    return torch._C._vmapmode_decrement_nesting()  # noqa: SLF001  # no public way


def require_repeatable(
    stage: ChainStage,
    given: tuple[State, Sequence[Any]],
    output: State,
    environment: Environment,
    device: torch.device,
) -> None:
    """Run `stage` again as a plan would, where backwards run; it must give `output` once more.

    On an accelerator, backwards have a thread of their own, and libraries choose kernels for each
    thread. `environment` is that of the run that gave `output`.

    Raises:
        UnsupportedModelError: It gives something else.
    """
    state, shared = given
    names = ("an input",) * len(shared)

    def again() -> State:
        with torch.enable_grad(), environment.entered(shared):
            before = environment.shared_for(shared, names, for_last_time=False)
            return stage(incoming(stage, state), before)

    def logged() -> OperatorLog:
        log = OperatorLog()
        with log:
            again()
        return log

    in_backward = device_at(device).in_backward
    if not all(map(is_repeated, output, in_backward(again))):
        differing = first_difference(logged(), in_backward(logged))
        where = "" if differing is None else f" (first at the operator {differing[0]})"
        raise UnsupportedModelError(
            f"stage {stage.name} gives another output when it runs again on the same input{where}; "
            f"{REMEDY}"
        )


def _place_of(value: object) -> object:
    """Return a tensor's version and address, and a number as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    # Another memory means that ``tensor.data`` was assigned.
    address = value.data_ptr() if type(value) in _OWN_MEMORY and _has_address(value) else 0
    return version_of(value), address


_OWN_MEMORY: Final = (torch.Tensor, torch.nn.Parameter)
"""Other kinds may have none, or come and go."""


def _has_address(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(  # noqa: SLF001  # no public way
        tensor
    )


def random_states(device: torch.device, *, on_host: bool = True) -> RandomStates:
    """State of every default generator that a forward on `device` may draw from.

    Without `on_host`, that of the CPU is left out unless it is the only one.
    """
    host = () if accelerator_at(device) and not on_host else (_HOST,)
    others = (device,) if accelerator_at(device) else ()
    return tuple([(where, _random_state(where)) for where in (*host, *others)])


def _random_state(device: torch.device) -> torch.Tensor:
    accelerator = None if device is _HOST else accelerator_at(device)
    return torch.get_rng_state() if accelerator is None else accelerator.random_state()


def restore_random_states(states: RandomStates) -> None:
    """Put every generator back to its saved state."""
    for device, state in states:
        accelerator = None if device is _HOST else accelerator_at(device)
        if accelerator is None:
            torch.set_rng_state(state)
        else:
            accelerator.restore_random_state(state)


def _autocast_setting(kind: str) -> _AutocastSetting:
    """Autocast is thread-local and off inside backward, so it is saved and entered again."""
    return (
        kind,
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )
