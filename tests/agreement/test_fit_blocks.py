"""Models that are not exported train by their blocks: bit for bit, within the promised peak."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.blocks.block_costs import find_blocks, measure_blocks, with_loss
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.measures.progress import Progress, unseen
from sgd_steps import peak_of_step
from torch_release import IS_TORCH_2_6
from training_conditions import (
    IN_PART,
    RECOMPUTING,
    SHARES,
    Block,
    Sample,
    ShareOf,
    Transformer,
    differences,
    keeps_in_part,
    recomputes,
    shown,
    trained,
)
from zoo import build, loss_of

pytestmark = pytest.mark.usefixtures("equal_times")


@dataclass(frozen=True)
class SampleUnder(Sample):
    """A call under autocast or the like; `peak` may run the backward inside of it, too."""

    surroundings: Callable[[], AbstractContextManager[object]] = nullcontext
    has_backward_inside: bool = False

    def loss(self, model: nn.Module) -> torch.Tensor:
        with self.surroundings():
            return loss_of(model(*self.args, **self.kwargs))


def fitted(model: nn.Module, sample: SampleUnder, share: str, **options: Any) -> nn.Module:
    budget, method = {"all": ("100%", "auto"), IN_PART: ("85%", "dp")}.get(share, (RECOMPUTING, ""))
    with sample.surroundings():
        return chainstay.fit(
            model,
            sample.args,
            sample.kwargs,
            budget=budget,
            loss=loss_of,
            method=method or ShareOf(SHARES[share]),
            repeats=1,
            **options,
        )


def peak(model: nn.Module, sample: SampleUnder) -> int:
    """Of a step with its inputs; its output is held to the end, gradients are there."""

    def step() -> None:
        with sample.surroundings():
            output = model(*sample.args, **sample.kwargs)
            loss = loss_of(output)
            if sample.has_backward_inside:
                loss.backward()
        if not sample.has_backward_inside:
            loss.backward()

    return peak_of_step(model, step, (sample.args, dict(sample.kwargs)))


def require_by_blocks(
    model: nn.Module,
    sample: SampleUnder,
    share: str,
    reason: str,
    **options: Any,
) -> nn.Module:
    """Fit `model` by its blocks; it must train like a copy of it, within the promised peak."""
    planned = require_planned(model, sample, share, **options)
    told = str(planned.chainstay)
    assert "by blocks" in told
    assert reason in told
    return planned


def require_planned(
    model: nn.Module,
    sample: SampleUnder,
    share: str,
    **options: Any,
) -> nn.Module:
    """Fit `model`; it must train like a copy of it, within the promised peak."""
    expected = trained(copy.deepcopy(model), sample)
    planned = fitted(model, sample, share, **options)
    assert differences(trained(planned, sample), expected) == []
    is_other = recomputes(planned) or keeps_in_part(planned)
    assert is_other == (share != "all"), "the plan is another one than meant"
    solution = shown(planned).solution
    measured = peak(planned, sample)
    assert measured <= solution.peak_bytes <= solution.budget
    assert solution.peak_bytes <= 1.15 * measured
    return planned


def family(name: str) -> tuple[nn.Module, SampleUnder]:
    built = build(name)
    return built.model, SampleUnder(built.args, built.kwargs)


@pytest.mark.parametrize("name", ["BERT", "T5", "CLIP", "HF ViT", "ConvNeXt"])
def test_families_by_their_blocks(name: str) -> None:
    """What the export takes as well; encoder and decoder, towers and pyramids are many lists."""
    require_by_blocks(*family(name), "least", "as asked for", by="blocks")


class Scale(nn.Module):
    """Hands gradients on as they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.weight


class Turned(nn.Module):
    """Gives its blocks gradients that lie across what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scale() for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(x + self.bias, 8)  # its backward copies such gradients
        for block in self.blocks:
            x = block(x)
        return x.transpose(2, 3).contiguous()


def test_gradients_lie_as_the_code_behind_the_blocks_leaves_them() -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(8, 4, 64, 64),))
    planned = require_by_blocks(Turned(), sample, "all", "as asked for", by="blocks")
    assert shown(planned).solution.peak_bytes == peak(planned, sample)


class Residual(nn.Module):
    """Adds what a block returns to its input, whose gradient waits beside the block's backward."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (
            nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64), nn.Dropout(0.1))
            for _ in range(2)
        )
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = functional.layer_norm(hidden + block(hidden), (64,))
        return hidden


