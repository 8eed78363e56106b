"""What counts as a chain, where it may be cut, and what is said when it is none."""

from __future__ import annotations

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


def test_repeats_must_be_positive() -> None:
    with pytest.raises(ValueError, match="repeats is 0, must be at least 1"):
        measure(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), repeats=0)
