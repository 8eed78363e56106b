"""Real models as stages, measured in little time, for tests that make plans by hand."""

from __future__ import annotations

from chainstay.fitting.front import settings_of
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.trials.call import Call
from zoo import Sample, loss_of

__all__ = ["measured_sample"]


def measured_sample(sample: Sample, granularity: Granularity = "fine") -> MeasuredModel:
    """The model of `sample`, with `loss_of` behind it."""
    device = Call.of(sample.model, sample.args, sample.kwargs).device
    settings = settings_of(
        device, budget="100%", loss=loss_of, granularity=granularity, repeats=1, progress=False
    )
    return measure_model(sample.model, sample.args, sample.kwargs, settings)
