"""Programs that went wrong once, each for a reason of its own: they compute the right thing now."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import chainstay
from chainstay.errors import InfeasibleBudgetError, PlanMismatchError, UnsupportedModelError
from chainstay.fitting.planner import StageSource
from chainstay.runtime.execute.block_executor import PlannedBlocks
from fault_threads import in_threads
from twins import (
    SAMPLE,
    TELLS_HOOKS,
    Call,
    Stack,
    backward_step,
    batch,
    differences,
    fit_to_least,
    fitted_twins,
    peak_of,
    picture,
    recomputes,
    require_equal_steps,
    require_refused,
    require_trains_equally,
    shown,
)
from zoo import loss_of


class Epoch(Stack):
    """Reads a number that the training loop sets."""

    epoch = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * (1 + self.epoch)
        return x


def test_01_a_python_number_that_the_loop_sets() -> None:
    def step(model: nn.Module, number: int) -> torch.Tensor:
        model.epoch = number  # type: ignore[assignment]
        return backward_step(SAMPLE)(model, number)  # type: ignore[return-value]

    model = require_trains_equally(Epoch, SAMPLE, step)
    assert len(shown(model).plans) == 1, "a number changes nothing in a plan"


class Binary(nn.Linear):
    """Swaps its weights for their signs during its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real = self.weight.data
        self.weight.data = real.sign() * 0.1
        y = functional.gelu(super().forward(x))
        self.weight.data = real
        return y


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_02_weights_swapped_through_data(by: str) -> None:
    make = functools.partial(Stack, functools.partial(Binary, 16, 16))
    require_refused(
        make, SAMPLE, "assigns to the .data of a parameter", step=backward_step(SAMPLE), by=by
    )


_AUXILIARY: list[torch.Tensor] = []


class Expert(nn.Linear):
    """Leaves a loss of its own in a global list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(super().forward(x))
        _AUXILIARY.append(y.square().mean())
        return y


@pytest.mark.long
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_03_losses_in_a_global_list(by: str) -> None:
    def step(model: nn.Module, _: int) -> torch.Tensor:
        _AUXILIARY.clear()
        output = SAMPLE(model)
        assert len(_AUXILIARY) == 4
        loss = loss_of(output) + torch.stack(_AUXILIARY).sum()
        _AUXILIARY.clear()
        loss.backward()
        return loss

    make = functools.partial(Stack, functools.partial(Expert, 16, 16))
    require_trains_equally(make, SAMPLE, step, watched=[_AUXILIARY], by=by)


class Reentrant(nn.Module):
    """Checkpoints itself in the old way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(lambda z: self.inner(z).tanh(), x, use_reentrant=True)
        return y


def test_04_no_gradients_are_left_by_reentrant_checkpoints() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), *(Reentrant() for _ in range(4)))

    require_trains_equally(make, SAMPLE)


class Recurrent(nn.Module):
    """Keeps its state and its random numbers to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)
        self.h: torch.Tensor | None = None
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.h)
        self.h = h.detach()
        return h * (torch.rand(h.shape, generator=self.generator) > 0.2)


def test_05_a_refused_fit_changes_nothing() -> None:
    make = functools.partial(Stack, Recurrent)
    told, step = "such as a torch.Generator", backward_step(SAMPLE)
    require_refused(make, SAMPLE, told, step=step, by="graph")
    require_trains_equally(make, SAMPLE)


class Doubled(Stack):
    """Does more when it is called than in its forward."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().__call__(x)
        return y * 2


def test_06_what_call_does_is_done_once() -> None:
    plain, fitted = fitted_twins(Doubled, SAMPLE)
    require_equal_steps(plain, fitted, backward_step(SAMPLE))
    with torch.no_grad():
        assert torch.equal(SAMPLE(plain), SAMPLE(fitted))


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    keep = tensor.dtype != torch.float32 or isinstance(tensor, nn.Parameter)
    return tensor if keep else tensor.bfloat16()


