"""Costs of a model's stages: measured here, or estimated for another device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import torch

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.models.workload import Workload, build_workload
from chainstay.cli.options import ModelOptions
from chainstay.cli.terminal import spinner
from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.trials.call import SampleFailsError
from chainstay.runtime.measures.cost_files import require_cache
from chainstay.schedule import Schedule
from chainstay.solve.budgets import share_of
from chainstay.validation.simulate import Replay, simulate

_OUT_OF_MEMORY: Final = ("not enough memory", "out of memory", "can't allocate memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """A workload and its costs.

    Attributes:
        workload: The model and a batch.
        profile: Costs that hold for every schedule.
        model: The measured model; ``None`` if its costs were estimated.
        movable: Of estimated costs, the profile for plans with transfers.
    """

    workload: Workload
    profile: ChainProfile
    model: MeasuredModel | None = None
    movable: ChainProfile | None = None

    @property
    def plain(self) -> Replay:
        """Simulation of plain training."""
        return self.replay(Schedule.keep_all(len(self.profile)))

    def replay(self, schedule: Schedule) -> Replay:
        """Simulate `schedule` with all that is known of its costs."""
        profile, overheads = self.profile, None
        if self.model is not None:
            profile, overheads = self.model.costs.costs_of(schedule)
        return simulate(profile, schedule, discards="free", overheads=overheads)


def build_checked_workload(options: ModelOptions) -> Workload:
    """Build the model and a batch.

    Raises:
        CommandLineError: An option is wrong.
    """
    parse_granularity(options.granularity)
    return build_workload(options.model, options.inputs, options.device, options.dtype)


def measure_costs(options: ModelOptions, budget: str = "100%") -> ModelCosts:
    """Build the model and measure its stages, or estimate their costs.

    Args:
        options: The model, and how it is measured.
        budget: The smallest budget that plans are wanted for: where plain training does not fit in
            it, ways to keep stages in part are looked for.

    Raises:
        UnsupportedModelError: The model cannot be cut into stages, or does not fit here.
        CommandLineError: The options do not go together.
    """
    try:
        require_cache(options.cache)
    except ValueError as wrong:
        raise CommandLineError(f"--{wrong}") from None
    workload = build_checked_workload(options)
    granularity = parse_granularity(options.granularity)
    if workload.target.sheet is not None:
        wants_options = options.stage_options and share_of(budget) != 1
        return _estimated_costs(workload, options.by, granularity, stage_options=wants_options)
    settings = PlannerSettings(
        budget=budget,
        loss=workload.loss,
        stage_options=options.stage_options,
        by=options.by,
        granularity=granularity,
        repeats=options.repeats,
        cache=options.cache,
    )
    call = workload.model, workload.args, workload.kwargs
    with _explained_failures(workload), spinner(f"cutting {workload.name} into stages") as stop:
        model = measure_model(*call, settings, once_traced=stop)
    return ModelCosts(workload=workload, profile=model.costs.profile, model=model)


def parse_granularity(text: str) -> Granularity:
    """Return the granularity that ``--granularity`` means.

    Raises:
        CommandLineError: The text means none.
    """
    if text in ("fine", "blocks"):
        return cast("Granularity", text)
    if text.isascii() and text.isdecimal() and int(text[:9]) > 0:
        return int(text)
    raise CommandLineError(
        f"--granularity is {text!r}, must be fine, blocks or the most stages, as in 50"
    )


def _estimated_costs(
    workload: Workload, by: str, granularity: Granularity, *, stage_options: bool
) -> ModelCosts:
    sheet = workload.target.sheet
    assert sheet is not None
    if by == "blocks":
        raise CommandLineError(
            f"--by blocks and --device {sheet.name}: a model that is not run can only be cut in "
            "its graph; leave --by out, or choose --granularity blocks"
        )
    # Estimating takes a while to import, and is needed for data sheets only.
    from chainstay.runtime.estimate import estimate

    with spinner(f"estimating {workload.name}"):
        estimated = estimate(
            workload.model,
            workload.args,
            workload.kwargs,
            device=sheet,
            loss=workload.loss,
            granularity=granularity,
            stage_options=stage_options,
        )
    return ModelCosts(
        workload=workload, profile=estimated.profile, movable=estimated.movable_profile
    )


@contextmanager
def _explained_failures(workload: Workload) -> Iterator[None]:
    """Explain what to do if the model does not fit on this machine, or fails on its batch."""
    try:
        yield
    except Exception as cause:  # the model is the user's code and may raise anything
        if isinstance(cause, ChainstayError) and not isinstance(cause, SampleFailsError):
            raise  # its text explains it already
        is_memory_error = isinstance(cause, torch.OutOfMemoryError | MemoryError)
        if not is_memory_error and not any(text in str(cause) for text in _OUT_OF_MEMORY):
            _require_runnable(workload)
            raise
        raise UnsupportedModelError(
            f"{workload.title}: not enough memory to measure it here; take a smaller --input, or "
            "plan without running it: --device A100-80GB"
        ) from cause


def _require_runnable(workload: Workload) -> None:
    """Distinguish a model that fails by itself from one that only chainstay fails on.

    Raises:
        UnsupportedModelError: It fails by itself.
    """
    try:
        workload.step()
    except Exception as cause:  # as above
        raise UnsupportedModelError(
            f"{workload.title}: the model fails on this batch, with or without a plan: "
            f"{type(cause).__name__}: {cause}; choose another --input, or other settings"
        ) from cause
