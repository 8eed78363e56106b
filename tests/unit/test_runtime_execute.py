"""A planned model behaves like the model in everything that autograd offers."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from chainstay.errors import PlanMismatchError
from chainstay.runtime import PlannedChain, measure, trace_memory
from chainstay.runtime.execute.liveness import Shape, plan_execution
from chainstay.runtime.execute.recompute import Run
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import fused
from chainstay.schedule import Schedule
from runtime_support import (
    drop_everything,
    random_persistent,
    segments,
    stages_of,
    train,
    without_inputs,
)

SCHEDULES = {
    "keep all": Schedule.keep_all(7),
    "segments": segments(7, 3),
    "random": random_persistent(7, 3, keep=0.2),
    "drop everything": drop_everything(7),
    "discards": Schedule.parse(
        "Fa0 Fa1 Fc2 Db1 Fn3 Fn4 Fn5 Fa6 B6 Fc1 Fc2 Fc3 Fc4 Da3 Fa5 B5 Fa4 B4 Fc2 Fa3 B3 Fa2 B2 "
        "Fa1 B1 B0"
    ),
    "free": Schedule.parse(
        "Fc0 Fa1 Fa2 Db1 Fa3 Fa4 Da1 Fa5 Fa6 B6 B5 B4 B3 Fc0 Fa1 Da1 B2 Fa0 B1 B0"
    ),
    "inputs gone": without_inputs(7),
}


class Block(nn.Module):
    """Something that draws random numbers, changes and reads buffers, and works in place."""

    runs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))
        self.body = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3)
        )

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        total: torch.Tensor = activation + self.body(activation) / (1 + self.runs)
        return total


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(6)))


def sample(*, requires_grad: bool = False) -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_(requires_grad)


def square(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def planned(model: nn.Sequential, name: str, batch: torch.Tensor | None = None) -> PlannedChain:
    batch = sample() if batch is None else batch
    return measure(model, batch, loss=square, repeats=1).planned(SCHEDULES[name])


Use = Callable[[nn.Module], list[torch.Tensor | None]]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def backward(value: torch.Tensor, *, retain_graph: bool = False) -> None:
    value.backward(retain_graph=retain_graph)


def use_backward_twice(model: nn.Module) -> list[torch.Tensor | None]:
    value = square(model(sample()))
    backward(value, retain_graph=True)
    backward(value)
    return gradients(model)


def use_accumulation(model: nn.Module) -> list[torch.Tensor | None]:
    for factor in (1, 2, 3):
        backward(square(model(factor * sample())))
    return gradients(model)


def use_two_forwards_before_backward(model: nn.Module) -> list[torch.Tensor | None]:
    first, second = square(model(sample())), square(model(2 * sample()))
    backward(first)
    backward(second)
    return gradients(model)


def use_autograd_grad(model: nn.Module) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(square(model(sample())), list(model.parameters())))


def use_grad_of_some_then_others(model: nn.Module) -> list[torch.Tensor | None]:
    value, parameters = square(model(sample())), list(model.parameters())
    late = torch.autograd.grad(value, parameters[-4:], retain_graph=True)
    return [*late, *torch.autograd.grad(value, parameters[:4])]


def use_second_derivative(model: nn.Module) -> list[torch.Tensor | None]:
    batch = sample(requires_grad=True)
    (slope,) = torch.autograd.grad(square(model(batch)), batch, create_graph=True)
    backward(slope.square().sum())
    return [*gradients(model), batch.grad]


def use_input_gradient(model: nn.Module) -> list[torch.Tensor | None]:
    batch = sample(requires_grad=True)
    backward(square(model(batch)))
    return [*gradients(model), batch.grad]


def use_another_probability(model: nn.Module) -> list[torch.Tensor | None]:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
    backward(square(model(sample())))
    return gradients(model)


def use_evaluation_between(model: nn.Module) -> list[torch.Tensor | None]:
    backward(square(model(sample())))
    model.eval()
    with torch.no_grad():
        model(torch.ones(3, 8))
    model.train()
    backward(square(model(sample())))
    return gradients(model)


def use_frozen_front(model: nn.Module) -> list[torch.Tensor | None]:
    freeze_front(model)
    backward(square(model(sample())))
    return gradients(model)


def freeze_front(model: nn.Module) -> None:
    for parameter in list(model.parameters())[:8]:
        parameter.requires_grad = False


USES: list[Use] = [
    use_backward_twice,
    use_accumulation,
    use_two_forwards_before_backward,
    use_autograd_grad,
    use_grad_of_some_then_others,
    use_second_derivative,
    use_input_gradient,
    use_another_probability,
    use_evaluation_between,
    use_frozen_front,
]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("use", USES)
def test_every_use_gives_the_same_bits(use: Use, name: str) -> None:
    """The plan is for such a use: which gradients are wanted is part of what was measured."""
    plain, model = make_model(), make_model()
    if use is use_frozen_front:
        freeze_front(model)
    batch = sample(requires_grad=use in (use_input_gradient, use_second_derivative))
    require_same(use, plain, model, planned(model, name, batch))


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
def test_planned_in_another_mode_it_gives_the_same_bits_there(name: str) -> None:
    def use_autocast(model: nn.Module) -> list[torch.Tensor | None]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = square(model(sample()))
        backward(value)
        return gradients(model)

    plain, model = make_model(), make_model()
    for module in (plain, model):
        module.eval()
        module[3].train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = planned(model, name)
    require_same(use_autocast, plain, model, other)


def require_same(use: Use, plain: nn.Module, model: nn.Module, other: PlannedChain) -> None:
    torch.manual_seed(5)
    expected = use(plain)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    found = use(other)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or theirs is None or torch.equal(ours, theirs)
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_forward_without_backward_leaves_nothing(name: str) -> None:
    model = planned(make_model(), name)
    batch = sample()

    def run_twice() -> None:
        held = [model(batch), model(batch)]
        assert len(held) == 2

    # No garbage is collected during a trace: cycles would be seen.
    assert trace_memory(partial(model, batch), "cpu").end_bytes > 0
    assert trace_memory(run_twice, "cpu").end_bytes == 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_after_backward_a_held_loss_holds_nothing_else(name: str) -> None:
    model = planned(make_model(), name)
    batch = sample()
    backward(square(model(batch)))

    def step() -> torch.Tensor:
        value = square(model(batch))
        backward(value)
        return value

    assert trace_memory(step, "cpu").end_bytes == 4


def test_a_stage_may_checkpoint_inside() -> None:
    class Inner(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = checkpoint(self.block, activation, use_reentrant=False)
            return output

    def make() -> nn.Sequential:
        torch.manual_seed(1)
        blocks = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3)) for _ in range(6))
        return nn.Sequential(*map(Inner, blocks))

    plain, model = make(), make()
    chain = planned(model, "random")
    assert train(chain, sample(), square).differences(train(plain, sample(), square)) == []


@pytest.mark.long
def test_compiling_around_it_changes_nothing() -> None:
    plain, model = make_model(), make_model()
    chain = planned(model, "random")
    compiled = torch.compile(chain, backend="eager")
    torch.manual_seed(5)
    backward(square(plain(sample())))
    torch.manual_seed(5)
    backward(square(compiled(sample())))
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


def test_parameters_buffers_and_names_are_the_models_own() -> None:
    model = make_model()
    chain = planned(model, "segments")
    assert list(chain.state_dict()) == list(model.state_dict())
    for ours, theirs in zip(chain.parameters(), model.parameters(), strict=True):
        assert ours is theirs


def test_list_is_named_like_a_sequential() -> None:
    blocks = list(make_model())
    chain = measure(blocks, sample(), repeats=1).planned(SCHEDULES["segments"])
    assert list(chain.state_dict()) == list(make_model().state_dict())


def test_functions_may_be_stages() -> None:
    weight = torch.ones(8, requires_grad=True)
    stages: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda x: x * weight, torch.sigmoid]
    chain = measure(stages, sample(), repeats=1).planned(drop_everything(3))
    backward(square(chain(sample())))
    found, weight.grad = weight.grad, None
    backward(square(torch.sigmoid(sample() * weight)))
    assert found is not None
    assert weight.grad is not None
    assert torch.equal(found, weight.grad)


def test_without_gradients_it_runs_plainly_on_any_input() -> None:
    chain = planned(make_model(), "segments").eval()
    plain = make_model().eval()
    with torch.no_grad():
        assert torch.equal(chain(torch.ones(9, 8)), plain(torch.ones(9, 8)))
    chain.requires_grad_(requires_grad=False)
    assert torch.equal(chain(torch.ones(9, 8)), plain(torch.ones(9, 8)))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.ones(5, 8), r"input \(4, 8\) torch.float32 on cpu, got \(5, 8\)"),
        (torch.ones(4, 8, dtype=torch.float64), r"got \(4, 8\) torch.float64"),
    ],
)
def test_other_inputs_are_refused(batch: torch.Tensor, message: str) -> None:
    with pytest.raises(PlanMismatchError, match=message):
        planned(make_model(), "segments")(batch)


@pytest.mark.parametrize("stages", [6, 8])
def test_plan_for_another_model_is_refused(stages: int) -> None:
    measured = measure(make_model(), sample(), repeats=1)
    with pytest.raises(PlanMismatchError, match=f"for {stages} stages, the model has 7"):
        measured.planned(Schedule.keep_all(stages))


def test_backward_twice_without_retaining_is_refused_as_usual() -> None:
    value = square(planned(make_model(), "segments")(sample()))
    backward(value)
    with pytest.raises(RuntimeError, match="second time"):
        backward(value)


class Changing(nn.Module):
    """Would save another tensor when it is armed, or one tensor less."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.armed = False

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        if self.armed and self.change == "less":
            return activation + 1
        if self.armed and self.change == "other":
            return activation.double().exp().float()
        return activation.exp()