def _unpacked(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class Lossy(Stack):
    """Saves its tensors for the backward with fewer digits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            with saved_tensors_hooks(_packed, _unpacked):
                x = torch.tanh(layer(x))
        return x


@TELLS_HOOKS
def test_07_hooks_on_saved_tensors_inside_the_forward() -> None:
    """Where all is kept, they are as good as ever; they cannot be given what a plan drops."""
    make = functools.partial(Lossy, lambda: nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)))
    require_trains_equally(make, SAMPLE, recomputed=False, budget="100%")
    step, reason = backward_step(SAMPLE), "saved_tensors_hooks of .*test_failures are on"
    require_refused(make, SAMPLE, reason, step=step, error=PlanMismatchError)


class RandomDepth(Stack):
    """Leaves out a layer now and then, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.rng.random() > 0.02:
                x = x + torch.tanh(layer(x))
        return x


def test_08_a_generator_of_the_models_own() -> None:
    plain, fitted = fitted_twins(RandomDepth, SAMPLE)
    require_equal_steps(plain, fitted, backward_step(SAMPLE), 30)


_LOCK = threading.Lock()


class Locked(nn.Linear):
    """Takes a lock and lets go of it by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert _LOCK.acquire(timeout=5), "would hang: the lock was never released"
        y = torch.tanh(super().forward(x))
        _LOCK.release()
        return y


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_09_a_lock_that_is_released_by_hand(by: str) -> None:
    make = functools.partial(Stack, functools.partial(Locked, 16, 16))
    require_refused(make, SAMPLE, "acquire", step=backward_step(SAMPLE), by=by)
    assert not _LOCK.locked()


class FastPath(nn.Linear):
    """Gives up its fast path for good once that has raised anything."""

    fast = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fast:
            try:
                return functional.gelu(super().forward(x))
            except Exception:  # noqa: BLE001  # as users write it
                self.fast = False
        return functional.gelu(super().forward(x), approximate="tanh")


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_10_a_fast_path_that_catches_everything(by: str) -> None:
    require_trains_equally(lambda: Stack(lambda: FastPath(16, 16)), SAMPLE, by=by)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_11_two_threads_in_one_model(by: str) -> None:
    torch.manual_seed(0)
    model = Stack().eval()

    def gradients(scale: int) -> tuple[torch.Tensor, ...]:
        loss = loss_of(model(SAMPLE.args[0] * scale))
        return torch.autograd.grad(loss, list(model.parameters()))

    expected = [gradients(1), gradients(2)]
    fit_to_least(model, SAMPLE, by=by)

    def count(k: int) -> int:
        return sum(all(map(torch.equal, gradients(k + 1), expected[k])) for _ in range(10))

    assert in_threads([functools.partial(count, k) for k in range(2)]) == [10, 10]


class Halting(Stack):
    """Decides by a value how many of its layers it runs."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
        self.depth: torch.Tensor
        self.register_buffer("depth", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: int(self.depth)]:
            x = x + layer(x)
        return x


@pytest.mark.long
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_12_a_depth_that_grows_later(by: StageSource, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, plain, x = Halting(), Halting(), batch(256, 64)
    plain.load_state_dict(model.state_dict())
    chainstay.fit(model, (x,), budget="100%", loss=loss_of, repeats=1, by=by)
    budget = shown(model).solution.budget
    is_by_blocks = isinstance(shown(model).plans[0], PlannedBlocks)  # always so before torch 2.7
    model.depth.fill_(4)
    plain.depth.fill_(4)
    capsys.readouterr()
    for module in (model, plain):
        loss_of(module(x)).backward()
    told = capsys.readouterr().err
    assert (
        "this call of Halting ran 2 blocks that its plan does not have"
        if is_by_blocks
        else "planning for another kind of call with (256, 64) ..."
    ) in told
    assert all(
        torch.equal(one.grad, other.grad)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True)
        if one.grad is not None and other.grad is not None
    )
    assert peak_of(plain, x) + x.nbytes > budget
    assert peak_of(model, x) + x.nbytes <= budget


class TwoLists(Halting):
    """What always runs is in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.depth.fill_(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.before:
            x = layer(x).tanh()
        return super().forward(x)


@pytest.mark.parametrize("depth", [0, 1])
def test_12_blocks_of_another_list_than_planned(
    depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, x = TwoLists(), batch(256, 64)
    model.depth.fill_(depth)
    budget = 1_600_000
    chainstay.fit(model, (x,), budget=budget, loss=loss_of, repeats=1, by="blocks")
    model.depth.fill_(4)
    capsys.readouterr()
    loss_of(model(x)).backward()
    told = f"this call of TwoLists ran {4 - depth} blocks that its plan does not have"
    assert told in capsys.readouterr().err
    assert peak_of(model, x) + x.nbytes <= budget < peak_of(chainstay.unfit(model), x)


class Unseen(Halting):
    """Whose layers may be run by code that nobody looks into."""

    def __init__(self) -> None:
        super().__init__()
        self.depth.fill_(4)
        self.is_compiled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_compiled:
            return torch.compile(super().forward, backend="eager")(x)
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_12_a_call_that_runs_no_block_by_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, x = Unseen(), batch(256, 64)
    chainstay.fit(model, (x,), budget="70%", loss=loss_of, repeats=1, by="blocks")
    model.is_compiled = True
    capsys.readouterr()
    for _ in range(12):
        loss_of(model(x)).backward()
    told = capsys.readouterr().err
    assert told.count("ran none of its blocks by the plan, so it may have needed more") == 1


def test_12_a_depth_that_shrinks_before_it_is_planned_anew() -> None:
    def step(model: nn.Module, number: int) -> torch.Tensor:
        model.get_buffer("depth").fill_((4, 1, 2)[number])
        loss = loss_of(model(batch(64, 64)))
        loss.backward()
        return loss

    def make() -> Halting:
        model = Halting()
        model.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        return model

    plain, fitted = fitted_twins(make, Call((batch(64, 64),)), by="blocks", budget="100%")
    require_equal_steps(plain, fitted, step)


class Graph(Stack):
    """Multiplies by a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", (torch.rand(64, 64) > 0.7).float().to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(torch.sparse.mm(self.adjacency, layer(x)))
        return x


def test_13_a_sparse_buffer() -> None:
    require_trains_equally(Graph, SAMPLE)


def test_13_scripted_blocks() -> None:
    make = functools.partial(Stack, lambda: torch.jit.script(nn.Linear(16, 16)))
    require_refused(make, SAMPLE, r"compiled by torch\.jit", step=backward_step(SAMPLE))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_13_observers_that_size_their_buffers() -> None:
    from torch.ao import quantization  # noqa: PLC0415  # warns when it is imported

    def make() -> nn.Module:
        layers = (nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))
        model = nn.Sequential(quantization.QuantStub(), *layers, quantization.DeQuantStub())
        model.qconfig = quantization.get_default_qat_qconfig("x86")
        made: nn.Module = quantization.prepare_qat(model.train())
        return made

    require_refused(make, SAMPLE, "skipped", step=backward_step(SAMPLE), by="graph")
    require_trains_equally(make, SAMPLE)


