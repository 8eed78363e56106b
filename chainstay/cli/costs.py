"""What a model's stages cost: measured here, or estimated for a device that need not be here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import torch

from chainstay.cli.endings import CommandLineError
from chainstay.cli.terminal import busy
from chainstay.cli.workloads import Workload
from chainstay.errors import UnsupportedModelError
from chainstay.fitting.cut_models import CutModel, measured_model
from chainstay.profiles import ChainProfile
from chainstay.runtime.estimating import estimate
from chainstay.runtime.extraction import ExtractedChain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.measurement import Measurement
from chainstay.schedule import Schedule
from chainstay.validation.simulate import Replay, simulate

__all__ = ["Costed", "costs_of", "granularity_of"]

_OUT_OF_MEMORY: Final = ("not enough memory", "out of memory", "can't allocate memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """A workload, and what it costs.

    Attributes:
        workload: The model and a batch.
        profile: Sound for every schedule.
        cut: The model as stages; ``None`` where it was estimated.
        measured: Costs that depend on the schedule; likewise.
    """

    workload: Workload
    profile: ChainProfile
    cut: CutModel | None = None
    measured: Measurement | None = None

    @property
    def has_branches(self) -> bool:
        """Whether the model was exported, and has branches that meet."""
        ends = None if self.cut is None else self.cut.ends
        return isinstance(ends, ExtractedChain) and not ends.not_a_join

    @property
    def plain(self) -> Replay:
        """Plain training."""
        return self.replay(Schedule.keep_all(len(self.profile)))

    def replay(self, schedule: Schedule, discards: str = "free") -> Replay:
        """What `schedule` needs, with all that is known of it."""
        if self.measured is None:
            return simulate(self.profile, schedule, discards=discards)
        profile, overheads = self.measured.profile_for(schedule), self.overheads(schedule)
        return simulate(profile, schedule, discards=discards, overheads=overheads)

    def overheads(self, schedule: Schedule) -> tuple[int, ...] | None:
        """Of each operation, where that was measured."""
        return None if self.measured is None else self.measured.overheads_for(schedule)


def costs_of(
    workload: Workload, *, by: str, granularity: str, repeats: int, cache: Path | None
) -> Costed:
    """Measure, or estimate.

    Raises:
        UnsupportedModelError: The model cannot be cut into stages, or does not fit here.
        CommandLineError: The options do not go together.
    """
    cuts = granularity_of(granularity)
    if workload.target.sheet is not None:
        return _estimated(workload, by, cuts)
    with _memory_told(workload), busy(f"cutting {workload.name} into stages") as once_cut:
        cut, measured = measured_model(
            workload.model,
            workload.args,
            workload.kwargs,
            loss=workload.loss,
            by=cast("Literal['auto', 'export', 'blocks']", by),
            granularity=cuts,
            repeats=repeats,
            cache=cache,
            once_cut=once_cut,
        )
    return Costed(workload=workload, profile=measured.profile, cut=cut, measured=measured)


def granularity_of(text: str) -> Granularity:
    """What ``--granularity`` means.

    Raises:
        CommandLineError: Nothing.
    """
    if text in ("fine", "blocks"):
        return cast("Granularity", text)
    if text.isascii() and text.isdecimal() and int(text[:9]) > 0:
        return int(text)
    raise CommandLineError(
        f"--granularity is {text!r}, must be fine, blocks or the most stages, as in 50"
    )


def _estimated(workload: Workload, by: str, granularity: Granularity) -> Costed:
    sheet = workload.target.sheet
    assert sheet is not None
    if by == "blocks":
        raise CommandLineError(
            f"--by blocks and --device {sheet.name}: what is not run can only be exported; leave "
            "--by out, or choose --granularity blocks"
        )
    with busy(f"estimating {workload.name}"):
        estimated = estimate(
            workload.model,
            workload.args,
            workload.kwargs,
            device=sheet,
            loss=workload.loss,
            granularity=granularity,
        )
    return Costed(workload=workload, profile=estimated.profile)


@contextmanager
def _memory_told(workload: Workload) -> Iterator[None]:
    """Tell what to do where the model does not fit on this machine, or fails on its batch."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError, IndexError) as cause:
        told = isinstance(cause, torch.OutOfMemoryError | MemoryError)
        if not told and not any(each in str(cause) for each in _OUT_OF_MEMORY):
            _require_runnable(workload)
            raise
        raise UnsupportedModelError(
            f"{workload.title}: not enough memory to measure it here; take a smaller --input, or "
            "plan without running it: --device A100-80GB"
        ) from cause


def _require_runnable(workload: Workload) -> None:
    """Tell a model that fails by itself from one that only chainstay fails on.

    Raises:
        UnsupportedModelError: It fails by itself.
    """
    try:
        workload.step()
    except (RuntimeError, IndexError) as cause:
        raise UnsupportedModelError(
            f"{workload.title}: the model fails on this batch, with or without a plan: "
            f"{type(cause).__name__}: {cause}; choose another --input, or other settings"
        ) from cause
