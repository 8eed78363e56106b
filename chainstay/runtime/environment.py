"""What a stage's forward depends on besides its input and parameters, saved and put back.

A stage that is run again must see the random numbers, the buffers and the autocast
settings of its first run, and must leave the present ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Final

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.generators import OtherGenerators
from chainstay.runtime.memory import allocated_bytes
from chainstay.runtime.stages import ChainStage, put_at
from chainstay.runtime.states import State

__all__ = [
    "Environment",
    "Traits",
    "alone",
    "observe_traits",
    "random_states",
    "require_repeatable",
    "restore_random_states",
]

RandomStates = tuple[tuple[torch.device, torch.Tensor], ...]
AutocastSetting = tuple[str, bool, torch.dtype, bool]
"""Type of device, whether autocast is on there, its low precision, whether it has its cache."""

Buffer = tuple[nn.Module, str, torch.Tensor]
"""Where it is, and what is there."""

_NOTHING: Final = nullcontext()

_ALONE: Final = RLock()
"""Generators of random numbers belong to all threads, buffers to all that train a model."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How a stage's forward touches the world, as found when it was measured.

    Attributes:
        draws_random: Whether it draws random numbers.
        changed_buffers: Module and name of every buffer it changes.
        draws_elsewhere: Whether it draws random numbers that are not torch's.
        fills_what_it_saved: Whether an operator of its saves a tensor and then writes it.
    """

    draws_random: bool
    changed_buffers: tuple[tuple[nn.Module, str], ...]
    draws_elsewhere: bool = False
    fills_what_it_saved: bool = False

    @property
    def has_effects(self) -> bool:
        """Whether other threads may notice its run."""
        return self.draws_random or self.draws_elsewhere or bool(self.changed_buffers)


def alone(*traits: Traits) -> AbstractContextManager[object]:
    """Inside, no other thread runs a stage that draws random numbers or changes buffers.

    A run of such a stage and what is saved for its recomputation belong together; a thread
    between them would get the dropout of one step into the gradients of another.
    """
    for each in traits:
        if each.has_effects:
            return _ALONE
    return _NOTHING


def observe_traits(stage: ChainStage, state: State, shared: State, device: torch.device) -> Traits:
    """Run `stage` on `state` and see what it touches besides its output."""
    states, others = random_states(device), OtherGenerators.now()
    buffers = list(_buffers(stage))
    fills: list[bool] = []

    def run() -> None:
        fills.append(_fills_what_it_saved(stage(state, shared)))

    changed = _changed_by(stage, run, buffers)
    now = random_states(device)
    return Traits(
        draws_random=not all(
            torch.equal(old, new) for (_, old), (_, new) in zip(states, now, strict=True)
        ),
        changed_buffers=tuple(
            (module, name) for module, name, _ in buffers if (module, name) in changed
        ),
        draws_elsewhere=others != OtherGenerators.now(),
        fills_what_it_saved=any(fills),
    )


def _fills_what_it_saved(output: Iterable[object]) -> bool:
    """Whether the graph of `output` has operators whose noise is made only after it is saved."""
    tensors = (each for each in output if isinstance(each, torch.Tensor))  # a loss may be anything
    seen, pending = set(), [tensor.grad_fn for tensor in tensors]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith("RreluWithNoise"):
            return True
        seen.add(node)
        pending += [below for below, _ in node.next_functions]
    return False


def _changed_by(
    stage: ChainStage, run: Callable[[], None], buffers: list[Buffer]
) -> set[tuple[nn.Module, str]]:
    """Places of those of `buffers` that a run of `stage` changes.

    A running mean of zeros stays what it is where the sample is zeros, and BatchNorm tells no
    version counter; so what seems to stay is looked at a second time, with other values in it.
    """
    changed = _differing(buffers, run)
    constant = [
        (module, name, buffer)
        for module, name, buffer in buffers
        if (module, name) not in changed
        and name in module._buffers  # noqa: SLF001  # others may not be replaced
        and (buffer.is_floating_point() or buffer.is_complex())
    ]
    if stage.is_sharded:  # one more forward would gather its parameters; putting back is safe
        return changed | {(module, name) for module, name, _ in constant}
    if not constant:
        return changed
    others = {id(buffer): buffer.detach() * 1.5 + 0.25 for _, _, buffer in constant}
    swapped = [(module, name, others[id(buffer)]) for module, name, buffer in constant]
    try:
        for module, name, other in swapped:
            put_at((module, name), other)
        return changed | _differing(swapped, run)
    except Exception:  # noqa: BLE001  # a stage may refuse such values; putting back is never wrong
        return changed | {(module, name) for module, name, _ in constant}
    finally:
        for module, name, buffer in constant:
            put_at((module, name), buffer)


def _differing(buffers: list[Buffer], run: Callable[[], None]) -> set[tuple[nn.Module, str]]:
    """Places where `run` leaves something else than it finds."""
    before = [(module, name, buffer, buffer.clone()) for module, name, buffer in buffers]
    run()
    return {
        (module, name)
        for module, name, buffer, value in before
        if getattr(module, name) is not buffer or not torch.equal(buffer, value)
    }


@dataclass(slots=True)
class Environment:
    """The surroundings of a stage's first run, to be entered again for each later run."""

    random: RandomStates
    buffers: list[tuple[nn.Module, str, torch.Tensor]]
    autocast: tuple[AutocastSetting, ...]
    others: OtherGenerators | None = None

    @classmethod
    def capture(cls, traits: Traits, device: torch.device) -> Environment:
        """Save what a stage with `traits` is about to change."""
        return cls(
            random=random_states(device) if traits.draws_random else (),
            buffers=[
                (module, name, getattr(module, name).detach().clone())
                for module, name in traits.changed_buffers
            ],
            autocast=_autocast_settings(device),
            others=OtherGenerators.now() if traits.draws_elsewhere else None,
        )

    def size_on(self, device: torch.device) -> int:
        """Bytes that holding this costs on `device` (CUDA's random states are host memory)."""
        tensors = [state for _, state in self.random]
        tensors += [value for _, _, value in self.buffers]
        return sum(allocated_bytes(tensor) for tensor in tensors if tensor.device == device)

    def entered(self, *, for_last_time: bool) -> AbstractContextManager[None]:
        """Run the body in these surroundings; afterwards the present ones are back.

        Args:
            for_last_time: Give the saved buffers away instead of copying them once more.
        """
        differing = [each for each in self.autocast if each != _autocast_setting(each[0])]
        if not (differing or self.random or self.buffers or self.others):
            return _NOTHING
        return self._entered(differing, for_last_time=for_last_time)

    @contextmanager
    def _entered(self, autocast: list[AutocastSetting], *, for_last_time: bool) -> Iterator[None]:
        present = random_states_like(self.random)
        others = OtherGenerators.now() if self.others else None
        real = [((module, name), getattr(module, name)) for module, name, _ in self.buffers]
        try:
            restore_random_states(self.random)
            if self.others:
                self.others.restore()
            for module, name, value in self.buffers:
                put_at((module, name), value if for_last_time else value.clone())
            if for_last_time:
                self.buffers = []
            with ExitStack() as stack:
                for device_type, enabled, dtype, cached in autocast:
                    stack.enter_context(
                        torch.autocast(
                            device_type, dtype=dtype, enabled=enabled, cache_enabled=cached
                        )
                    )
                yield
        finally:
            for place, buffer in real:
                put_at(place, buffer)
            restore_random_states(present)
            if others:
                others.restore()