class Headed(Stack):
    """Has a head behind its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(super().forward(x))
        return y


def test_14_a_shallow_copy_with_another_head() -> None:
    plain, fitted = fitted_twins(Headed, SAMPLE)
    head, outputs = nn.Linear(16, 4), []
    for model in (plain, fitted):
        other = copy.copy(model)
        other._modules = dict(model._modules, head=head)
        outputs.append(SAMPLE(other))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[1], SAMPLE(fitted))


class Square(torch.autograd.Function):
    """Keeps its input for the backward where nobody sees it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = gradient * 2 * ctx.x
        return y


class Squared(nn.Linear):
    """A linear layer of squares."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(Square.apply(x))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_15_memory_that_a_function_keeps_for_itself(by: str) -> None:
    x = batch(512, 64)
    call = Call((x,))
    model = require_trains_equally(lambda: Stack(lambda: Squared(64, 64)), call, by=by)
    solution = shown(model).solution
    assert peak_of(model, x) + x.nbytes <= solution.budget
    assert peak_of(Stack(lambda: Squared(64, 64)), x) + x.nbytes > solution.budget


class Nodes:
    """What a batch is, in an object that torch knows nothing of."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes


class OfNodes(Stack):
    """Takes such a batch."""

    def forward(self, bias: torch.Tensor, nodes: Nodes) -> torch.Tensor:  # type: ignore[override]
        y: torch.Tensor = super().forward(nodes.nodes + bias)
        return y