@pytest.mark.parametrize("change", ["less", "other"])
def test_a_stage_that_changes_its_mind_runs_again_as_it_ran(change: str) -> None:
    found = []
    for is_armed in (False, True):
        torch.manual_seed(1)
        changing = Changing(change)
        model = nn.Sequential(nn.Linear(8, 8), changing, nn.Linear(8, 8))
        chain = measure(model, sample(), repeats=1).planned(drop_everything(4))
        value = square(chain(sample()))
        changing.armed = is_armed
        backward(value)
        found.append(gradients(model))
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    with pytest.raises(PlanMismatchError, match="computes something else than when it was meas"):
        chain(sample())


@pytest.mark.long
def test_copies_are_independent() -> None:
    chain = planned(make_model(), "segments")
    copied = copy.deepcopy(chain)
    backward(square(copied(sample())))
    assert all(gradient is None for gradient in gradients(chain))
    assert all(gradient is not None for gradient in gradients(copied))


def test_a_stage_run_again_stops_when_nobody_needs_the_rest() -> None:
    class Chatty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ends = 0

        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            saved = activation.sin()  # the last operation whose saved data is needed
            self.ends += 1
            activation.cos()  # saves something, too, in a graph that nobody can reach
            return saved + 1

    chatty = Chatty()
    model = nn.Sequential(nn.Linear(8, 8), chatty, nn.Linear(8, 8))
    chain = measure(model, sample(), repeats=1).planned(
        Schedule.parse("Fa0 Fc1 Fa2 Fa3 B3 B2 Fa1 B1 B0")
    )
    chatty.ends = 0
    backward(square(chain(sample())))
    assert chatty.ends == 1


