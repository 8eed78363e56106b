"""Functions under `torch.compiler.disable`: their operators are part of the model's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from torch_release import IS_TORCH_2_6
from training_conditions import Sample, differences, keeps_in_part, shown, trained

pytestmark = pytest.mark.usefixtures("equal_times")

INPUT = torch.randn(16, 8, 32, generator=torch.Generator().manual_seed(1))
SAMPLE = Sample((INPUT,))
CALLS: list[str] = []
MEANS: list[float] = []


class Block(nn.Module):
    """Nothing in it is disabled."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(x)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        """All that it does."""
        hidden = functional.dropout(functional.gelu(self.up(self.norm(x))), 0.1)
        result: torch.Tensor = x + self.down(hidden)
        return result


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
def mixed(block: Block, x: torch.Tensor) -> torch.Tensor:
    """All that a block does."""
    return block.work(x)


@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # likewise
def mixed_alone(block: Block, x: torch.Tensor) -> torch.Tensor:
    """The same; what it calls is not disabled."""
    return block.work(x)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
def counted(block: Block, x: torch.Tensor) -> torch.Tensor:
    """The same, and it counts its calls."""
    CALLS.append("counted")
    return block.work(x)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
def looked_at(x: torch.Tensor) -> torch.Tensor:
    """What no graph can do: it reads what activations say."""
    MEANS.append(x.detach().mean().item())
    return x


class OfFunction(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = mixed(self, x)
        return result


class OfFunctionAlone(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = mixed_alone(self, x)
        return result


class OfCounter(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = counted(self, x)
        return result


class OfMethod(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.mixed(x)
        return result

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """All that a block does."""
        return self.work(x)


class OfForward(Block):
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(x)


class OfObject(Block):
    def __init__(self) -> None:
        super().__init__()
        disabled: Any = torch.compiler.disable(self.forward)
        self.__dict__["forward"] = disabled


class OfReader(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = looked_at(self.work(x))
        return result


def network(block: type[Block]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(5)), nn.Linear(32, 4)).train()


@pytest.mark.long
@pytest.mark.parametrize(
    "block", [OfFunction, OfFunctionAlone, OfCounter, OfMethod, OfForward, OfObject]
)
def test_what_is_disabled_is_in_the_graph(block: type[Block]) -> None:
    """By blocks, nothing below 90 % of plain training fits: each runs whole, outside of plans."""
    if IS_TORCH_2_6 and block is OfFunctionAlone:
        pytest.skip("torch 2.6 marks the function itself, and no other one is kept")
    planned = chainstay.fit(network(block), (INPUT,), budget="60%", repeats=1)
    assert "by blocks" not in str(shown(planned))
    assert keeps_in_part(planned)
    assert differences(trained(planned, SAMPLE), trained(network(Block), SAMPLE)) == []


@pytest.mark.long
def test_a_disabled_function_counts_its_calls() -> None:
    planned = chainstay.fit(network(OfCounter), (INPUT,), budget="60%", repeats=1)
    CALLS.clear()
    trained(planned, SAMPLE)
    assert len(CALLS) == 3 * 5, "five blocks, three steps"


def test_a_disabled_function_that_reads_activations_goes_by_blocks() -> None:
    planned = chainstay.fit(network(OfReader), (INPUT,), budget="100%", repeats=1)
    assert "by blocks" in str(shown(planned))
    MEANS.clear()
    found = trained(planned, SAMPLE)
    assert len(MEANS) == 3 * 5, "five blocks, three steps"
    assert differences(found, trained(network(Block), SAMPLE)) == []