def test_16_an_object_that_is_refilled_with_a_larger_batch() -> None:
    """It is planned anew, or refused where nothing fits; never by the old plan over budget."""
    bias, nodes = batch(16), Nodes(batch(64, 16))
    model = fit_to_least(OfNodes(), Call((bias, nodes)))
    budget = shown(model).solution.budget
    nodes.nodes = batch(128, 16)
    with pytest.raises(InfeasibleBudgetError, match=r"for a call with \(128, 16\), \(16,\)"):
        model(bias, nodes)
    nodes.nodes = batch(32, 16)
    assert peak_of(model, bias, nodes) + nodes.nodes.nbytes + bias.nbytes <= budget


def test_16_a_new_object_every_step_needs_no_new_plan() -> None:
    bias = batch(16)
    call = Call((bias, Nodes(batch(64, 16))))

    def step(model: nn.Module, number: int) -> torch.Tensor:
        loss = loss_of(model(bias, Nodes(batch(64, 16) * (number + 1))))
        loss.backward()
        return loss

    model = require_trains_equally(OfNodes, call, step)
    assert len(shown(model).plans) == 1


class Normalising(Stack):
    """Changes its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.9).add_(0.1)
        y: torch.Tensor = super().forward(x)
        return y


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_17_fit_does_not_change_its_sample(by: str) -> None:
    """A training step does, once."""
    samples = {name: Call((batch(64, 16),)) for name in ("plain", "fitted")}
    plain, fitted = fitted_twins(Normalising, samples["fitted"], by=by)
    for _ in range(2):
        for call, model in zip(samples.values(), (plain, fitted), strict=True):
            loss_of(call(model)).backward()
    assert differences(picture(samples["plain"], plain), picture(samples["fitted"], fitted)) == []


class Symmetric(nn.Module):
    """A weight that is equal to its transpose."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_18_weights_that_are_computed_once_for_several_forwards(by: StageSource) -> None:
    def make() -> nn.Module:
        model = Stack()
        for layer in model.layers:
            parametrize.register_parametrization(layer, "weight", Symmetric())
        return model

    def step(model: nn.Module, _: int) -> torch.Tensor:
        with parametrize.cached():
            loss = loss_of(SAMPLE(model)) + loss_of(model(2 * SAMPLE.args[0]))
            loss.backward()
        return loss

    plain, fitted = fitted_twins(make, SAMPLE, budget=150_000, by=by)
    with pytest.raises(UnsupportedModelError, match=r"parametrize\.cached"):
        step(fitted, 0)
    require_equal_steps(plain, chainstay.unfit(fitted), step)


class Centred(nn.Module):
    """A loss with a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.centre: torch.Tensor
        self.register_buffer("centre", torch.zeros(16))

    def forward(self, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.centre.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y - self.centre - target).square().mean()


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_19_a_loss_with_a_state_of_its_own(by: str) -> None:
    criteria, target = [Centred(), Centred()], batch(64, 16).cos()
    plain, fitted = fitted_twins(
        Stack,
        SAMPLE,
        watched=criteria,
        loss=lambda output: criteria[1](output, target),
        by=by,
    )
    losses = [
        criterion(SAMPLE(model), target)
        for criterion, model in zip(criteria, (plain, fitted), strict=True)
    ]
    assert torch.equal(*losses)
    assert torch.equal(criteria[0].centre, criteria[1].centre)


class Quantize(TorchFunctionMode):
    """Simulates another precision."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        return output.bfloat16().float() if func is functional.linear else output


