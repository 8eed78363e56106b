"""Models that read numbers from their arguments, such as the length of the longest sequence."""

from __future__ import annotations

import copy
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import nn

from chainstay import fit
from chainstay.runtime.capture.dynamo import MOST_GRAPHS_BY_VALUES
from torch_release import IS_TORCH_2_6

ROWS, LENGTH, WIDTH = 3, 8, 16


class Layers(nn.Module):
    """Layers behind what a model `reads` of sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[:, : lengths.max().item()]

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.reads(self.embedding(x), lengths)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


class ByInt(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        halves = ((lengths / 2).floor() + 1).long()
        return x[:, : int(halves.max())]


class ByTensor(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest: Any = lengths.max()
        return x[:, :longest] * (torch.arange(longest) < lengths[:, None])[..., None]


class ByList(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.cat([row[:length] for row, length in zip(x, lengths.tolist(), strict=True)])


class ByRange(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        shortest: Any = lengths.min()
        for i in range(shortest):
            x = x + self.layers[i % 6](x).sigmoid()
        return x


class ByTruth(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x.relu() if (lengths - 2)[0] else x


class ByMask(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(LENGTH) < lengths[:, None]]


class ByMaskOfRows(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        is_read = lengths > 2
        is_read[0] |= ~is_read.any()
        return x[is_read, 1:]


class ByRepetition(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, lengths, dim=0)


class ByLast(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.stack([row[length - 1] for row, length in zip(x, lengths, strict=True)])


class ByGroups(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        groups = [list(group) for _, group in groupby(lengths.tolist(), lambda length: length > 2)]
        return torch.cat([x[: len(group)] for group in groups])


class ByActivations(Layers):
    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[: int((x.sum((1, 2)) > -1000).sum()), : lengths.max()]


class Counting(Layers):
    """It changes the numbers that it reads."""

    def reads(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        lengths[1:].clamp_(max=4)
        return super().reads(x, lengths)


def trained(model: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    """Return the loss of a step and all gradients."""
    model.zero_grad()
    loss = model(x, lengths).square().mean()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def pair(kind: type[nn.Module], budget: float | str) -> tuple[nn.Module, nn.Module]:
    """Return a model and one that is planned."""
    torch.manual_seed(0)
    plain = kind()
    return plain, fit(copy.deepcopy(plain), budget=budget, repeats=1)


def require_equal(
    plain: nn.Module, planned: nn.Module, lengths: list[int], columns: int = LENGTH
) -> None:
    """Require that a step gives equal numbers, and leaves equal lengths."""
    x = torch.randn(ROWS, columns, WIDTH)
    own, others = torch.tensor(lengths), torch.tensor(lengths)
    assert all(map(torch.equal, trained(planned, x, own), trained(plain, x, others)))
    assert torch.equal(own, others)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            ByTensor,
            marks=pytest.mark.skipif(IS_TORCH_2_6, reason="torch 2.6 traces no slices by tensors"),
        ),
        *(Layers, ByInt, ByList, ByRange, ByTruth),
        *(ByMask, ByMaskOfRows, ByRepetition, ByLast, ByGroups),
    ],
)
def test_other_numbers_are_another_graph(kind: type[nn.Module]) -> None:
    plain, planned = pair(kind, 0.95)
    for lengths in ([3, 5, 2], [5, 1, 2], [2, 2, 2], [3, 5, 2], [5, 1, 2]):
        require_equal(plain, planned, lengths)
    told: Any = planned.chainstay
    assert "by blocks" not in str(told)


@pytest.mark.parametrize("kind", [ByActivations, Counting])
def test_what_is_no_number_of_the_arguments_goes_by_blocks(kind: type[nn.Module]) -> None:
    plain, planned = pair(kind, 1.0)
    for lengths in ([3, 5, 2], [5, 1, 2], [3, 5, 2]):
        require_equal(plain, planned, lengths)
    assert "by blocks" in str(planned.chainstay)


def test_the_longest_of_other_lengths_is_the_same_graph() -> None:
    plain, planned = pair(Layers, 0.95)
    for lengths in ([3, 5, 2], [5, 1, 2], [4, 4, 5], [2, 3, 5], [5, 5, 5], [1, 5, 4]):
        require_equal(plain, planned, lengths)
    told: Any = planned.chainstay
    assert len(told.plans) == 1
    assert "by blocks" not in str(told)


@pytest.mark.long
def test_numbers_that_always_differ_are_few_graphs_in_calls_of_all_shapes() -> None:
    plain, planned = pair(ByList, "1MiB")
    for call in range(MOST_GRAPHS_BY_VALUES + 3):
        assert "by blocks" not in str(planned.chainstay)
        require_equal(plain, planned, [call // 2 + 1, 2, 2], LENGTH + call % 2)
    assert "differ from call to call" in str(planned.chainstay)
