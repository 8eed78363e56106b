"""What a plan holds for, and what must not change between forward and backward."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.func import functional_call

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime import PlannedChain, measure
from chainstay.schedule import Schedule
from runtime_support import drop_everything


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh()) for _ in "abc"))


def sample() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def planned(model: nn.Sequential) -> PlannedChain:
    return measure(model, sample(), repeats=1).planned(drop_everything(len(model) + 1))


def test_a_plan_holds_for_the_training_flags_it_was_measured_with() -> None:
    model = make_model()
    chain = planned(model)
    model.get_submodule("1.1").eval()
    with pytest.raises(
        PlanMismatchError,
        match=r"measured with the Dropout in stage 1 \(Sequential1\) in training mode, it is in "
        r"evaluation mode; measure and plan again in this mode, or run under torch.no_grad",
    ):
        chain(sample())
    with torch.no_grad():
        assert torch.equal(chain.eval()(sample()), model(sample()))


def test_a_plan_made_while_evaluating_is_none_for_training() -> None:
    chain = planned(make_model().eval())
    chain(sample()).sum().backward()
    chain.train()
    with pytest.raises(PlanMismatchError, match=r"in evaluation mode, it is in training mode"):
        chain(sample())


def test_a_plan_holds_for_the_autocast_it_was_measured_with() -> None:
    chain = planned(make_model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = planned(make_model())
        under_autocast(sample())
        with pytest.raises(PlanMismatchError, match=r"with no autocast, got autocast to torch.bf"):
            chain(sample())
        with torch.no_grad():
            chain(sample())
    with pytest.raises(PlanMismatchError, match=r"to torch.bfloat16 with its cache, got no auto"):
        under_autocast(sample())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        pytest.raises(PlanMismatchError, match=r"to torch.bfloat16 without its cache"),
    ):
        under_autocast(sample())


def test_a_changed_input_is_noticed() -> None:
    model = make_model()
    batch = sample()
    value = planned(model)(batch).sum()
    batch.zero_()
    with pytest.raises(
        PlanMismatchError, match="the input was changed in place between forward and b"
    ):
        value.backward()


def test_a_changed_checkpoint_is_noticed() -> None:
    model = make_model()
    held: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda _module, _input, output: held.append(output))
    chain = measure(model, sample(), repeats=1).planned(
        Schedule.parse("Fa0 Fc1 Fn2 Fa3 B3 Fc1 Fa2 B2 Fa1 B1 B0")
    )
    held.clear()
    value = chain(sample()).sum()
    with torch.no_grad():
        held[0].zero_()
    with pytest.raises(PlanMismatchError, match="the input of stage 1 was changed in place"):
        value.backward()


def test_a_changed_weight_is_noticed() -> None:
    model = make_model()
    value = planned(model)(sample()).sum()
    with torch.no_grad():
        model.get_parameter("1.0.weight").zero_()
    with pytest.raises(
        PlanMismatchError,
        match=r"1.0.weight was changed in place .* stage Sequential1 needs it again; change a cl",
    ):
        value.backward()


def replace_weight(model: nn.Sequential) -> None:
    model.get_submodule("1.0").weight = nn.Parameter(torch.ones(8, 8))


def switch(model: nn.Sequential) -> None:
    model[1].eval()


@pytest.mark.parametrize("change", [replace_weight, switch])
def test_what_is_changed_after_the_forward_does_not_matter(
    change: Callable[[nn.Sequential], None],
) -> None:
    """As in plain training: the graph has the weights and modes of its forward."""
    found = []
    for runs_planned in (False, True):
        model = make_model()
        forward = planned(model) if runs_planned else model
        weights = list(model.parameters())
        torch.manual_seed(3)
        value = forward(sample()).sum()
        change(model)
        value.backward()
        found.append([weight.grad for weight in weights])
    require_equal(*found)


def require_equal(ours: Sequence[object], theirs: Sequence[object]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, torch.Tensor)
        assert isinstance(other, torch.Tensor)
        assert torch.equal(one, other)


def test_a_replaced_weight_is_trained() -> None:
    """The plan holds for another parameter that is alike; plain training would take it, too."""
    found = []
    for runs_planned in (False, True):
        model = make_model()
        forward = planned(model) if runs_planned else model
        torch.manual_seed(3)
        forward(sample()).sum().backward()
        replace_weight(model)
        forward(sample()).sum().backward()
        found.append([weight.grad for weight in model.parameters()])
    require_equal(*found)


def test_a_constant_buffer_must_not_change_either() -> None:
    norm = nn.BatchNorm1d(8).eval()
    model = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8))
    value = planned(model)(sample()).sum()
    assert norm.running_mean is not None
    norm.running_mean += 1
    with pytest.raises(PlanMismatchError, match=r"1.running_mean was changed in place between"):
        value.backward()


def test_parameters_swapped_for_the_forward_only_get_their_gradients() -> None:
    found = []
    for runs_planned in (False, True):
        model = make_model().eval()
        forward = planned(model) if runs_planned else model
        others = {
            name: torch.full_like(parameter, 0.1).requires_grad_()
            for name, parameter in model.named_parameters()
        }
        functional_call(forward, others, (sample(),)).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        found.append([parameter.grad for parameter in others.values()])
    require_equal(*found)


def test_other_parameters_that_want_gradients_are_another_plan() -> None:
    model = make_model()
    chain = planned(model)
    model[0].requires_grad_(requires_grad=False)
    with pytest.raises(PlanMismatchError, match="which of them require gradients, too"):
        chain(sample())
    with pytest.raises(PlanMismatchError, match=r"on cpu that requires a gradient; measure"):
        chain(sample().requires_grad_())


def test_a_replaced_or_added_stage_is_noticed() -> None:
    chain = planned(make_model())
    copied = copy.deepcopy(chain)
    copied(sample())
    setattr(chain, "1", nn.Identity())
    copied.add_module("extra", nn.Identity())
    with pytest.raises(PlanMismatchError, match="a stage was replaced, or its parameters"):
        chain(sample())
    with torch.no_grad(), pytest.raises(PlanMismatchError, match="module extra was added to"):
        copied(sample())
    del copied.extra, copied._modules["1"]
    with pytest.raises(PlanMismatchError, match="module 1 was removed from the planned chain"):
        copied(sample())


def test_a_function_wants_gradients_beside_a_frozen_module() -> None:
    weight = torch.ones(8, requires_grad=True)
    frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)
    chain = measure([frozen, lambda x: (x * weight).exp()], sample(), repeats=1).planned(
        drop_everything(3)
    )
    with pytest.raises(PlanMismatchError, match=r"got \(5, 8\)"):
        chain(torch.ones(5, 8))


def test_other_inputs_and_plans_are_refused_by_type() -> None:
    measured = measure(make_model(), sample(), repeats=1)
    with pytest.raises(PlanMismatchError, match="the plan is a str, must be a Schedule"):
        measured.planned("50%")  # type: ignore[arg-type]
    chain = measured.planned(Schedule.keep_all(4))
    with pytest.raises(PlanMismatchError, match=r"the input is a list, must be one tensor \(4, 8"):
        chain([1, 2])
    with torch.inference_mode():
        batch = sample()
    with pytest.raises(PlanMismatchError, match=r"made under torch.inference_mode\(\)"):
        chain(batch)


def test_a_stage_named_like_an_attribute_is_refused() -> None:
    model = nn.Sequential(OrderedDict(_executor=nn.Linear(8, 8)))
    with pytest.raises(
        UnsupportedModelError, match="stage '_executor' has the name of an attribute"
    ):
        measure(model, sample(), repeats=1).planned(Schedule.keep_all(2))


def test_the_training_flag_is_the_models() -> None:
    model = make_model()
    model.training = False
    assert not planned(model).training
    model.training = True
    assert planned(model.eval().train()).training
    assert (
        not measure(list(model.eval()), sample(), repeats=1).planned(Schedule.keep_all(4)).training
    )