@pytest.mark.filterwarnings("ignore:TF32:UserWarning")
@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize(
    "context",
    [lambda: torch.backends.mkldnn.flags(enabled=False), Quantize],
    ids=["mkldnn off", "function mode"],
)
def test_20_settings_around_the_forward_only(
    context: Callable[[], AbstractContextManager[object]], by: str
) -> None:
    def step(model: nn.Module, _: int) -> torch.Tensor:
        with context():
            loss = loss_of(SAMPLE(model))
        loss.backward()
        return loss

    plain, fitted = fitted_twins(Stack, SAMPLE, by=by)
    try:
        step(fitted, 0)
    except InfeasibleBudgetError as refusal:  # another setting, another graph with a least budget
        assert "for a call with (64, 16)" in str(refusal)  # noqa: PT017  # not in both ways
        chainstay.fit(fitted, SAMPLE.args, budget=refusal.required, loss=loss_of, repeats=1)
    require_equal_steps(plain, fitted, step)
    assert recomputes(fitted)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.long
def test_21_adapters_that_are_scaled_and_merged() -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        attn_pdrop=0,
        resid_pdrop=0,
        embd_pdrop=0,
    )
    ids = torch.arange(32).reshape(2, 16)
    call = Call(kwargs={"input_ids": ids, "labels": ids})
    lora = peft.LoraConfig(
        r=4, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True
    )

    def make() -> nn.Module:
        model: nn.Module = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
        return model.train()

    def step(model: nn.Module, number: int) -> torch.Tensor:
        for module in model.modules():
            if hasattr(module, "set_scale"):
                module.set_scale("default", 2.0**number)  # type: ignore[operator]
        loss: torch.Tensor = call(model).loss
        loss.backward()
        return loss

    plain, fitted = fitted_twins(make, call, budget="100%", loss=None)
    require_equal_steps(plain, fitted, step)
    for model in (plain, fitted):
        model.merge_adapter()  # type: ignore[operator]
    assert torch.equal(call(plain).loss, call(fitted).loss)


def _teacher() -> nn.Module:
    teacher = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
    return teacher.requires_grad_(requires_grad=False)


class Student(Stack):
    """Keeps its teacher in a list, so that it is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [_teacher()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher[0](x)
        return (super().forward(x) - target).square().mean()


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_22_a_teacher_in_a_list(by: str) -> None:
    torch.manual_seed(5)
    another = _teacher()

    def step(model: nn.Module, number: int) -> torch.Tensor:
        assert isinstance(model, Student)
        if number == 1:
            model.teacher[0] = copy.deepcopy(another)
        elif number == 2:
            model.teacher[0].eval()
        return backward_step(SAMPLE)(model, number)  # type: ignore[return-value]

    # In the least budget of stages kept in part, the graph of the other teacher does not fit.
    require_trains_equally(Student, SAMPLE, step, by=by, stage_options=False)


@functools.lru_cache
def _table(n: int) -> torch.Tensor:
    return torch.linspace(0, 1, n)


class Tabled(Stack):
    """Computes a table when it needs it first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x + _table(x.shape[-1])))
        return x


@pytest.fixture
def _empty_table() -> Iterator[None]:
    _table.cache_clear()
    yield
    _table.cache_clear()


@pytest.mark.usefixtures("_empty_table")
@pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning")
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_23_a_table_that_is_cached_when_needed(by: str) -> None:
    fitted = require_trains_equally(Tabled, SAMPLE, by=by)
    assert type(_table(16)) is torch.Tensor
    for model in (fitted, Tabled()):
        with torch.no_grad():
            assert type(SAMPLE(model)) is torch.Tensor


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]  # torch does not type it
def told_in_its_own_words(x: torch.Tensor) -> torch.Tensor:
    """An operation as of einx, which catches whatever its operators raise."""
    try:
        return x.exp().sin()
    except Exception as cause:
        raise ValueError("the operation fails") from cause


class Wrapping(nn.Module):
    """A layer that ends with such an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return told_in_its_own_words(self.linear(x))


def test_an_operation_that_catches_all_errors_does_not_see_a_repetition_end() -> None:
    def make() -> nn.Module:
        return nn.Sequential(*(Wrapping() for _ in range(5)))

    require_trains_equally(make, SAMPLE, stage_options=False)
