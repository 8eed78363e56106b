"""Measuring a chain of stages: the same for every kind of model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.profiles import ChainProfile, OffloadProfile
from chainstay.runtime.accounting import Account
from chainstay.runtime.caching import AccountFile, signature_of
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import Subject, account_for, observe_chain, trace_chain
from chainstay.runtime.environment import Traits, observe_traits
from chainstay.runtime.fusing import blaming, run_stage
from chainstay.runtime.items import movable_chain
from chainstay.runtime.mode import Mode, Titled
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.states import detached
from chainstay.schedule import Schedule

__all__ = [
    "Measurement",
    "measure_subject",
    "measuring",
    "require_loss",
    "require_repeats",
    "traits_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A chain and what it costs.

    Attributes:
        chain: The stages, the loss excluded.
        account: Costs of ``len(chain.stages) + 1`` stages; the last one is the loss.
        traits: How each stage's forward touches the world, one per stage of the chain.
    """

    chain: Chain
    account: Account
    traits: tuple[Traits, ...]

    @property
    def profile(self) -> ChainProfile:
        """To be solved: no schedule needs more than it says."""
        return self.account.profile()

    @property
    def offload_profile(self) -> OffloadProfile:
        """For `chainstay.solve_offload`: nothing is run again.

        The input, which is the caller's, and what several states share stay on the device.
        """
        schedule = Schedule.keep_all(len(self.account.stages))
        return OffloadProfile.from_chain(movable_chain(self.account.profile_for(schedule)))

    @property
    def movable_profile(self) -> ChainProfile:
        """For `chainstay.solve_hybrid`: as `profile`, and what cannot be moved is in overheads."""
        return movable_chain(self.profile)

    def profile_for(self, schedule: Schedule) -> ChainProfile:
        """To solve for schedules like `schedule`: closer, but sound for no other schedule."""
        return self.account.profile_for(schedule)

    def overheads_for(self, schedule: Schedule) -> tuple[int, ...]:
        """To predict the peak of `schedule` with: what each operation needs by itself, in bytes.

        For `chainstay.simulate`, together with `profile`. The peak is then at most that by
        `profile_for`, which has one overhead for all forwards of a stage.
        """
        return self.account.overheads(schedule)


@contextmanager
def measuring(modules: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Run stages for real inside; `modules` and the world are afterwards as they were."""
    with undisturbed(modules, device), torch.enable_grad():
        if device.type != "cuda":
            yield
            return
        with torch.cuda.device(device):  # its current stream is timed
            yield


def measure_subject(
    subject: Subject,
    modules: tuple[Titled, ...],
    repeats: int,
    cache: str | os.PathLike[str] | None = None,
) -> Measurement:
    """Time and memory of every stage; call it inside `measuring`.

    Args:
        subject: What to measure.
        modules: Those whose mode matters.
        repeats: Timed runs of each stage.
        cache: A directory in which costs are looked up, and left for next time.

    Raises:
        UnsupportedModelError: A stage fails, or cannot be run again; the text names it.
    """
    mode = Mode.now(modules, subject.device)
    file = None
    if cache is not None:
        names = (stage.name for stage in subject.stages)
        file = AccountFile.of(signature_of(subject, mode), names, cache)
    account = None if file is None else file.read()
    if account is not None:
        traits = tuple(traits_of(subject))
    else:
        observed = observe_chain(subject, repeats)
        memories = trace_chain(observed, subject)
        account = account_for(observed, memories, subject, mode.autocast)
        traits = tuple(each.traits for each in observed if not each.stage.is_loss)
        if file is not None:
            file.write(account)
    chain = Chain(
        stages=tuple(stage for stage in subject.stages if not stage.is_loss),
        layouts=tuple(map(TensorLayout.of, subject.source)),
        device=subject.device,
        mode=mode,
        modules=modules,
    )
    return Measurement(
        chain=chain,
        account=account,
        traits=traits,
    )


def traits_of(subject: Subject) -> Iterator[Traits]:
    """Of every stage but the loss, in two runs of each."""
    source = subject.source
    for index, stage in enumerate(subject.stages):
        if not stage.is_loss:
            with blaming(stage, index, source):
                yield observe_traits(stage, source, subject.shared, subject.device)
            source = detached(run_stage(stage, index, source, subject.shared))


def require_repeats(repeats: object) -> None:
    """Refuse anything but a positive number of timed runs."""
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is {repeats!r}, must be a whole number, at least 1")


def require_loss(loss: object) -> None:
    """Refuse a loss that cannot be called.

    Raises:
        UnsupportedModelError: It is a class, or not callable.
    """
    if isinstance(loss, type):
        raise UnsupportedModelError(
            f"the loss is the class {loss.__name__}, must be a function or an instance; write "
            f"lambda output: {loss.__name__}()(output, targets)"
        )
    if loss is not None and not callable(loss):
        raise UnsupportedModelError(
            f"the loss is a {type(loss).__name__}, must be callable: from the model's output "
            "to one number"
        )
