"""Numbers that calls are given: sizes that depend on them, and what a graph has as constants."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.fitting import blocks
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.dynamo import GraphCapture
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.blocks.block_costs import find_blocks
from twins import Stack, batch, peak_of, shown
from zoo import loss_of

X = batch(16, 16)


Decided = Callable[[torch.Tensor, Any], torch.Tensor]


class Given(nn.Module):
    """Layers around something that a number decides."""

    def __init__(self, decided: Decided) -> None:
        super().__init__()
        self.decided = decided
        self.before, self.behind = Stack(), Stack()

    def forward(self, x: torch.Tensor, number: float) -> torch.Tensor:
        y: torch.Tensor = self.behind(self.decided(self.before(x), number))
        return y


def several_times(x: torch.Tensor, number: int) -> torch.Tensor:
    """As many samples of every row, as evidence bounds take them."""
    return x.repeat(2 * number, 1)


def a_share_of_times(x: torch.Tensor, number: float) -> torch.Tensor:
    """The same by a fraction."""
    return x.repeat(int(number * 4), 1)


def more_in_later_steps(x: torch.Tensor, number: int) -> torch.Tensor:
    """The same by a count of steps, which seldom changes any size."""
    return x.repeat(1 + number // 4, 1)


def added(x: torch.Tensor, rows: Any) -> torch.Tensor:
    """Tensors of any number of rows, in an object."""
    total: torch.Tensor = rows.number.sum(0)
    return x + total


def by_the_environment(x: torch.Tensor, number: int) -> torch.Tensor:
    """A switch for experiments, read where TorchDynamo guards nothing."""
    del number
    return x * int(os.getenv("CHAINSTAY_TEST_SCALE", "1"))


def without_gradients(x: torch.Tensor, number: int) -> torch.Tensor:
    """Gradients are taken in the last of some rounds only."""
    with torch.set_grad_enabled(number < 9):
        return x * 2


def with_dropout(x: torch.Tensor, number: int) -> torch.Tensor:
    """Dropout begins after some steps."""
    return nn.functional.dropout(x, 0.1, training=number > 2)


def step_results(model: nn.Module, number: Any) -> list[torch.Tensor]:
    """The loss of a step, its gradients and the random state."""
    model.zero_grad()
    torch.manual_seed(0)
    loss = loss_of(model(X, number))
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]  # all have one
    return [loss.detach(), *gradients, torch.get_rng_state()]


@pytest.mark.parametrize(("decided", "unit"), [(several_times, 1), (a_share_of_times, 0.5)])
def test_sizes_that_depend_on_a_number_are_planned_for_each_number_once(
    decided: Decided, unit: float
) -> None:
    plain = Given(decided)
    model = chainstay.fit(copy.deepcopy(plain), budget=45_000, loss=loss_of, repeats=1)
    for times, count in ((1, 1), (2, 2), (4, 3), (3, 4), (2, 4), (4, 4)):
        number = times * unit
        for one, other in zip(
            step_results(model, number), step_results(plain, number), strict=True
        ):
            assert torch.equal(one, other)
        assert peak_of(model, X, number) + X.nbytes <= 45_000
        assert len(shown(model).plans) == count
    with pytest.raises(chainstay.InfeasibleBudgetError, match="the least feasible budget"):
        model(X, 100 * unit)


@pytest.mark.long
def test_a_count_of_steps_is_planned_anew_only_where_sizes_change() -> None:
    plain = Given(more_in_later_steps)
    model = chainstay.fit(copy.deepcopy(plain), budget=45_000, loss=loss_of, repeats=1)
    for number, most in ((0, 1), (1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3), (7, 3)):
        for one, other in zip(
            step_results(model, number), step_results(plain, number), strict=True
        ):
            assert torch.equal(one, other)
        assert peak_of(model, X, number) + X.nbytes <= 45_000
        assert len(shown(model).plans) <= most


def test_variables_of_the_environment_are_read_in_every_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Given(by_the_environment)
    model = chainstay.fit(copy.deepcopy(plain), budget=45_000, loss=loss_of, repeats=1)
    for scale in ("1", "2", "3", "1", "2"):
        monkeypatch.setenv("CHAINSTAY_TEST_SCALE", scale)
        for one, other in zip(step_results(model, 1), step_results(plain, 1), strict=True):
            assert torch.equal(one, other)
    assert len(shown(model).plans) == 1


def test_a_model_that_reads_the_environment_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAINSTAY_TEST_SCALE", "2")
    given = Given(by_the_environment)
    model = chainstay.fit(given, (X, 1), budget=45_000, loss=loss_of, repeats=1)

    def trace(*_: object, **__: object) -> None:
        raise AssertionError("it is traced again")

    monkeypatch.setattr(GraphCapture, "trace", trace)
    step_results(model, 1)


def test_tensors_in_objects_are_planned_once_for_each_size() -> None:
    plain = Given(added)
    model = chainstay.fit(copy.deepcopy(plain), budget=45_000, loss=loss_of, repeats=1)
    for rows, count in ((2, 1), (3, 2), (2, 2), (4, 3), (3, 3), (2, 3)):
        given = CallSettings(torch.randn(rows, 1, 16))
        for one, other in zip(step_results(model, given), step_results(plain, given), strict=True):
            assert torch.equal(one, other)
        assert len(shown(model).plans) == count


class Repeated(nn.Module):
    """Blocks that are called as often as the call says, maybe in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Stack() for _ in range(3))

    def forward(self, x: torch.Tensor, rounds: Any, step: int = 0) -> torch.Tensor:
        del step
        for _ in range(getattr(rounds, "number", rounds)):
            for layer in self.layers:
                x = layer(x)
        return x