def test_a_gradient_that_others_hold_counts_beside_a_block_that_frees_it() -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(64, 64, requires_grad=True),))
    planned = require_by_blocks(Residual(), sample, "all", "as asked for", by="blocks")
    assert shown(planned).solution.peak_bytes - peak(planned, sample) <= 16  # scalars of the probe


class Rectified(nn.Module):
    """Has blocks that change their input in place, which nobody else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(32))
        layers = (nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        block = nn.Sequential(nn.ReLU(inplace=True), *layers)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x + self.bias)
        return x


def test_copies_of_what_blocks_change_count_only_where_these_run_again() -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(256, 32),))
    require_by_blocks(Rectified(), sample, "all", "(blocks.0 to blocks.3)", by="blocks")


class Normalized(nn.Module):
    """Has blocks whose output no backward reads: what follows them saves its own."""

    def __init__(self) -> None:
        super().__init__()
        layers = ((nn.Linear(32, 32), nn.LayerNorm(32), nn.Sigmoid()) for _ in range(4))
        self.blocks = nn.ModuleList(layer for several in layers for layer in several)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_what_no_backward_reads_is_gone_in_plain_training_by_blocks() -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(256, 32),))
    require_by_blocks(Normalized(), sample, "all", "as asked for", by="blocks")


class Narrowing(nn.Module):
    """Keeps next to nothing of what its wide blocks return."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(32, 256), nn.GELU()) for _ in range(5))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + block(hidden).unflatten(-1, (8, -1)).mean(-2)
        return hidden


@pytest.mark.long
@pytest.mark.parametrize("share", ["all", "60 %", "least"])
def test_what_blocks_return_counts_only_while_the_model_keeps_it(share: str) -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(128, 32),))
    require_by_blocks(Narrowing(), sample, share, "as asked for", by="blocks")


@pytest.mark.long
@pytest.mark.parametrize("share", ["60 %", "least"])
@pytest.mark.parametrize(
    ("name", "path"),
    [("GPT-2", "transformer.h.1"), ("Llama", "model.layers.2.mlp"), ("T5", "decoder.block.1")],
)
def test_hooks_inside(name: str, path: str, share: str) -> None:
    """They run with their module, also when it runs again."""
    model, sample = family(name)
    model.get_submodule(path).register_forward_hook(_scaled)
    model.get_submodule(path).register_forward_pre_hook(lambda _module, _args: None)
    require_planned(model, sample, share)


class DividedByANorm(nn.Module):
    """Reads a weight of a block behind the last block: half of its gradient waits for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        divided: torch.Tensor = x / self.blocks[0][0].weight.norm()  # type: ignore[index]  # a Sequential
        return divided


@pytest.mark.parametrize("share", ["all", IN_PART])
def test_a_weight_that_is_read_outside_of_its_block(share: str) -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(64, 32),))
    require_planned(DividedByANorm(), sample, share, by="blocks")


def _scaled(_module: nn.Module, _args: object, output: Any) -> Any:
    if isinstance(output, tuple):
        return (output[0] * 1.5, *output[1:])
    return output * 1.5


def test_backward_hooks_inside_run_once_per_step() -> None:
    model, sample = Transformer(4), SampleUnder((torch.arange(64).reshape(4, 16) % 24,))
    called: list[str] = []
    model.blocks[1].register_full_backward_hook(lambda *_: called.append("backward"))
    planned = fitted(model, sample, "least")
    assert recomputes(planned)
    called.clear()
    trained(planned, sample)
    assert called == 3 * ["backward"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("share", ["60 %", "least"])
def test_compiled_blocks(share: str, is_wrapped: bool) -> None:  # noqa: FBT001
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Transformer(3)
    if is_wrapped:
        compiled: Any = partial(torch.compile, backend="aot_eager")  # of a module, a module
        model.blocks = nn.ModuleList(map(compiled, model.blocks))
    else:
        for block in model.blocks:
            block.compile(backend="aot_eager")
    sample = SampleUnder((torch.arange(64).reshape(4, 16) % 24,))
    torch.manual_seed(0)
    plain = Transformer(3)
    expected = list(trained(plain, sample).values())
    planned = fitted(model, sample, share)
    assert all(map(torch.equal, trained(planned, sample).values(), expected))
    assert recomputes(planned)
    assert "compiled by torch.compile" in str(planned.chainstay)


@pytest.mark.long
@pytest.mark.parametrize(
    ("share", "has_cache"), [pytest.param("60 %", True, marks=pytest.mark.long), ("least", False)]
)
def test_llama_under_autocast(share: str, has_cache: bool) -> None:  # noqa: FBT001
    model, sample = family("Llama")
    low = partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=has_cache)
    cast = SampleUnder(sample.args, sample.kwargs, low)
    # The copies of weights that autocast keeps are counted as if they stayed for the backward.
    planned = require_planned(model, replace(cast, has_backward_inside=has_cache), share)
    assert peak(planned, cast) <= shown(planned).solution.peak_bytes


class Doubling(torch.autograd.Function):
    """Keeps one tensor as it should, and one where no hook sees it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.sin())
        ctx.unseen = x.cos()
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        sine: torch.Tensor = ctx.saved_tensors[0]
        unseen: torch.Tensor = ctx.unseen
        return gradient * (2 + sine * unseen)


