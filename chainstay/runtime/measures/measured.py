"""Measuring a chain of stages: the same for every kind of model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from threading import RLock
from typing import Final, TypeVar

import torch

from chainstay.profiles import ChainProfile, OffloadProfile
from chainstay.runtime.capture.trials.world import random_numbers_kept
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.execute.environment import first_look
from chainstay.runtime.execute.items import movable_chain, movable_profile
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.cost_files import AccountFile, path_in, signature_of
from chainstay.runtime.measures.costs import (
    ChainAccountant,
    Subject,
    observe_chain,
    returned_tensors,
    timed,
    trace_chain,
)
from chainstay.runtime.measures.option_costs import (
    Kept,
    ObservedOption,
    observe_options,
    options_on_file,
    with_options,
)
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import Effects
from chainstay.runtime.stage.idle_cuts import FreedBytes, freed_bytes
from chainstay.runtime.stage.stage_errors import blaming
from chainstay.runtime.stage.states import detached
from chainstay.schedule import OpKind, Schedule

_M = TypeVar("_M", bound="Measurement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A chain and what it costs.

    Attributes:
        chain: The stages, the loss excluded.
        account: Costs of ``len(chain.stages) + 1`` stages; the last one is the loss.
        freed_bytes: By stage, the bytes of its input that are gone in plain training; empty where
            that is not known.
    """

    chain: Chain
    account: Account
    freed_bytes: tuple[FreedBytes, ...] = ()

    @property
    def profile(self) -> ChainProfile:
        """The profile to be solved: no schedule needs more than it says."""
        return self.account.profile()

    @property
    def plain_profile(self) -> ChainProfile:
        """The profile of plain training: closer, but sound for no other schedule."""
        return self.account.profile_for(Schedule.keep_all(len(self.account.stages)))

    @property
    def offload_profile(self) -> OffloadProfile:
        """The profile for `chainstay.solve_offload`: nothing is run again.

        The input, which is the caller's, and what several states share stay on the device.
        """
        return movable_profile(self.plain_profile)

    @property
    def movable_profile(self) -> ChainProfile:
        """The profile for `chainstay.solve_hybrid`; overheads include what cannot be moved.

        Its stages have those of their options that keep one stage.
        """
        return movable_chain(self.account.with_flat_options(self.account.profile()))

    def profile_for(self, schedule: Schedule) -> ChainProfile:
        """Return a profile for schedules like `schedule`: closer, but sound for no other."""
        return self.account.profile_for(schedule)

    def flat_profile_for(self, schedule: Schedule) -> ChainProfile:
        """Return the profile by which `schedule` is judged if it has transfers."""
        return self.account.flat_profile_for(schedule)

    def costs_of(self, schedule: Schedule) -> tuple[ChainProfile, tuple[int, ...]]:
        """Return the profile and the overheads of operations by which `schedule` is judged."""
        return self.profile_for(schedule), self.overheads_for(schedule)

    def overheads_for(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the bytes that each operation of `schedule` needs by itself, to predict the peak.

        For `chainstay.simulate`, together with `profile`. The peak is then at most that by
        `profile_for`, which has one overhead for all forwards of a stage. In plain training they
        are less, and may be below 0, by what is stored in the profile but read by no backward.
        """
        overheads = self.account.overheads(schedule)
        if not self.freed_bytes or schedule != Schedule.keep_all(len(self.account.stages)):
            return overheads
        own = (*self.freed_bytes, FreedBytes(0, 0))  # the loss frees nothing
        before_run = list(accumulate((freed.after_run for freed in own), initial=0))
        return tuple(
            overhead - before_run[op.stage + 1] - own[op.stage].before_backward
            if op.kind is OpKind.BACKWARD
            else overhead - before_run[op.stage]
            for op, overhead in zip(schedule, overheads, strict=True)
        )


MEASURING: Final = RLock()
"""Held while a call is planned or stages are measured: threads would disturb each other."""


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Run stages for real inside, on stand-ins; random states are afterwards as they were."""
    with MEASURING, random_numbers_kept(device), torch.enable_grad(), device_at(device).current():
        yield


def measure_subject(
    subject: Subject,
    names: tuple[str, ...],
    repeats: Callable[[Measurement], int],
    cache: str | os.PathLike[str] | None = None,
    *,
    wants_options: Callable[[Measurement], bool],
) -> Measurement:
    """Measure time and memory of every stage; call it inside `measuring`.

    `names` is what messages call the values that all stages may read. The runs of each stage that
    are timed, `repeats`, and whether to look for options, follow from what is known before. Costs
    are looked up in the directory `cache`, and left there for next time.

    Raises:
        UnsupportedModelError: A stage fails, or cannot be run again; the text names it.
    """
    chain = partial(Chain, stages=subject.model_stages, device=subject.device, names=names)
    autocast = Autocast.now(subject.device)
    file = None
    if cache is not None:
        titles = tuple(stage.name for stage in subject.stages)
        file = AccountFile(path_in(cache, signature_of(subject, autocast)), titles)
    account = None if file is None else file.read()
    freed = freed_bytes(subject.model_stages, subject.source, subject.shared)
    if account is not None:
        effects = effects_of([subject])
        known = Measurement(chain=chain(effects=effects), account=account, freed_bytes=freed)
        found = found_on_file(known, [subject], wants_options)
        if found is not None:
            return found
    observed = observe_chain(subject)
    memories = trace_chain(observed, subject, returned=returned_tensors(observed), is_whole=True)
    accountant = ChainAccountant.of(observed, memories, subject, autocast)
    without_times = Measurement(
        chain=chain(effects=tuple(seen.effects for seen in observed if not seen.stage.is_loss)),
        account=accountant.account(observed, memories),
        freed_bytes=freed,
    )
    observed = timed(observed, subject, repeats(without_times))
    measured = replace(without_times, account=accountant.account(observed, memories))
    if wants_options(measured):
        options = observe_options(observed, memories, [subject], is_whole=True)
        measured = with_options_of(measured, options, accountant.kept)
    if file is not None:
        file.write(measured.account)
    return measured


def found_on_file(
    known: _M, subjects: Iterable[Subject], wants_options: Callable[[_M], bool]
) -> _M | None:
    """Return what a file knows, with options if they are wanted; ``None`` if it lacks these."""
    plain = replace(known, account=known.account.without_options())
    if not wants_options(plain):
        return plain
    options = options_on_file(known.account, subjects)
    return None if options is None else replace(known, chain=replace(known.chain, options=options))


def with_options_of(measured: _M, found: Sequence[ObservedOption], kept: Kept) -> _M:
    """Return the same with the options that were found."""
    account, options = with_options(measured.account, found, kept)
    return replace(measured, account=account, chain=replace(measured.chain, options=options))


def effects_of(subjects: Iterable[Subject]) -> tuple[Effects, ...]:
    """Return the effects of every stage but the loss, seen in one run of each."""
    found = []
    for subject in subjects:
        source = subject.source
        for index, stage in enumerate(subject.model_stages):
            with blaming(stage, index, source):
                effects, _, output = first_look(stage, source, subject.shared, subject.device)
            found.append(effects)
            source = detached(output)
    return tuple(found)


def require_repeats(repeats: object) -> None:
    """Refuse anything but a positive number of timed runs."""
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is {repeats!r}, must be a whole number, at least 1")