@dataclass
class CallSettings:
    """Settings of a call."""

    number: Any


@pytest.mark.parametrize("holder", [int, CallSettings])
def test_blocks_that_depend_on_a_number_are_planned_for_each_before_they_run(
    holder: Callable[[int], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Repeated()
    model = chainstay.fit(copy.deepcopy(plain), budget=40_000, loss=loss_of, repeats=1, by="blocks")
    for number, count in ((1, 1), (3, 2), (1, 2), (2, 3), (3, 3), (1, 3)):
        rounds = holder(number)
        for one, other in zip(
            step_results(model, rounds), step_results(plain, rounds), strict=True
        ):
            assert torch.equal(one, other)
        assert peak_of(model, X, rounds) + X.nbytes <= 40_000
        assert len(shown(model).plans) == count
    assert "that its plan does not have" not in capsys.readouterr().err


class MoreAround(Repeated):
    """A call may ask for an auxiliary loss, made outside of the blocks."""

    def forward(self, x: torch.Tensor, has_auxiliary: Any, step: int = 0) -> torch.Tensor:
        x = super().forward(x, 1, step)
        return x.repeat(16, 1).exp().tanh().sin() if has_auxiliary else x


@pytest.mark.long
def test_blocks_with_more_memory_around_them_are_planned_anew() -> None:
    plain = MoreAround()
    model = chainstay.fit(
        copy.deepcopy(plain), budget=120_000, loss=loss_of, repeats=1, by="blocks"
    )
    for flag, count in ((False, 1), (True, 2), (False, 2), (True, 2)):
        for one, other in zip(step_results(model, flag), step_results(plain, flag), strict=True):
            assert torch.equal(one, other)
        assert peak_of(model, X, flag) + X.nbytes <= 120_000
        assert len(shown(model).plans) == count
    model = chainstay.fit(copy.deepcopy(plain), budget=60_000, loss=loss_of, repeats=1, by="blocks")
    model(X, has_auxiliary=False)
    with pytest.raises(chainstay.InfeasibleBudgetError, match="the least feasible budget"):
        model(X, has_auxiliary=True)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """The calls whose blocks are looked for."""
    found: list[Host] = []

    def look(
        host: Host, graphs: BlockGraphs, unreached: Sequence[str], *, may_vary: bool
    ) -> Around:
        found.append(host)
        return find_blocks(host, graphs, unreached, may_vary=may_vary)

    monkeypatch.setattr(blocks, "find_blocks", look)
    return found


def test_numbers_that_change_no_blocks_are_not_looked_at_for_ever(looks: list[Host]) -> None:
    model = chainstay.fit(Repeated(), budget=40_000, loss=loss_of, repeats=1, by="blocks")
    for step in range(12):
        loss_of(model(X, 1, step=step)).backward()
    assert len(looks) == 9  # the first call and eight in vain
    assert len(shown(model).plans) == 1


class Whole(nn.Module):
    """A block without modules inside, which could be stages in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(64, 16) / 8)
        self.down = nn.Parameter(torch.randn(16, 64) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(torch.tanh(nn.functional.linear(x, self.up)), self.down)


def test_a_list_that_became_too_short_is_looked_at_once(looks: list[Host]) -> None:
    plain = nn.Sequential(Whole(), Whole(), Whole())
    model = chainstay.fit(copy.deepcopy(plain), budget="90%", loss=loss_of, by="blocks")
    for _ in range(4):
        for one in (plain, model):
            one.zero_grad()
            loss_of(one(X)).backward()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        for parameter, expected in pairs:
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=0)
        del model[1:], plain[1:]
    assert len(looks) == 2


@pytest.mark.long
@pytest.mark.parametrize("decided", [without_gradients, with_dropout])
def test_a_number_that_has_to_be_a_constant_is_one(decided: Decided) -> None:
    plain = Given(decided)
    model = chainstay.fit(copy.deepcopy(plain), budget="95%", loss=loss_of, repeats=1)
    for number in (1, 2, 4, 3, 2, 4):
        for one, other in zip(
            step_results(model, number), step_results(plain, number), strict=True
        ):
            assert torch.equal(one, other)
    assert not any(isinstance(plan, PlannedBlocks) for plan in shown(model).plans)


class Boxes(nn.Module):
    """Is given boxes, of which there are others in every call, as for detection."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * (1 + boxes.sum() / (1 + len(boxes)))


def test_shapes_that_change_no_blocks_are_not_looked_at_for_ever(looks: list[Host]) -> None:
    torch.manual_seed(0)
    plain = Boxes()
    model = chainstay.fit(copy.deepcopy(plain), budget="80%", loss=loss_of, repeats=1, by="blocks")

    def step(rows: int, count: int) -> int:
        call = torch.randn(rows, 8), torch.randn(count, 4)
        outputs = [one(*call) for one in (model, plain)]
        for output in outputs:
            loss_of(output).backward()
        assert torch.equal(*outputs)
        return len(looks)

    assert [step(64, 20 - count) for count in range(12)] == [*range(1, 10), 9, 9, 9]
    assert step(64, 21) == 10, "more boxes than ever may need more memory"
    assert len(shown(model).plans) == 1
    assert step(32, 5) == 11, "the largest tensor is another"
    assert len(shown(model).plans) == 2
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(*(p.grad for p in (one, other) if p.grad is not None))