class Odd(nn.Module):
    """A block that does what tells on a runtime; `kind` says what."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = Block(16), kind
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor, scale: float = 1.0, *, table: Any = None) -> Any:
        match self.kind:
            case "custom function":
                return Doubling.apply(self.inner(x))  # type: ignore[no-untyped-call]
            case "in place":  # its own input, before anyone saved it
                return x.mul_(0.5).add_(self.inner(x.clone()) * scale)
            case "in place in front":  # what it returns is another tensor
                x.mul_(0.5)
            case "in-place residual":
                hidden = self.inner(x)
                hidden += x
                return hidden
            case "tuple":
                return self.inner(x) * scale + table["bias"], None
            case "statistics":
                return self.norm(self.inner(x).transpose(1, 2)).transpose(1, 2)
        return self.inner(x)


class Wayward(nn.Module):
    """Decides by values around its blocks, which no export takes."""

    def __init__(self, kind: str, depth: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(Odd(kind) for _ in range(depth))
        self.kind = kind

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.first(x) if x.sum() > 0 else self.first(-x)
        skip = hidden.clone()
        between = []
        for block in self.blocks:
            match self.kind:
                case "tuple":
                    hidden, _ = block(hidden, 0.5, table={"bias": torch.ones(16)})
                case "changed between":
                    hidden = block(hidden)
                    hidden += 1
                case "changed behind":  # the input of a block, after the block
                    out = block(hidden.sin_())
                    hidden = hidden.mul_(2) if hidden is skip else out
                case "collected":
                    hidden = block(hidden)
                    between.append(hidden)
                case "twice":
                    hidden = block(block(hidden))
                case _:
                    hidden = block(hidden)
        return {"out": self.last(hidden + skip), "between": between}


KINDS = [
    "plain",
    "custom function",
    "in place",
    "in place in front",
    "in-place residual",
    "tuple",
    "statistics",
    "changed between",
    "changed behind",
    "collected",
    "twice",
]


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("plain", "all"),
        *((kind, "least") for kind in KINDS),
        ("in place", "60 %"),
        *((kind, IN_PART) for kind in KINDS),
    ],
)
def test_models_that_decide_by_values(
    kind: str, share: str, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(4, 6, 8),))
    planned = require_by_blocks(Wayward(kind).train(), sample, share, "Data-dependent branching")
    if share == IN_PART:
        changes_input = kind.startswith("in place")
        assert keeps_in_part(planned) != changes_input, "no replay of what has changed"
    assert "def forward" not in capfd.readouterr().err, "torch would print its half of a graph"
    torch.manual_seed(3)
    plain, other = Wayward(kind).train(), SampleUnder((-sample.args[0],))
    torch.manual_seed(3)
    planned.load_state_dict(Wayward(kind).state_dict())
    assert differences(trained(planned, other), trained(plain, other)) == []
    assert len(shown(planned).plans) == 1, "the other way at run time is the same plan"


class Padding(nn.Module):
    """Pads by a number that it computes from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv1d(4, 4, 3) for _ in range(3))
        self.stride = nn.Buffer(torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            missing: Any = torch.ceil(self.stride / 2).long() * self.stride - 1
            x = functional.pad(block(x), (1, missing))
        return x


def test_a_shape_that_depends_on_values_is_told() -> None:
    sample = SampleUnder((torch.randn(2, 4, 33),))
    told = "decides by the value" if IS_TORCH_2_6 else "whose shape depends on the values"
    require_by_blocks(Padding(), sample, "all", f"{told} of a tensor")


class Convolution(nn.Sequential):
    """One of the layers that a wave goes through."""

    def __init__(self, channels: int, *norm: nn.Module) -> None:
        super().__init__(nn.Conv1d(channels, 16, 4, 2, bias=False), *norm, nn.GELU())


class NormedConvolution(Convolution):
    """The first of them."""

    def __init__(self) -> None:
        super().__init__(1, nn.GroupNorm(16, 16))


class Listening(nn.Module):
    """Its first layer, of a class of its own, makes the largest tensors, as in Wav2Vec2."""

    def __init__(self) -> None:
        super().__init__()
        layers = (Convolution(16) for _ in range(4))
        self.layers = nn.ModuleList([NormedConvolution(), *layers])

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        hidden = wave[:, None]
        hidden.requires_grad = True
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def test_a_first_block_of_another_class_is_a_stage_as_well() -> None:
    torch.manual_seed(0)
    sample = SampleUnder((torch.randn(4, 4000),))
    planned = require_by_blocks(Listening(), sample, "least", "layers.0 to layers.4")
    assert str(planned.chainstay).count("setattr() on Tensor.requires_grad") <= 1
    assert shown(planned).solution.peak_bytes < 0.75 * peak(Listening(), sample)


class Cache:
    """Keys of each layer, as language models keep them for generating."""

    def __init__(self) -> None:
        self.layers: list[list[torch.Tensor]] = []

    def with_new(self, keys: torch.Tensor, layer: int) -> torch.Tensor:
        while len(self.layers) <= layer:
            self.layers.append([])
        self.layers[layer].append(keys)
        return torch.cat(self.layers[layer], dim=1)


class Attention(nn.Module):
    """Adds to the cache that it gets, and fails where it has added there before."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.key, self.layer = nn.Linear(16, 16), layer

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        keys = cache.with_new(self.key(x), self.layer)
        weights = (x @ keys.transpose(1, 2)).expand(4, 6, 6).softmax(-1)
        return x + weights @ keys


class Caching(nn.Module):
    """Makes a cache for its attentions in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.attentions = nn.ModuleList(map(Attention, range(4)))
        self.blocks = nn.ModuleList(Odd("plain") for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, cache = self.first(x) if x.sum() > 0 else self.first(-x), Cache()
        for attention, block in zip(self.attentions, self.blocks, strict=True):
            hidden = block(attention(hidden, cache))
        result: torch.Tensor = self.last(hidden)
        return result


@pytest.mark.long
def test_blocks_that_add_to_a_cache_run_by_themselves() -> None:
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(4, 6, 8),))
    require_by_blocks(Caching().train(), sample, IN_PART, "Data-dependent branching")


