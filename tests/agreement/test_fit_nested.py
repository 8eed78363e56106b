"""What users nest inside a fitted model, or nest it in: checkpoints of torch, torch.compile."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chainstay
from chainstay.errors import UnsupportedModelError
from sgd_steps import peak_of_step
from torch_release import IS_TORCH_2_6
from training_conditions import (
    IN_PART,
    SHARES,
    SUBJECTS,
    Sample,
    differences,
    fit_to,
    pair,
    recomputes,
    require_plan,
    shown,
    trained,
)

each_subject = pytest.mark.parametrize("subject", SUBJECTS)
each_share = pytest.mark.parametrize("share", [*SHARES, IN_PART])  # reentrant ones need a graph
# Dynamo looks at the gradient of whatever it is given, and tests turn warnings into errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.usefixtures("equal_times"),
]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")


class Checkpointed(nn.Module):
    """A part of a model behind torch's own checkpoint."""

    def __init__(self, inner: nn.Module, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


def chain_of(wrap: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """Alternating plain and wrapped layers with dropout and BatchNorm."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(12, 24)]
    for _ in range(3):
        inner = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24), nn.Dropout(0.3))
        layers += [wrap(inner), nn.BatchNorm1d(24), nn.Tanh()]
    return nn.Sequential(*layers)


def blocks_of(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The same, but no plain chain: to be extracted."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain_of(wrap)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.chain(x)}

    return Model()


def sample_of() -> Sample:
    return Sample((torch.linspace(-3, 5, 256 * 12).sin().reshape(256, 12),))


@each_share
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_inside_stages(share: str, *, use_reentrant: bool) -> None:
    plain = chain_of(lambda inner: Checkpointed(inner, use_reentrant=use_reentrant))
    planned = fit_to(copy.deepcopy(plain), sample_of(), share)
    expected = trained(plain, sample_of())
    assert differences(trained(planned, sample_of()), expected) == []
    require_plan(planned, share)


@each_share
def test_checkpoints_inside_an_extracted_model(share: str) -> None:
    plain = blocks_of(lambda inner: Checkpointed(inner, use_reentrant=False))
    planned = fit_to(copy.deepcopy(plain), sample_of(), share)
    expected = trained(plain, sample_of())
    assert differences(trained(planned, sample_of()), expected) == []


@each_share
def test_reentrant_checkpoints_inside_a_model(share: str) -> None:
    """As part of its graph: what is in them runs again as the plan says."""
    model, plain = (blocks_of(lambda inner: Checkpointed(inner, use_reentrant=True)) for _ in "ab")
    planned = fit_to(model, sample_of(), share)
    assert differences(trained(planned, sample_of()), trained(plain, sample_of())) == []
    require_plan(planned, share)


class CheckpointedBlocks(nn.Module):
    """Blocks that the model's own forward calls behind torch's checkpoint, from one on."""

    def __init__(self, first: int, *, preserve_rng_state: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [[nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12)] for _ in range(5)]
        self.blocks = nn.ModuleList(nn.Sequential(*inner, nn.Dropout(0.3)) for inner in layers)
        self.first = first
        self.preserve_rng_state = preserve_rng_state

    def forward(self, x: torch.Tensor) -> Any:
        keeps = self.preserve_rng_state
        for index, block in enumerate(self.blocks):
            if index < self.first:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=keeps)
        return {"scores": x}


@pytest.mark.parametrize("budget", ["60%", "80%"])
def test_blocks_behind_a_checkpoint_are_no_stages(budget: str) -> None:
    """Torch runs them again by themselves, so no plan may have run them."""
    model, plain = CheckpointedBlocks(3), CheckpointedBlocks(3)
    planned = chainstay.fit(model, budget=budget, by="blocks", repeats=1)
    for first in (3, 4, 2):
        model.first = plain.first = first
        assert differences(trained(planned, sample_of()), trained(plain, sample_of())) == []


def test_blocks_that_are_all_behind_a_checkpoint_are_refused() -> None:
    model = CheckpointedBlocks(0)
    with pytest.raises(UnsupportedModelError, match=r"torch\.utils\.checkpoint runs it again"):
        chainstay.fit(model, sample_of().args, budget="60%", by="blocks")


def test_a_checkpoint_that_draws_other_random_numbers_is_refused() -> None:
    """Its gradients are those of two masks, and a graph has one."""
    model = CheckpointedBlocks(0, preserve_rng_state=False)
    with pytest.raises(UnsupportedModelError, match="is not the model: gradient"):
        chainstay.fit(model, sample_of().args, budget="60%", by="graph")


@each_share
@each_subject
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_around_it(subject: str, share: str, *, use_reentrant: bool) -> None:
    """The fitted model itself runs twice, the second time inside the backward."""
    plain, planned, sample = pair(subject, share)
    if use_reentrant:
        if subject == "transformer":
            pytest.skip("reentrant checkpoints need an input that wants a gradient")
        sample = Sample((sample.args[0].clone().requires_grad_(),))

    class Outer(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            def first(*args: Any) -> Any:
                return self.model(*args, **kwargs)

            return checkpoint(first, *args, use_reentrant=use_reentrant)

    expected = trained(Outer(plain), sample)
    assert differences(trained(Outer(planned), sample), expected) == []


@pytest.mark.long
@pytest.mark.parametrize("share", ["60 %", "least"])
def test_compiled_stages(share: str) -> None:
    def compiled(inner: nn.Module) -> Any:
        return torch.compile(inner, backend="aot_eager")

    plain, planned = chain_of(compiled), fit_to(chain_of(compiled), sample_of(), share)
    expected = trained(plain, sample_of())
    assert differences(trained(planned, sample_of()), expected) == []
    assert recomputes(planned)


@pytest.mark.long
@needs_compiler
def test_a_stage_compiled_to_machine_code() -> None:
    torch.manual_seed(0)
    inner: Any = torch.compile(nn.Sequential(nn.Linear(24, 24), nn.Tanh()))
    layers = [nn.Linear(12, 24), inner, nn.Dropout(), nn.Linear(24, 24), nn.Tanh()]
    plain = nn.Sequential(*layers)
    planned = fit_to(copy.deepcopy(plain), sample_of(), "least")
    assert differences(trained(planned, sample_of()), trained(plain, sample_of())) == []
    assert recomputes(planned)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_subject
@each_share
def test_compiled_as_a_whole(subject: str, share: str, backend: str) -> None:
    """A compiler leaves the plan alone: nothing of it is traced, so nothing can go wrong."""
    plain, planned, sample = pair(subject, share)
    whole: Any = torch.compile(planned, backend=backend)
    expected = trained(plain, sample)
    found = trained(whole, sample)
    found = {name.replace("_orig_mod.", ""): value for name, value in found.items()}
    assert differences(found, expected) == []


@each_subject
def test_compiled_in_place(subject: str) -> None:
    """`Module.compile` replaces what calling the module does, the plan is still inside."""
    plain, planned, sample = pair(subject, "least")
    planned.compile(backend="aot_eager")
    expected = trained(plain, sample)
    assert differences(trained(planned, sample), expected) == []


@pytest.mark.long
def test_compiled_in_place_and_called_with_another_shape() -> None:
    """A plan is made inside the compiled call."""
    plain, planned, sample = pair("transformer", "least")
    half = Sample((sample.args[0][:2],), sample.kwargs)
    planned.compile(backend="aot_eager")
    assert differences(trained(planned, half), trained(plain, half)) == []


@each_subject
def test_a_training_step_compiled_around_it(subject: str) -> None:
    plain, planned, sample = pair(subject, "least")

    def step(model: nn.Module, sample: Sample, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        forward: Any = torch.compile(sample.loss, backend="aot_eager")
        optimizer.zero_grad()
        loss: torch.Tensor = forward(model)
        loss.backward()
        optimizer.step()
        return loss

    expected = trained(plain, sample)
    assert differences(trained(planned, sample, step), expected) == []


def test_a_graph_in_one_piece_is_refused() -> None:
    """Who asks for no breaks is told that the plan is one."""
    torch.compiler.reset()  # after the tests before, torch compiles no more calls of modules
    _, planned, sample = pair("layered", "least")
    sample.loss(planned)  # which captures it: frames are compiled inside
    whole: Any = torch.compile(planned, backend="eager", fullgraph=True)
    told = r"found no compiled frames|torch\.compiler\.disable"
    if IS_TORCH_2_6:
        told = "inline in skipfiles"
    with pytest.raises(Exception, match=told):
        sample.loss(whole)


@pytest.mark.parametrize("subject", ["transformer", "convolutional"])
def test_a_model_with_compiled_parts_has_no_graph_as_a_whole(subject: str) -> None:
    _, planned, sample = pair(subject, "all")
    model: Any = chainstay.unfit(planned)
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    with pytest.raises(UnsupportedModelError, match="some of its modules are compiled by"):
        chainstay.fit(model, sample.args, sample.kwargs, budget="60%", by="export")


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_model_that_is_exported_or_traced_runs_plainly(by: Any) -> None:
    """What comes out trains nothing, and has no plan in it."""
    _, planned, sample = pair("layered", "least")
    chainstay.fit(chainstay.unfit(planned), budget="100%", by=by, repeats=1)
    sample.loss(planned).backward()
    planned.eval()
    with torch.no_grad():
        expected = planned(*sample.args)
    exported = torch.export.export(planned, sample.args, strict=False).module()
    assert torch.equal(exported(*sample.args), expected)
    traced: Any = torch.jit.trace(planned, sample.args)
    assert torch.equal(traced(*sample.args), expected)


class SelfCalling(nn.Module):
    """With a dict it calls itself for the loss, as detectors of ultralytics do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)
        )

    def forward(self, given: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(given, dict):
            output: torch.Tensor = self(given["image"])
            return (output - given["target"]).square().mean()
        x = given
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_a_model_that_calls_itself(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    plain = SelfCalling()
    model = chainstay.fit(copy.deepcopy(plain), budget="70%", repeats=1)
    batch = {"image": torch.randn(32, 16), "target": torch.randn(32, 16)}
    for _ in range(3):
        losses = [own(batch) for own in (plain, model)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)

    def step() -> None:
        model(batch).backward()

    assert peak_of_step(model, step, batch) <= shown(model).solution.budget
    assert len(shown(model).plans) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" for ")[0] for line in said] == [
        "chainstay: planning",
        "chainstay: planned",
    ]