class CountingLayers(TorchDispatchMode):
    """Counts runs of linear layers by the width of their output."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.runs: Counter[int] = Counter()

    def __torch_dispatch__(  # torch's own name
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.addmm.default:
            self.runs[args[2].shape[1]] += 1
        return func(*args, **(kwargs or {}))


def test_kept_stages_run_once_and_dropped_ones_as_planned() -> None:
    layers = (nn.Sequential(nn.Linear(8 + n, 9 + n), nn.Tanh()) for n in range(6))
    chain = planned(nn.Sequential(*layers), "segments")
    counting = CountingLayers()
    with counting:
        backward(square(chain(sample())))
    assert [counting.runs[9 + n] for n in range(6)] == [2, 2, 2, 2, 2, 1]


def test_what_stages_kept_as_one_hand_on_is_let_go_of() -> None:
    """As soon as a part of the next one has read it: so it was when they were measured."""
    handed: list[weakref.ref[torch.Tensor]] = []

    def first(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        handed.append(weakref.ref(made))
        return made

    def last(x: torch.Tensor) -> torch.Tensor:
        assert handed[-1]() is None
        return x * 2

    one, other, third = stages_of(first, torch.tanh, last)
    stages = (one, fused([other, third]))
    assert fused(stages)((torch.ones(2),))
    plan = plan_execution(Schedule.keep_all(3), Shape(2))
    chain = Chain(stages=stages, device=torch.device("cpu"), names=(), effects=())
    run = Run(chain, plan, (), pending=1)
    assert run._run(replace(plan.forward[0], span=2), (torch.ones(2),), ())