def require_repeatable(
    stage: ChainStage, given: tuple[State, State], output: State, environment: Environment
) -> None:
    """Run `stage` again as a plan would; it must give `output` once more.

    Args:
        stage: What to run.
        given: Its input, and what it shares with others.
        output: Of its run in `environment`.
        environment: Of that run; given away.

    Raises:
        UnsupportedModelError: It gives something else.
    """
    with environment.entered(for_last_time=True):
        again = stage(*given)
    if not all(map(_same_values, again, output)):
        raise UnsupportedModelError(
            f"stage {stage.name} gives another output when it runs again on the same input; "
            "draw random numbers from global generators only, keep no count of runs outside "
            "buffers, and on CUDA use torch.use_deterministic_algorithms(True)"
        )


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, or no number in the same places: no number but NaN differs from itself."""
    one, other = one.detach(), other.detach()
    return one.shape == other.shape and bool(
        ((one == other) | ((one != one) & (other != other))).all()  # noqa: PLR0124
    )


def random_states(device: torch.device) -> RandomStates:
    """State of every default generator that a forward on `device` may draw from."""
    states = [(torch.device("cpu"), torch.get_rng_state())]
    if device.type == "cuda":
        states.append((device, torch.cuda.get_rng_state(device)))
    return tuple(states)


def random_states_like(states: RandomStates) -> RandomStates:
    """The present states of the generators that `states` speaks about."""
    return random_states(states[-1][0]) if states else ()


def restore_random_states(states: RandomStates) -> None:
    """Put every generator back to its saved state."""
    for device, state in states:
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


def _buffers(stage: ChainStage) -> Iterator[Buffer]:
    """Everything that the stage reads from modules and that is no parameter."""
    for module, name, tensor in stage.tensors():
        if not isinstance(tensor, nn.Parameter):
            yield module, name, tensor


def _autocast_settings(device: torch.device) -> tuple[AutocastSetting, ...]:
    """Autocast is thread-local and off inside backward, so it is saved and entered again."""
    kinds = ("cpu",) if device.type == "cpu" else ("cpu", device.type)
    return tuple([_autocast_setting(kind) for kind in kinds])


def _autocast_setting(kind: str) -> AutocastSetting:
    return (
        kind,
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )
