"""What counts as a chain, where it may be cut, and what is said when it is none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime import measure
from runtime_support import drop_everything
from torch_release import IS_TORCH_2_6

Stage = Callable[[torch.Tensor], torch.Tensor]


def names(model: nn.Sequential | list[Stage], sample: torch.Tensor | None = None) -> list[str]:
    sample = torch.ones(2, 4) if sample is None else sample
    return [stage.name for stage in measure(model, sample, repeats=1).stages]


def test_stages_keep_their_names_and_bare_numbers_get_a_kind() -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 4))
    model.add_module("1", nn.Linear(4, 4))
    assert names(model) == ["first", "Linear1"]
    assert names([nn.Linear(4, 4), torch.sigmoid]) == ["Linear0", "sigmoid1"]


def test_in_place_stage_joins_the_one_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert names(model) == ["Linear0+ReLU1", "Linear2"]


def test_view_joins_the_one_before() -> None:
    model = nn.Sequential(nn.Conv1d(4, 2, 1), nn.Flatten(), nn.Linear(6, 1))
    assert names(model, torch.ones(2, 4, 3)) == ["Conv1d0+Flatten1", "Linear2"]


def test_view_in_front_joins_the_one_after() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 4), nn.Linear(4, 1))
    assert names(model) == ["Flatten0+Identity1+Linear2", "Linear3"]


def test_dropout_is_a_view_only_when_evaluating() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    assert names(model) == ["Linear0", "Dropout1", "Linear2"]
    assert names(model.eval()) == ["Linear0+Dropout1", "Linear2"]


@pytest.mark.parametrize("first", [nn.Identity, nn.Flatten])
def test_a_changed_model_input_is_changed_once(first: Callable[[], nn.Module]) -> None:
    """As in plain training, and the gradients are those of the input as it was."""
    found: list[list[torch.Tensor | None]] = []
    for runs_planned in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(first(), Doubling(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        measured = measure(model, torch.ones(2, 4), repeats=1)
        chain = measured.planned(drop_everything(len(measured.stages) + 1))
        sample = torch.ones(2, 4)
        (chain if runs_planned else model)(sample).sum().backward()
        found.append([sample, *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    changed = found[1][0]
    assert changed is not None
    assert torch.equal(changed, torch.full((2, 4), 2.0))


class Doubling(nn.Module):
    """Changes its input in place."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        return activation.mul_(2)


def test_other_models_are_refused_by_type() -> None:
    with pytest.raises(UnsupportedModelError, match="the model is a Linear, must be a torch"):
        measure(nn.Linear(4, 4), torch.ones(2, 4))  # type: ignore[arg-type]


def test_a_sequential_with_its_own_forward_is_refused() -> None:
    class Scaled(nn.Sequential):
        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            return 2 * activation

    with pytest.raises(UnsupportedModelError, match="Scaled, which replaces Sequential's forward"):
        measure(Scaled(nn.Linear(4, 4)), torch.ones(2, 4))


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no stages"):
        measure([], torch.ones(2, 4))


def test_a_stage_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="stage 0 is an int, must be callable"):
        measure([3], torch.ones(2, 4))  # type: ignore[list-item]


def test_a_stage_that_gives_no_tensor_is_named() -> None:
    model: list[Stage] = [nn.Linear(4, 4), lambda x: (x, x)]  # type: ignore[list-item,return-value]
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(<lambda>1\) returns a tuple"):
        measure(model, torch.ones(2, 4))


def test_stages_that_do_not_fit_are_named_with_the_shape_and_the_cause() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 4))
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(Linear1\).*shape \(2, 3\)") as told:
        measure(model, torch.ones(2, 4))
    assert "[2, 3] X [4, 4]" in str(told.value)
    assert told.value.__cause__ is not None


def test_a_stage_on_another_device_is_named_with_both() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.raises(
        UnsupportedModelError, match=r"stage 1 \(Linear1\).*devices,? cpu(,| and) meta"
    ):
        measure(model, torch.ones(2, 4))


def test_a_sample_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="the sample is a list, must be one tensor"):
        measure(nn.Sequential(nn.Linear(4, 4)), [1.0])  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"loss returns a tensor of shape \(2, 4\)"):
        measure(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), loss=torch.square)


@pytest.mark.parametrize("repeats", [0, 1.5])
def test_repeats_must_be_a_positive_whole_number(repeats: int) -> None:
    with pytest.raises(ValueError, match=f"repeats is {repeats}, must be a whole number"):
        measure(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), repeats=repeats)


def fail_by_key(_: torch.Tensor) -> torch.Tensor:
    raise KeyError("absent")


