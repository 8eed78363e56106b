"""Models whose blocks torch.compile has compiled: what compiled code computes is what plans run.

The backend here halves whatever its code gives, so that nothing that runs a block as it was before
it was compiled goes unnoticed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chainstay
from chainstay.errors import ChainstayError, UnsupportedModelError
from training_conditions import Sample, differences, fit_to, recomputes, trained

BLOCKS = 6
SAMPLE = Sample((torch.linspace(-3, 5, 64 * 16).sin().reshape(64, 16),))

# Dynamo looks at the gradient of whatever it is given, and tests turn warnings into errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """After several modules of one class, torch compiles no more of them."""
    torch.compiler.reset()


def halved(graph: torch.fx.GraphModule, _: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """A backend of torch.compile."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        return tuple(output * 0.5 for output in graph(*inputs))

    return run


class Block(nn.Module):
    """A block with a drawn mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.inner(x)


class Model(nn.Module):
    """Blocks in a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(16, 4)
        self.is_checkpointed = False

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return self.head(x)


def compiled_in_place(model: Model, numbers: Sequence[int] = range(BLOCKS)) -> Model:
    for number in numbers:
        model.blocks[number].compile(backend=halved)
    return model


def compiled_around(model: Model, numbers: Sequence[int] = range(BLOCKS)) -> Model:
    for number in numbers:
        block: Any = torch.compile(model.blocks[number], backend=halved)
        model.blocks[number] = block
    return model


each_way = pytest.mark.parametrize("compiled", [compiled_in_place, compiled_around])


@each_way
@pytest.mark.parametrize("share", ["all", "60 %", "least"])
def test_compiled_blocks_run_as_compiled(compiled: Callable[[Model], Model], share: str) -> None:
    expected = trained(compiled(Model()), SAMPLE)
    plan = fit_to(compiled(Model()), SAMPLE, share)
    assert differences(trained(plan, SAMPLE), expected) == []
    assert recomputes(plan) == (share != "all")


@each_way
def test_some_blocks_of_a_class_are_compiled(compiled: Callable[..., Model]) -> None:
    """Those that are not have graphs of their own."""
    expected = trained(compiled(Model(), [1, 2, 5]), SAMPLE)
    plan = fit_to(compiled(Model(), [1, 2, 5]), SAMPLE, "least")
    assert differences(trained(plan, SAMPLE), expected) == []
    assert recomputes(plan)


@each_way
def test_compiled_blocks_that_no_plan_runs(compiled: Callable[..., Model]) -> None:
    """They run as compiled, too: here in checkpoints of torch, which begin after fit."""
    plain, model = compiled(Model()), compiled(Model())
    chainstay.fit(model, SAMPLE.args, budget="70%", repeats=1)
    plain.is_checkpointed = model.is_checkpointed = True
    assert differences(trained(model, SAMPLE), trained(plain, SAMPLE)) == []


def test_blocks_compiled_in_place_after_fit() -> None:
    """The call after that is planned anew."""
    model = chainstay.fit(Model(), budget="70%", by="blocks", repeats=1)
    trained(model, SAMPLE)
    compiled_in_place(model)
    model(*SAMPLE.args)
    fitted: Any = model.chainstay
    assert len(fitted.plans) == 2
    model.load_state_dict(Model().state_dict())
    assert differences(trained(model, SAMPLE), trained(compiled_in_place(Model()), SAMPLE)) == []
    assert len(fitted.plans) == 2


@pytest.mark.long
def test_compiled_blocks_that_save_less() -> None:
    """What torch's own budget leaves of a block's saved tensors is measured like all else."""
    peaks = {}
    for share in (1.0, 0.3):
        config: Any = torch._functorch.config  # the setting has no other place
        with config.patch(activation_memory_budget=share):
            torch.compiler.reset()
            plain, model = Model(), Model()
            for block in (*plain.blocks, *model.blocks):
                block.compile(backend="aot_eager_decomp_partition")
            expected = trained(plain, SAMPLE)
            plan = fit_to(model, SAMPLE, "all")
            assert differences(trained(plan, SAMPLE), expected) == []
            fitted: Any = plan.chainstay
        peaks[share] = fitted.solution.peak_bytes
    assert peaks[0.3] < 0.8 * peaks[1.0]


def test_compiled_blocks_are_not_read_from_files(tmp_path: Path) -> None:
    """What they save depends on settings of torch.compile that no file names."""
    for model in (Model(), compiled_in_place(Model())):
        chainstay.fit(model, SAMPLE.args, budget="70%", repeats=1, by="blocks", cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == 1  # of the first


fused = torch.compile(lambda x: torch.tanh(x) * 0.1, backend=halved)


class Flat(nn.Module):
    """A block without lists in it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.up(x).relu())


class CallsCompiled(Flat):
    """A block that calls a compiled function."""

    def forward(self, x: torch.Tensor) -> Any:
        return x + fused(super().forward(x))


class HoldsCompiled(Flat):
    """A block with a compiled module."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Any = torch.compile(nn.Tanh(), backend=halved)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.act(super().forward(x))


def with_blocks(make: Callable[[], Flat]) -> Model:
    model = Model()
    torch.manual_seed(1)
    model.blocks = nn.ModuleList([make() for _ in range(BLOCKS)])
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (CallsCompiled, "calls fused, compiled by torch.compile, .* compile the blocks that call"),
        (
            HoldsCompiled,
            "its act is compiled by torch.compile, .* compile the block as one",
        ),
    ],
)
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_what_is_compiled_inside_of_a_block(make: Callable[[], Flat], words: str, by: Any) -> None:
    """No graph has it, so the reason is told, and it stays compiled; compiled blocks have it."""
    expected = trained(with_blocks(make), SAMPLE)
    with pytest.raises(ChainstayError, match=words):
        chainstay.fit(with_blocks(make), SAMPLE.args, budget="70%", by=by, repeats=1)
    assert differences(trained(with_blocks(make), SAMPLE), expected) == []
    plain, model = with_blocks(make), with_blocks(make)
    for block in (*plain.blocks, *model.blocks):
        block.compile(backend="aot_eager")
    plan = fit_to(model, SAMPLE, "60 %")
    assert differences(trained(plan, SAMPLE), trained(plain, SAMPLE)) == []


def test_unfit_leaves_compiled_blocks() -> None:
    plain, model = compiled_in_place(Model()), compiled_in_place(Model())
    chainstay.unfit(chainstay.fit(model, SAMPLE.args, budget="70%", repeats=1))
    assert differences(trained(model, SAMPLE), trained(plain, SAMPLE)) == []


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_compiled_as_one_is_refused(*, in_place: bool) -> None:
    model: Any = Model()
    if in_place:
        model.compile(backend=halved)
    else:
        model = torch.compile(model, backend=halved)
    before = copy.deepcopy(model.state_dict())
    words = r"compile its blocks one by one instead .*, or fit the model before it is compiled"
    with pytest.raises(UnsupportedModelError, match=words + ("$" if in_place else ": model._orig")):
        chainstay.fit(model, SAMPLE.args, budget="70%")
    assert differences(model.state_dict(), before) == []


def test_a_part_compiled_as_one_hides_its_blocks() -> None:
    """No plan is made that would never be gone by."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body: Any = torch.compile(Model(), backend=halved)

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x).tanh()

    model = Outer()
    with pytest.raises(UnsupportedModelError, match="compiled it with the blocks inside as one"):
        chainstay.fit(model, SAMPLE.args, budget="70%", repeats=1)