class Writing(nn.Module):
    """Writes what it makes into a tensor that it is given."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.inner, self.layer = Odd("plain"), layer

    def forward(self, x: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        results[self.layer] = made
        return made


class Written(nn.Module):
    """Makes a tensor for what its blocks make."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Writing, range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = x.new_zeros(4, *x.shape)
        for block in self.blocks:
            x = block(x, results)
        return x + results.mean(0)


def test_a_block_that_writes_what_it_makes_into_a_constant_is_no_stage() -> None:
    """A gradient reaches it by way of that tensor, too; the modules inside of it are stages."""
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(16, 16),))
    planned = require_planned(Written().train(), sample, IN_PART, by="blocks")
    assert "blocks.0: the forward writes what has a gradient into a tensor" in str(
        planned.chainstay
    )


class Positioned(nn.Module):
    """Adds its positions to the batch itself, and notes what its blocks make in a tensor given."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(16))
        self.blocks = nn.ModuleList(Odd("plain") for _ in range(4))

    def forward(self, x: torch.Tensor, notes: torch.Tensor) -> torch.Tensor:
        x += self.positions
        for layer, block in enumerate(self.blocks):
            x = block(x)
            notes[layer] = x[0]
        return x


def test_a_graph_that_writes_what_it_makes_into_an_argument_goes_by_blocks() -> None:
    """The caller may read that argument with its gradient, as the loss here does."""
    torch.manual_seed(3)
    x, notes = torch.randn(16, 16), torch.zeros(4, 16)
    model = Positioned().train()

    def gradients(trained_model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(7)
        batch, noted = x.clone(), notes.clone()
        loss = trained_model(batch, noted).square().mean() + noted.sum() + batch.mean()
        loss.backward()
        grads = [parameter.grad for parameter in trained_model.parameters()]
        return [loss.detach(), *(gradient for gradient in grads if gradient is not None)]

    expected = gradients(copy.deepcopy(model))
    assert len(expected) > 20
    chainstay.fit(model, (x.clone(), notes.clone()), budget="80%")
    assert "a tensor of shape (16, 16) that it is given" in str(shown(model))
    assert all(map(torch.equal, gradients(model), expected))
    assert recomputes(model) or keeps_in_part(model)


class Decaying(Wayward):
    """Changes weights of some blocks when these have run, in a way that no version tells."""

    def __init__(self, count: int) -> None:
        super().__init__("plain")
        self.count = count

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        found = super().forward(x)
        for index in range(self.count):
            self.get_parameter(f"blocks.{index}.inner.wide.weight").data.mul_(0.9)
        return found


@pytest.mark.long
def test_blocks_whose_weights_change_when_they_have_run() -> None:
    """They would run again with others, so no plan runs them."""
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(4, 6, 8),))
    planned = require_by_blocks(Decaying(1).train(), sample, "least", "Data-dependent branching")
    told = str(planned.chainstay)
    assert "blocks (blocks.0.inner.before to blocks.3)" in told
    assert "expanded into the modules inside: blocks.0: the model changes its weights after" in told


class Copying(Wayward):
    """Ends with a copy of its first block, made in the forward."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        found = super().forward(x)
        return found | {"copied": copy.deepcopy(self.blocks[0])(found["between"][0])}


