"""Tensors that lie in a stage's input: which ones do, and laying them over another input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime import PlannedChain, measure
from chainstay.runtime.execute.handles import Source
from chainstay.schedule import Schedule

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "turned": lambda x: x.T,
    "reshaped": lambda x: x.unflatten(1, (-1, 2)),
    "a part": lambda x: x[1:, 2:6:2],
    "repeated": lambda x: x[:, :1].expand(-1, 5),
    "as real numbers": torch.view_as_real,
    "as other bits": lambda x: x.view(torch.float64),
    "conjugated": lambda x: x.conj(),
    "conjugated imaginary part": lambda x: x.conj().imag,
    "empty": lambda x: x[:0],
}

OTHER = torch.arange(3)
"""Another tensor of the same state."""


def complex_numbers(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 16, dtype=torch.complex64, generator=generator)


@pytest.mark.parametrize("inner", [lambda x: x, lambda x: x[:, 8:]], ids=["whole", "behind others"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_laid_over_another_input(
    name: str, inner: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    first, second = inner(complex_numbers(1)), inner(complex_numbers(2))
    alias = Source.of((OTHER, first)).alias(VIEWS[name](first))
    assert alias is not None
    rebuilt, expected = alias.over((OTHER, second)), VIEWS[name](second)
    assert torch.equal(rebuilt, expected)
    assert (rebuilt.stride(), rebuilt.dtype) == (expected.stride(), expected.dtype)
    assert (rebuilt.is_conj(), rebuilt.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert rebuilt.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_copies_and_sparse_tensors_lie_elsewhere() -> None:
    activation = torch.eye(4)
    source = Source.of((OTHER, activation))
    assert source.alias(activation.clone()) is None
    assert source.alias(activation + 0) is None
    assert source.alias(activation.to_sparse()) is None


@pytest.mark.parametrize(
    "change", [torch.Tensor.t, lambda x: x[:, :3], lambda x: x.double(), lambda x: x[1:]]
)
def test_an_input_that_lies_otherwise_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    activation = torch.ones(4, 4)
    alias = Source.of((OTHER, activation)).alias(activation[0])
    assert alias is not None
    with pytest.raises(PlanMismatchError, match=r"an input \(4, 4\) torch.float32 .* is \("):
        alias.over((OTHER, change(torch.ones(4, 4))))


def test_steps_along_a_dimension_of_one_say_nothing() -> None:
    """Operators leave them as they like: Whisper's of one sample differ between two runs."""
    activation, again = torch.ones(1, 4), torch.arange(4.0).as_strided((1, 4), (100, 1))
    alias = Source.of((OTHER, activation)).alias(activation[0, 1:])
    assert alias is not None
    assert activation.stride() != again.stride()
    assert alias.over((OTHER, again)).tolist() == [1.0, 2.0, 3.0]


class Turning(nn.Module):
    """Lays its output otherwise once it is armed."""

    is_armed = False

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        return activation.sin().t().contiguous().t() if self.is_armed else activation.sin()


def planned(model: nn.Sequential) -> PlannedChain:
    """The second stage's saved data outlives its input."""
    return measure(model, torch.ones(4, 4), repeats=1).planned(
        Schedule.parse("Fc0 Fa1 Da1 Fa2 Fa3 B3 B2 Fa0 B1 B0")
    )


def test_a_stage_whose_output_lies_otherwise_later_runs_again_as_it_ran() -> None:
    found = []
    for is_armed_later in (False, True):
        torch.manual_seed(1)
        turning = Turning()
        model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), turning), nn.Linear(4, 4), nn.Tanh())
        value = planned(model)(torch.ones(4, 4)).sum()
        turning.is_armed = is_armed_later
        value.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("what", ["output", "weight"])
def test_kept_data_must_not_change(what: str) -> None:
    """Autograd counts changes of what it saved itself; behind hooks the runtime must."""
    held: list[torch.Tensor] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), nn.Tanh())
    model[1].register_forward_hook(lambda _module, _input, output: held.append(output))
    chain = planned(model)
    held.clear()
    value = chain(torch.ones(4, 4)).sum()
    with torch.no_grad():
        (held[0] if what == "output" else model.get_parameter("1.0.weight")).zero_()
    with pytest.raises(PlanMismatchError, match="that stage 1 saved was changed in place"):
        value.backward()
