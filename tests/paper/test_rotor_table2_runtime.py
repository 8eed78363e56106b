"""The toy of [BEHJS24], Table 2, on real layers: six linear layers have exactly its sizes.

A batch of 1,000 rows of 2,000, 2,500, 2,800, 2,900, 2,800, 2,500 and 2,000 floats takes the 7.63,
9.54, 10.68, 11.06, 10.68, 9.54 and 7.63 MB of the table. With a tenth of the rows and of the
columns all sizes, weights included, are a hundredth: as exact, and quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay import ChainProfile, Schedule, simulate
from chainstay.runtime import MeasuredChain, measure, trace_memory
from golden_chains import GOLDEN

(TOY,) = (chain for chain in GOLDEN if chain.name == "table2@9000")
WIDTHS = (2_000, 2_500, 2_800, 2_900, 2_800, 2_500, 2_000)
ROWS = 1_000
UNIT = 2**20 / 100  # the table's MB are MiB, with two digits
MAKESPANS = {"table1": 4_742, "free": 4_278}


class Diary(TorchDispatchMode):
    """Notes the runs of all stages, the loss's included, in the order in which they happen.

    A layer's forward multiplies by a transposed view of its weight, and its backward makes the
    weight's gradient from two matrices whose inner size is the number of rows.
    """

    def __init__(self, rows: int, widths: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.entries: list[str] = []
        self.rows = rows
        self.layers = list(pairwise(widths))

    def __torch_dispatch__(  # torch's own name
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        last = len(self.layers)
        if func is torch.ops.aten.dot.default:
            self.entries.append(f"F{last}")
        elif func is torch.ops.aten.mul.Tensor:
            self.entries.append(f"B{last}")
        elif func is torch.ops.aten.mm.default:
            left, right = args
            if left.shape[1] == self.rows:
                self.entries.append(f"B{self.layers.index((right.shape[1], left.shape[0]))}")
            elif not right.is_contiguous():
                self.entries.append(f"F{self.layers.index(tuple(right.shape))}")
        return func(*args, **(kwargs or {}))


@dataclass
class Toy:
    """The network of Table 2, `scale` times smaller in both directions."""

    scale: int
    device: str
    targets: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        size = ROWS * WIDTHS[-1] // self.scale**2
        self.targets = torch.linspace(-1, 1, size, device=self.device)

    def model(self) -> nn.Sequential:
        torch.manual_seed(0)
        widths = [width // self.scale for width in WIDTHS]
        layers = (nn.Linear(*ends, bias=False) for ends in pairwise(widths))
        return nn.Sequential(*layers).to(self.device)

    def batch(self) -> torch.Tensor:
        torch.manual_seed(1)
        shape = (ROWS // self.scale, WIDTHS[0] // self.scale)
        return torch.randn(shape, device=self.device).requires_grad_()

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.flatten().dot(self.targets)

    def units(self, size: int) -> float:
        """A measured size in those of the table."""
        return size * self.scale**2 / UNIT

    def measured(self, model: nn.Sequential) -> MeasuredChain:
        return measure(model, self.batch(), loss=self.loss, repeats=1)


def schedule_of(discards: str) -> Schedule:
    schedule = TOY.schedules[discards]
    assert schedule is not None
    return schedule


def gradients(toy: Toy, model: nn.Module) -> list[torch.Tensor]:
    """Of the loss, for the loss itself, all parameters and the input."""
    model.zero_grad()
    batch = toy.batch()
    value = toy.loss(model(batch))
    value.backward()
    found = [value.detach(), batch.grad, *(parameter.grad for parameter in model.parameters())]
    return [tensor.clone() for tensor in found if tensor is not None]


def peak(toy: Toy, planned: nn.Module) -> int:
    """Of a whole step, gradients allocated before, the batch included."""
    batch = toy.batch()
    for leaf in (batch, *planned.parameters()):
        leaf.grad = torch.zeros_like(leaf)

    def step() -> None:
        toy.loss(planned(batch)).backward()

    step()
    return trace_memory(step, toy.device).peak_bytes + batch.nbytes


def runs(schedule: Schedule) -> list[str]:
    """The runs of a schedule; a layer that is run again only keeps its input for its backward."""
    found = [
        f"{'F' if op.kind.is_forward else 'B'}{op.stage}"
        for op in schedule
        if op.kind.is_computation
    ]
    first = found.index(f"B{len(WIDTHS) - 1}")
    again = zip(found[first:], found[first + 1 :], strict=False)
    return (
        found[:first]
        + [run for run, after in again if after != run.replace("F", "B") or run[0] == "B"]
        + found[-1:]
    )


DEVICES = pytest.mark.parametrize(
    "toy",
    [
        pytest.param(lambda: Toy(10, "cpu"), id="a hundredth on the CPU"),
        pytest.param(
            lambda: Toy(1, "cuda"),
            id="full size on CUDA",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
Make = Callable[[], Toy]


@pytest.mark.parametrize("discards", MAKESPANS)
def test_the_schedules_take_what_they_should(discards: str) -> None:
    replay = simulate(TOY.profile, schedule_of(discards), discards=discards)
    assert (replay.makespan, replay.peak_bytes <= 9_000) == (MAKESPANS[discards], True)


def test_the_layers_are_those_of_the_table() -> None:
    toy = Toy(10, "cpu")
    profile: ChainProfile = toy.measured(toy.model()).profile
    for real, printed in zip(profile.stages, TOY.profile.stages, strict=True):
        assert toy.units(real.output_bytes) == pytest.approx(printed.output_bytes, abs=0.5)
        assert toy.units(real.saved_bytes) == pytest.approx(printed.saved_bytes, abs=2.5)
        assert toy.units(real.gradient_bytes) == pytest.approx(printed.gradient_bytes, abs=0.5)


@DEVICES
@pytest.mark.parametrize("discards", MAKESPANS)
def test_gradients_are_equal_and_runs_as_planned(toy: Make, discards: str) -> None:
    network = toy()
    model, schedule = network.model(), schedule_of(discards)
    planned = network.measured(model).planned(schedule)
    expected = gradients(network, model)
    with Diary(ROWS // network.scale, [width // network.scale for width in WIDTHS]) as diary:
        found = gradients(network, planned)
    assert len(found) == len(expected) == 8
    assert all(map(torch.equal, found, expected))
    assert diary.entries == runs(schedule)


@DEVICES
@pytest.mark.parametrize("discards", MAKESPANS)
def test_the_peak_is_within_the_prediction(toy: Make, discards: str) -> None:
    network = toy()
    measured = network.measured(network.model())
    found = peak(network, measured.planned(schedule_of(discards)))
    predicted = simulate(measured.profile, schedule_of(discards), discards=discards).peak_bytes
    assert found <= predicted


@pytest.mark.parametrize("discards", MAKESPANS)
def test_the_budget_of_90_mb_is_kept(discards: str) -> None:
    toy = Toy(10, "cpu")
    planned = toy.measured(toy.model()).planned(schedule_of(discards))
    assert toy.units(peak(toy, planned)) <= 9_000