def test_a_copy_of_a_block_made_in_the_forward_is_none_of_the_blocks() -> None:
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(4, 6, 8),))
    model = Copying("collected").train()
    expected = trained(copy.deepcopy(model), sample)
    planned = fitted(model, sample, "least")
    assert recomputes(planned)
    assert "by blocks" in str(planned.chainstay)
    assert differences(trained(planned, sample), expected) == []


def test_unfit_deepcopy_and_steps_that_fail() -> None:
    torch.manual_seed(3)
    model, sample = Wayward("plain").train(), SampleUnder((torch.randn(4, 6, 8),))
    plain = copy.deepcopy(model)
    expected = trained(copy.deepcopy(model), sample)
    planned = copy.deepcopy(fitted(model, sample, "least"))
    assert differences(trained(planned, sample), expected) == []
    broken = model.last.register_forward_hook(_fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        sample.loss(model)
    broken.remove()
    sample.loss(model)  # a forward without backward
    assert all(module._compiled_call_impl is None for module in model.modules())
    model.zero_grad()
    assert differences(trained(model, sample), expected) == []
    chainstay.unfit(model)
    assert vars(model).keys() == vars(plain).keys()


class Transformed(nn.Module):
    """Calls its last blocks under transforms of torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[:3]:
            x = block(x)
        x = torch.func.vmap(self.blocks[3], randomness="different")(x)
        found = torch.func.jvp(self.blocks[4], (x,), (torch.ones_like(x),))
        tangent: torch.Tensor = found[1]
        return x + tangent.sin()


@pytest.mark.long
def test_blocks_under_transforms_of_torch_func_run_by_themselves() -> None:
    torch.manual_seed(3)
    sample = SampleUnder((torch.randn(4, 6, 16),))
    planned = require_planned(Transformed().train(), sample, "least", by="blocks")
    assert "blocks (blocks.0 to blocks.2)" in str(planned.chainstay)


def _fails(*_: object) -> None:
    raise RuntimeError("on purpose")


def test_least_budget_is_told() -> None:
    model, sample = Wayward("plain").train(), SampleUnder((torch.randn(4, 6, 8),))
    with pytest.raises(InfeasibleBudgetError) as refusal:
        chainstay.fit(model, sample.args, budget=1000, loss=loss_of, repeats=1)
    assert not hasattr(model, "chainstay")
    budget = int(1.05 * refusal.value.required)  # times, and with them ties, vary
    chainstay.fit(model, sample.args, budget=budget, loss=loss_of, repeats=1)
    assert peak(model, sample) <= budget


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 1], [0, 1, 2, 3, 2, 1]])
def test_models_that_call_other_blocks_than_planned(order: list[int]) -> None:
    """Left out, in another order, or more of them: gradients are right, lists are planned anew."""
    model, sample = Wayward("plain").train(), SampleUnder((torch.randn(4, 6, 8),))
    plain = copy.deepcopy(model)
    planned = fitted(model, sample, "60 %")
    for module in (plain, planned):
        blocks: Any = module.blocks
        module.blocks = nn.ModuleList(blocks[index] for index in order)
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    assert len(shown(planned).plans) == (1 if len(order) == 4 else 2)


class Alone(nn.Module):
    """Neither way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) if x.sum() > 0 else x
        return result


