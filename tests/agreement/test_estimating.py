"""What is estimated without computing against what is measured: the same stages, bytes, peak."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import runtime_support  # noqa: F401  # one thread
import zoo
from chainstay import DeviceModel, Estimated, Schedule, estimate, fit, simulate, solve_chain
from chainstay.profiles import ChainProfile

PROCESSOR = DeviceModel(
    name="CPU", memory_bytes=2**34, bandwidth=2e10, float32=5e10, fuses_attention=False
)
"""Of its figures only the way of attention matters here."""

SCALARS = 4 * 8
"""Bytes: autograd saves Python's numbers as tensors, which on stand-ins have no memory. GPT-2's
activation function has four, and merging idle cuts leaves most of it in one stage."""

SEEN_WHOLE = ("ViT-B/16", "U-Net", "GPT-2", "Llama", "BERT", "T5", "CLIP")
"""Families whose peak has no part in kernels' own workspaces worth mentioning."""

FAMILIES = (*SEEN_WHOLE, "ResNet-50", "VGG-16", "ConvNeXt", "two towers")
"""In the convolutional ones kernels reorder weights for a few pixels, which takes more than
all activations; and the two towers are smaller than the random states saved for them."""


@cache
def estimated(family: str) -> Estimated:
    sample = zoo.build(family)
    return estimate(sample.model, sample.args, sample.kwargs, device=PROCESSOR, loss=zoo.loss_of)


@cache
def measured(family: str) -> ChainProfile:
    sample = zoo.build(family)
    model: Any = fit(
        sample.model,
        sample.args,
        sample.kwargs,
        budget="100%",
        loss=zoo.loss_of,
        repeats=1,
        progress=False,
        offload=False,
    )
    (measured,) = model.chainstay.planner.maker.measured.values()
    profile: ChainProfile = measured.costs.profile
    return profile


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long
def test_states_saved_bytes_and_gradients_are_those_measured(family: str) -> None:
    profile, truth = estimated(family).profile, measured(family)
    assert [stage.name for stage in profile.stages] == [stage.name for stage in truth.stages]
    assert profile.skips == truth.skips
    assert profile.input_bytes == truth.input_bytes
    for stage, real in zip(profile.stages, truth.stages, strict=True):
        assert stage.output_bytes == real.output_bytes
        assert stage.gradient_bytes == real.gradient_bytes
        assert real.saved_bytes - SCALARS <= stage.saved_bytes <= real.saved_bytes


@pytest.mark.parametrize("family", SEEN_WHOLE)
def test_peak_of_plain_training_is_that_measured(
    family: str, record_property: Callable[[str, object], None]
) -> None:
    ratio = peak(estimated(family).profile) / peak(measured(family))
    record_property("estimated peak / measured peak", ratio)
    assert 0.9 <= ratio <= 1.0


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_seen_is_only_ever_missing(family: str) -> None:
    profile, truth = estimated(family).profile, measured(family)
    assert peak(profile) <= peak(truth)
    for stage, real in zip(profile.stages, truth.stages, strict=True):
        assert stage.forward_overhead_bytes <= real.forward_overhead_bytes
        assert stage.backward_overhead_bytes <= real.backward_overhead_bytes


@pytest.mark.parametrize("family", ["U-Net", "two towers"])
def test_without_memory_it_is_the_same(family: str) -> None:
    sample = zoo.build(family)
    weights = {name: value.clone() for name, value in sample.model.state_dict().items()}
    expected = estimated(family)
    found = estimate(
        sample.model.to("meta"), sample.args, sample.kwargs, device=PROCESSOR, loss=zoo.loss_of
    )
    assert found == expected
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in sample.model.state_dict().items()
    }


@pytest.mark.long
def test_fused_attention_saves_no_weights() -> None:
    sample = zoo.build("GPT-2")
    fused = estimate(sample.model, sample.args, sample.kwargs, device="H100", loss=zoo.loss_of)
    plain = estimated("GPT-2")
    saved, more = (
        sum(s.saved_bytes for s in estimation.profile.stages) for estimation in (fused, plain)
    )
    weights = 3 * 2 * 4 * 24 * 24 * 4  # layers, samples, heads, tokens, tokens, bytes
    assert more - saved > weights


@pytest.mark.long
def test_a_llama_of_four_wide_layers_is_planned() -> None:
    """What the layers of a 7B save, counted by hand."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_hidden_layers=4, use_cache=False)
    tokens = torch.zeros(1, 2048, dtype=torch.long)
    labelled = {"input_ids": tokens, "labels": tokens}
    found = estimate(
        lambda: transformers.LlamaForCausalLM(config).bfloat16(), (), labelled, device="A100-80GB"
    )
    assert found.parameters == 4 * 202_383_360 + 2 * 131_072_000 + 4096
    assert found.parameter_bytes == 2 * found.parameters
    hidden, inner, logits = 2048 * 4096, 2048 * 11008, 2048 * 32000
    layers = [stage for stage in found.profile.stages if "layers.1." in stage.name]
    saved = sum(stage.saved_bytes for stage in layers)
    # In bfloat16: two normalised inputs twice, queries, keys, values, attention, three inner
    # ones and the sums; in float32: what both norms normalise.
    assert saved == pytest.approx(2 * (11 * hidden + 4 * inner) + 4 * 2 * hidden, rel=0.15)
    assert found.profile.least_time >= 6 * (found.parameters - 131_072_000) * 2048 / 312e3
    assert peak(found.profile) > 4 * saved + 2 * 4 * logits
    plan = solve_chain(found.profile, "60%")
    assert plan.is_optimal
    assert found.profile.least_time < plan.makespan < 1.34 * found.profile.least_time


@pytest.mark.long
def test_seven_billion_parameters_are_planned() -> None:
    pytest.importorskip("transformers")
    plan_7b = importlib.import_module("plan_7b")
    found: Estimated = plan_7b.estimate_llama("A100-80GB", 1)
    plan = solve_chain(found.profile, "40%")
    assert found.parameters == 32 * 202_383_360 + 2 * 131_072_000 + 4096
    assert plan.is_optimal
    assert plan.peak_bytes < 0.4 * peak(found.profile)


def peak(profile: ChainProfile) -> int:
    """Of plain training."""
    return simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
