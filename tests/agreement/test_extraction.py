"""Stages in order are the model, bit for bit, and extraction leaves the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

import pytest
import torch
from torch.utils._pytree import tree_flatten

import runtime_support  # noqa: F401  # one thread
import zoo
from captured_graphs import captured
from chainstay.runtime.capture.cuts.chain import Value
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.extract import ExtractedChain, extract
from chainstay.runtime.capture.trials.model_forward import unbound_forward

_PHASE: Final = "PYTEST_CURRENT_TEST"
"""A variable that pytest changes between fixtures and tests; models of transformers read some."""


@pytest.fixture(scope="module", params=zoo.FAMILIES)
def extracted(request: pytest.FixtureRequest) -> tuple[zoo.Sample, ExtractedChain]:
    return extract_family(request.param)


@cache
def extract_family(family: str) -> tuple[zoo.Sample, ExtractedChain]:
    """The family in fine stages; extraction must have left it alone."""
    sample = zoo.build(family)
    before = everything_of(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(_PHASE, raising=False)
        chain = extract(sample.model, sample.args, sample.kwargs)
    assert same(before, everything_of(sample)) == []
    return sample, chain


def test_stages_in_order_are_the_model(
    extracted: tuple[zoo.Sample, ExtractedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(_PHASE, raising=False)
    sample, chain = extracted
    weights = {name: value.clone() for name, value in sample.model.state_dict().items()}
    expected = step_of(sample, sample.model)
    sample.model.load_state_dict(weights)
    assert same(expected, step_of(sample, chain)) == []


def test_the_chain_is_fine_enough(
    extracted: tuple[zoo.Sample, ExtractedChain], record_property: Callable[[str, object], None]
) -> None:
    _, chain = extracted
    saved = [stage.saved_bytes for stage in chain.stages]
    share = max(saved) / sum(saved)
    record_property("stages", len(saved))
    record_property("largest share of saved bytes", share)
    assert 10 <= len(saved) <= 100
    assert share < 0.2


def test_values_cross_ranges_of_cuts(extracted: tuple[zoo.Sample, ExtractedChain]) -> None:
    _, chain = extracted
    for values in crossings_of(chain).values():
        assert len(set(values.values())) == 1
        assert sorted(values) == list(range(min(values), max(values) + 1))


def test_states_are_what_their_boundaries_say(
    extracted: tuple[zoo.Sample, ExtractedChain],
) -> None:
    sample, chain = extracted
    states = list(states_of(chain, sample))
    for state, values in zip(states, chain.boundaries, strict=True):
        assert [
            (tensor.shape, tensor.dtype, tensor.requires_grad, tensor.untyped_storage().nbytes())
            for tensor in state
        ] == [
            (value.shape, value.dtype, value.requires_grad, value.storage_bytes) for value in values
        ]
    for (old, old_values), (new, new_values) in pairwise(
        zip(states, chain.boundaries, strict=True)
    ):
        passed = {value.name: tensor for value, tensor in zip(old_values, old, strict=True)}
        for value, tensor in zip(new_values, new, strict=True):
            assert value.name not in passed or tensor is passed[value.name]


@pytest.mark.parametrize(("granularity", "most"), [("blocks", 16), (4, 4), (1, 1)])
@pytest.mark.long
def test_granularity(granularity: Granularity, most: int) -> None:
    sample = zoo.build("GPT-2")
    chain = extract(sample.model, sample.args, sample.kwargs, granularity=granularity)
    assert 1 <= len(chain.stages) <= most
    expected = step_of(sample, sample.model)
    assert same(expected, step_of(sample, chain)) == []


@pytest.mark.parametrize(("family", "skips"), [("U-Net", 2), ("DenseNet-121", 40), ("T5", 1)])
def test_skip_connections_cross_many_cuts(family: str, skips: int) -> None:
    """Levels of a U-Net but the lowest, layers of a DenseNet, the output of an encoder."""
    _, chain = extract_family(family)
    assert sum(len(cuts) > 1 for cuts in crossings_of(chain).values()) >= skips


@pytest.mark.long
def test_recomputation_on_detached_states_gives_the_same_gradients() -> None:
    """Stage by stage backward from checkpoints, as the executor will do it."""
    sample = zoo.build("U-Net")
    sample.model.eval()  # no random numbers, no running statistics: nothing to put back
    chain = extract(sample.model, sample.args, sample.kwargs)
    expected = step_of(sample, sample.model)
    sample.model.zero_grad()
    with torch.no_grad():
        _, shared = chain.graph.begin(graph_inputs(sample))
        states = list(states_of(chain, sample))
    gradients: list[torch.Tensor | None] = []
    for index in reversed(range(len(chain.stages))):
        start = tuple(
            tensor.detach().requires_grad_(value.requires_grad)
            for tensor, value in zip(states[index], chain.boundaries[index], strict=True)
        )
        end = chain.stages[index](start, shared)
        if index == len(chain.stages) - 1:
            zoo.loss_of(chain.graph.finish(end, shared)).backward()
        else:
            wanted = [
                (tensor, gradient)
                for tensor, gradient in zip(end, gradients, strict=True)
                if gradient is not None
            ]
            torch.autograd.backward(
                [tensor for tensor, _ in wanted], [gradient for _, gradient in wanted]
            )
        gradients = [tensor.grad for tensor in start]
    for name, parameter in sample.model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[f"gradient {name}"], atol=1e-6)


def step_of(sample: zoo.Sample, forward: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """All that one step leaves behind, from a fixed seed."""
    torch.manual_seed(3)
    sample.model.zero_grad()
    output = forward(*sample.args, **sample.kwargs)
    loss = zoo.loss_of(output)
    loss.backward()
    leaves, spec = tree_flatten(output)
    found = {f"output {i} of {spec}": x for i, x in enumerate(leaves) if torch.is_tensor(x)}
    found |= {"loss": loss, "random state": torch.get_rng_state()}
    for name, parameter in sample.model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient {name}"] = parameter.grad
    found |= {f"buffer {name}": buffer for name, buffer in sample.model.named_buffers()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def everything_of(sample: zoo.Sample) -> dict[str, object]:
    """All that extraction must leave alone: identities, values and global states."""
    found: dict[str, object] = {"random state": torch.get_rng_state()}
    for path, module in sample.model.named_modules():
        found |= {f"{path}.{name}": id(value) for name, value in vars(module).items()}
        found[f"{path}.training"] = module.training
    for name, tensor in sample.model.state_dict(keep_vars=True).items():
        found |= {f"id of {name}": id(tensor), name: tensor.detach().clone()}
    for name, parameter in sample.model.named_parameters():
        found[f"gradient {name}"] = parameter.grad
    found["modes"] = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    found["cache"] = torch.is_autocast_cache_enabled()
    return found


def same(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Names of what is not equal in both."""
    return [
        name
        for name in expected.keys() | found.keys()
        if name not in expected or name not in found or not _equal(expected[name], found[name])
    ]


def _equal(old: object, new: object) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return old.dtype == new.dtype and torch.equal(old, new)
    return old == new


def states_of(chain: ExtractedChain, sample: zoo.Sample) -> Iterator[tuple[torch.Tensor, ...]]:
    inputs = graph_inputs(sample)
    with torch.random.fork_rng():
        state, shared = chain.graph.begin(inputs)
        yield state
        with torch.enable_grad():
            for stage in chain.stages:
                state = stage(state, shared)
                yield state


def graph_inputs(sample: zoo.Sample) -> Sequence[Any]:
    """What TorchDynamo calls the graph of the sample with; tracing again finds the same."""
    function = unbound_forward(sample.model)
    _, inputs = captured(function, sample.model, *sample.args, **sample.kwargs)
    return inputs


def crossings_of(chain: ExtractedChain) -> dict[str, dict[int, Value]]:
    """By name, the cuts that a value crosses."""
    found: dict[str, dict[int, Value]] = {}
    for cut, boundary in enumerate(chain.boundaries):
        for value in boundary:
            found.setdefault(value.name, {})[cut] = value
    return found