def _refused() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, SampleUnder]], str, str]]:
    yield (
        "no blocks",
        lambda: (Alone(), SampleUnder((torch.ones(2, 8),))),
        "Data-dependent branching",
        r"no blocks of Alone form a chain.*make modules of the layers",
    )


@pytest.mark.parametrize("case", list(_refused()), ids=lambda case: case[0])
def test_where_neither_way_goes_both_reasons_are_told(
    case: tuple[str, Callable[[], tuple[nn.Module, SampleUnder]], str, str],
) -> None:
    _, make, exporting, blocks = case
    model, sample = make()
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedModelError, match=rf"(?s){exporting}.*Nor can .*{blocks}"):
        fitted(model, sample, "all")
    with pytest.raises(UnsupportedModelError, match=rf"(?s)^(?!.*Nor can).*{exporting}"):
        fitted(model, sample, "all", by="export")
    assert torch.equal(torch.get_rng_state(), state)
    assert not hasattr(model, "chainstay")


def test_by_is_looked_at() -> None:
    with pytest.raises(
        ValueError, match="by is 'magic', must be 'auto', 'graph', 'blocks' or 'export'"
    ):
        fitted(Alone(), SampleUnder((torch.ones(2, 8),)), "all", by="magic")


def measured_by_blocks(
    model: nn.Module,
    sample: SampleUnder,
    cache: Path,
    loss: Callable[[Any], torch.Tensor] = loss_of,
) -> Measurement:
    device = torch.device("cpu")
    host = Host(Call.of(model, sample.args, sample.kwargs), device)
    around = with_loss(find_blocks(host, BlockGraphs(type(model).__name__, device)), loss)
    return measure_blocks(around, repeats=1, progress=False, cache=cache)


