"""What counts as a chain, where it may be cut, and what is said when it is none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime import measure

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


def test_a_changed_model_input_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"stage 0 \(ReLU0\).*use inplace=False"):
        measure(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), torch.ones(2, 4))


def test_a_changed_view_of_the_model_input_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True))
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(ReLU1\).*use inplace=False"):
        measure(model, torch.ones(2, 4))


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
    with pytest.raises(UnsupportedModelError, match="stage 0 is a int, must be callable"):
        measure([3], torch.ones(2, 4))  # type: ignore[list-item]


def test_a_stage_that_gives_no_tensor_is_named() -> None:
    model: list[Stage] = [nn.Linear(4, 4), lambda x: (x, x)]  # type: ignore[list-item,return-value]
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(<lambda>1\) returns a tuple"):
        measure(model, torch.ones(2, 4))


def test_stages_that_do_not_fit_are_named_with_the_shape_and_the_cause() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 4))
    with pytest.raises(UnsupportedModelError, match=r"stage 1 \(Linear1\).*shape \(2, 3\)") as told:
        measure(model, torch.ones(2, 4))
    assert isinstance(told.value.__cause__, RuntimeError)


def test_a_sample_on_another_device_is_refused_with_both() -> None:
    with pytest.raises(UnsupportedModelError, match=r"sample is on meta.*buffers on cpu"):
        measure(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4, device="meta"))


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
    ("fail", "cause", "text"),
    [
        (fail_by_key, KeyError, "KeyError: 'absent'"),
        (fail_by_assertion, AssertionError, "AssertionError: never true"),
    ],
)
def test_whatever_a_stage_or_the_loss_raises_is_told_with_its_name(
    fail: Stage, cause: type[Exception], text: str
) -> None:
    with pytest.raises(
        UnsupportedModelError, match=rf"stage 1 \({fail.__name__}1\).*{text}"
    ) as told:
        measure([nn.Linear(4, 4), fail], torch.ones(2, 4))
    assert isinstance(told.value.__cause__, cause)
    with pytest.raises(UnsupportedModelError, match=rf"the loss fails .*\(2, 4\).*{text}") as told:
        measure([nn.Linear(4, 4)], torch.ones(2, 4), loss=fail)
    assert isinstance(told.value.__cause__, cause)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3, "the loss is a int, must be callable"),
        (nn.MSELoss, "the loss is the class MSELoss, must be a function or an instance"),
        (lambda _: 1.0, "the loss returns a float, must return one tensor; reduce it"),
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


@pytest.mark.parametrize("stage", [Counting, lambda: lambda x: x * random.SystemRandom().random()])
def test_a_stage_that_does_not_repeat_itself_is_refused(stage: Callable[[], Stage]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"stage .*1 gives another output when it"):
        measure([nn.Linear(4, 4), stage()], torch.ones(2, 4))


def test_not_a_number_repeats_itself() -> None:
    assert names([nn.Linear(4, 4), lambda x: x.relu() / 0, nn.Dropout()])


def test_a_hidden_module_is_refused_and_one_that_the_chain_knows_is_not() -> None:
    norm = nn.BatchNorm1d(4)
    with pytest.raises(UnsupportedModelError, match=r"<lambda>1 uses parameters .* shape \(4,\)"):
        measure([nn.Linear(4, 4), lambda x: norm(x) + 0], torch.rand(2, 4))
    linear = nn.Linear(4, 4)
    assert len(names([linear, lambda x: x @ linear.weight])) == 2
    measure([linear], torch.rand(2, 4), loss=lambda x: norm(x).mean())