def fail_by_assertion(_: torch.Tensor) -> torch.Tensor:
    raise AssertionError("never true")


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (fail_by_key, r"KeyError\('absent'\) \(test_runtime_stages.py"),
        (fail_by_assertion, r"AssertionError\('never true'\)"),
    ],
)
def test_whatever_a_stage_or_the_loss_raises_is_told_with_its_name(fail: Stage, text: str) -> None:
    text = f"it raises {'an exception' if IS_TORCH_2_6 else text}"
    with pytest.raises(
        UnsupportedModelError,
        match=rf"stage 1 \({fail.__name__}1\) cannot be traced .*\(2, 4\).*{text}",
    ) as told:
        measure([nn.Linear(4, 4), fail, torch.sigmoid, torch.sigmoid], torch.ones(2, 4))
    assert told.value.__cause__ is not None
    with pytest.raises(UnsupportedModelError, match=rf"the loss cannot be traced .*{text}"):
        measure([nn.Linear(4, 4)], torch.ones(2, 4), loss=fail)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "the loss is an int, must be callable"),
        (nn.MSELoss, "the loss is the class MSELoss, must be a function or an instance"),
        (lambda _: 1.0, r"it returned a float\); it must return one real number"),
        (lambda output: {"a": output.sum(), "b": output.mean()}, "numbers .* add them up"),
        (lambda output: (output.sum(), output.mean()), "numbers .* add them up"),
        (lambda output: output.sum() * 1j, r"shape \(\) and type torch.complex64"),
    ],
)
def test_other_losses_are_refused_by_name(loss: object, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        measure([nn.Linear(4, 4)], torch.ones(2, 4), loss=loss)  # type: ignore[arg-type]


def test_samples_that_cannot_be_measured_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(UnsupportedModelError, match="'meta' device cannot be measured"):
        measure([torch.sigmoid], torch.ones(2, 4, device="meta"))
    with pytest.raises(UnsupportedModelError, match=r"layout is torch.sparse_coo.*to_dense"):
        measure(model, torch.ones(2, 4).to_sparse())
    with torch.inference_mode():
        sample = torch.ones(2, 4)
        with pytest.raises(UnsupportedModelError, match=r"under torch.inference_mode\(\)"):
            measure(model, sample)
    with pytest.raises(UnsupportedModelError, match=r"under torch.inference_mode\(\)"):
        measure(model, sample)


def test_an_integer_output_is_refused_and_a_complex_one_is_not() -> None:
    with pytest.raises(UnsupportedModelError, match=r"output is of type torch.int64.*leave out"):
        measure([nn.Linear(4, 4), lambda x: x.argmax(1)], torch.ones(2, 4))
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64))
    profile = measure(model, torch.ones(2, 4, dtype=torch.complex64), repeats=1).profile
    assert profile.stages[0].output_bytes == 2 * 4 * 8


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda model: model.register_forward_hook(print), "Sequential itself has 1 forward hooks"),
        (lambda model: model.register_forward_pre_hook(print), "1 forward pre-hooks"),
        (lambda model: model.register_full_backward_hook(print), "1 backward hooks"),
        (lambda model: model.register_full_backward_pre_hook(print), "1 backward pre-hooks"),
    ],
)
def test_hooks_on_the_model_itself_are_refused(
    register: Callable[[nn.Module], object], message: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    register(model)
    with pytest.raises(UnsupportedModelError, match=message):
        measure(model, torch.ones(2, 4))


class Counting(nn.Module):
    """Gives another output each time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return activation * self.runs


def test_a_stage_that_counts_its_runs_counts_steps() -> None:
    found: list[list[torch.Tensor | None]] = []
    for runs_planned in (False, True):
        torch.manual_seed(1)
        counting = Counting()
        model = nn.Sequential(nn.Linear(4, 4), counting, nn.Linear(4, 4))
        chain = measure(model, torch.ones(2, 4), repeats=1).planned(drop_everything(4))
        assert counting.runs == 0
        for _ in range(3):
            (chain if runs_planned else model)(torch.ones(2, 4)).sum().backward()
        assert counting.runs == 3
        found.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


def test_a_stage_with_random_numbers_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(<lambda>1\) cannot be traced"):
        measure([nn.Linear(4, 4), lambda x: x * random.SystemRandom().random()], torch.ones(2, 4))


def test_not_a_number_repeats_itself() -> None:
    assert names([nn.Linear(4, 4), lambda x: x.relu() / 0, nn.Dropout()])


def test_a_hidden_module_is_trained() -> None:
    found: list[list[torch.Tensor | None]] = []
    for runs_planned in (False, True):
        torch.manual_seed(1)
        norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def hiding(x: torch.Tensor, norm: nn.Module = norm) -> torch.Tensor:
            return norm(x) + 0  # type: ignore[no-any-return]

        chain = measure([linear, hiding, torch.tanh], torch.rand(2, 4), repeats=1).planned(
            drop_everything(4)
        )
        sample = torch.linspace(-1, 1, 8).reshape(2, 4)
        output = chain(sample) if runs_planned else torch.tanh(hiding(linear(sample)))
        output.square().sum().backward()
        found.append([norm.weight.grad, linear.weight.grad, *norm.buffers()])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


def test_a_loss_may_have_a_module() -> None:
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    assert len(names([linear, lambda x: x @ linear.weight])) == 2
    measure([linear], torch.rand(2, 4), loss=lambda x: norm(x).mean())
    assert norm.num_batches_tracked == 0


def test_stages_without_operators_keep_the_others_names() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4), nn.Linear(4, 4), nn.Identity())
    assert names(model) == ["Identity0+Linear1", "Linear2+Identity3"]
    held: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda _module, _given, output: held.append(output))
    assert names(model) == ["Identity0+Linear1", "Linear2+Identity3"]