@pytest.mark.long
def test_what_is_in_the_cache_is_not_measured_again(tmp_path: Path) -> None:
    """Encoder and decoder are two segments; times always differ when they are measured."""
    model, sample = family("T5")
    first = measured_by_blocks(model, sample, tmp_path)
    again = measured_by_blocks(model, sample, tmp_path)
    assert (again.account, again.chain.effects) == (first.account, first.chain.effects)
    # Options would have to be measured: there are none in this file.
    planned = fitted(model, sample, "least", by="blocks", cache=tmp_path, stage_options=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert recomputes(planned)
    measured = [plan.stages[0].forward_time for plan in map(chain_of, shown(planned).plans)]
    assert measured == [first.profile.stages[0].forward_time]
    expected = trained(family("T5")[0], sample)
    assert differences(trained(planned, sample), expected) == []


def chain_of(planned: Planned) -> ChainProfile:
    assert isinstance(planned.profile, ChainProfile)
    return planned.profile


def _with_hook(model: Transformer) -> None:
    model.blocks[1].register_forward_hook(_scaled)


def _with_other_value(model: Transformer) -> None:
    vars(model.blocks[1])["heads"] = 7  # whatever it may mean


def _with_configuration(model: Transformer) -> None:
    vars(model)["config"] = SimpleNamespace(attention="eager")


def _evaluated(model: Transformer) -> None:
    model.blocks[0].eval()


def _frozen(model: Transformer) -> None:
    model.blocks[0].requires_grad_(requires_grad=False)


def _as_it_is(_: Transformer) -> None:
    """No change."""


@pytest.mark.parametrize(
    ("change", "files"),
    [
        (_as_it_is, 1),
        (_with_hook, 2),
        (_with_other_value, 2),
        (_with_configuration, 1),  # nothing that is run depends on it
        (_evaluated, 2),
        (_frozen, 2),
    ],
)
def test_another_model_has_a_file_of_its_own(
    tmp_path: Path, change: Callable[[Transformer], None], files: int
) -> None:
    sample = SampleUnder((torch.arange(32).reshape(2, 16) % 24,))
    measured_by_blocks(Transformer(2), sample, tmp_path)
    other = Transformer(2)
    change(other)
    measured_by_blocks(other, sample, tmp_path)
    assert len(list(tmp_path.iterdir())) == files


@pytest.mark.long
def test_another_call_or_loss_has_a_file_of_its_own(tmp_path: Path) -> None:
    def loss_times(factor: float, output: Any) -> torch.Tensor:
        return loss_of(output) * factor

    model = Transformer(2)
    for rows, factor in ((2, 1.0), (3, 1.0), (2, 2.0), (2, 1.0)):
        sample = SampleUnder((torch.arange(rows * 16).reshape(rows, 16) % 24,))
        measured_by_blocks(model, sample, tmp_path, partial(loss_times, factor))
    assert len(list(tmp_path.iterdir())) == 3


def test_measuring_blocks_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    done, told = 0, set[str]()

    def progress(doing: str, *, steps: int = 1, more: int = 0) -> None:
        nonlocal done
        done += steps - more
        told.add(doing)

    @contextmanager
    def bar(*, wanted: bool) -> Iterator[Progress]:
        yield progress if wanted else unseen

    monkeypatch.setattr("chainstay.runtime.measures.blocks.block_costs.progress_bar", bar)
    sample = SampleUnder((torch.arange(32).reshape(2, 16) % 24,))
    fitted(Transformer(2), sample, "all", by="blocks", progress=False)
    assert told == set()
    fitted(Transformer(2), sample, "all", by="blocks", progress=True)
    assert done == 0, "as many steps are done as were told of"
    assert {"running every stage", "tracing memory", "running what is around the blocks"} < told


def test_a_frozen_model_runs_plainly_until_it_is_trained() -> None:
    """A teacher among copies, say: there is nothing to plan."""
    torch.manual_seed(0)
    model, x = Wayward("plain"), torch.randn(4, 6, 8)
    planned = chainstay.fit(copy.deepcopy(model), budget="70%", repeats=1).requires_grad_(
        requires_grad=False
    )
    outputs = []
    for called in (planned, model):
        torch.manual_seed(1)  # for dropout
        outputs.append(called(x)["out"])
    assert torch.equal(*outputs)
    assert not shown(planned).plans
    with pytest.raises(UnsupportedModelError, match="requires a gradient, so there is nothing"):
        chainstay.fit(planned, (x,), budget="70%")
    planned.last.requires_grad_()
    with pytest.raises(UnsupportedModelError, match="none of them has a gradient in this call"):
        planned(x)
    sample = SampleUnder((x,))
    expected = trained(model, sample)
    assert differences(trained(planned.requires_grad_(), sample), expected) == []
    assert len(shown(planned).plans) == 1


def test_weights_without_values_that_no_call_reads() -> None:
    """A head that is left on the meta device, say."""
    torch.manual_seed(0)
    model = Transformer(2)
    model.unused = nn.Linear(2, 2, device="meta")
    sample = SampleUnder((torch.arange(32).reshape(2, 16) % 24,))
    expected, found = (
        {name: value for name, value in trained(one, sample).items() if "unused" not in name}
        for one in (copy.deepcopy(model), fitted(model, sample, "least", by="blocks"))
    )
    assert differences(found, expected) == []
