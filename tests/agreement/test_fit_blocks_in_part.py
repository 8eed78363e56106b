"""Blocks that are kept in part, while the model's own forward calls them."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay import Schedule
from chainstay.errors import InfeasibleBudgetError
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.execute.block_executor import BlockSchedule, PlannedBlocks
from chainstay.runtime.measures.blocks.block_costs import (
    MeasuredBlocks,
    find_blocks,
    measure_blocks,
)
from chainstay.runtime.options.option import stage_options
from option_families import TOKENS, Language
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from twins import peak_of
from zoo import loss_of

CPU = torch.device("cpu")
SAMPLE = Sample((TOKENS,))
MEANS: list[float] = []


def looked_at(x: torch.Tensor) -> torch.Tensor:
    """What a tool for logging does, for instance."""
    MEANS.append(x.detach().mean().item())
    return x


def scaled(x: torch.Tensor) -> torch.Tensor:
    """It makes something new of it, so that no block follows another one directly."""
    return looked_at(x) * 0.9


class Watched(Language):
    """A GPT in small whose forward calls what is no part of any graph."""

    def __init__(self, between: Any = looked_at) -> None:
        super().__init__(dropout=0.1)
        self.between = between

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = self.between(layer(x))
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


def fitted(model: nn.Module, budget: int | str, **settings: Any) -> nn.Module:
    return chainstay.fit(model, SAMPLE.args, budget=budget, loss=loss_of, repeats=1, **settings)


def watched(between: Any = looked_at) -> Watched:
    torch.manual_seed(0)
    return Watched(between).train()


def require_trains_plainly(planned: nn.Module, plain: nn.Module) -> None:
    """Train like `plain`, within what is promised."""
    assert differences(trained(planned, SAMPLE), trained(plain, SAMPLE)) == []
    solution = shown(planned).solution
    assert peak_of(planned, TOKENS) + TOKENS.nbytes <= solution.peak_bytes <= solution.budget


@pytest.mark.parametrize("share", ["85%", "60%"])
@pytest.mark.parametrize("between", [looked_at, scaled])
def test_a_model_whose_graph_breaks_keeps_blocks_in_part(between: Any, share: str) -> None:
    planned = fitted(watched(between), share)
    told = str(planned.chainstay)
    assert "by blocks (layers.0 to layers.2)" in told
    assert "keeps in part" in told
    parts = shown(planned).kept_in_part
    assert parts
    assert all(part.less_bytes > 0 and part.name.startswith("layers.") for part in parts)
    require_trains_plainly(planned, watched(between))
    chainstay.unfit(planned)
    assert differences(trained(planned, SAMPLE), trained(planned, SAMPLE)) != [], "it went on"


@pytest.mark.long
def test_without_options_blocks_run_again() -> None:
    planned = fitted(watched(), "60%", stage_options=False)
    assert recomputes(planned)
    assert not keeps_in_part(planned)


@pytest.mark.long
def test_the_least_budget_with_options_is_told() -> None:
    with pytest.raises(InfeasibleBudgetError) as refusal:
        fitted(watched(), 1000)
    planned = fitted(watched(), int(1.02 * refusal.value.required))  # timing decides between ties
    require_trains_plainly(planned, watched())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_have_no_options() -> None:
    """What their kernels save is not what their operators do."""
    torch._dynamo.reset()
    model, plain = watched(), watched()
    compiled: Any = partial(torch.compile, backend="aot_eager")  # of a module, a module
    model.layers = nn.ModuleList(map(compiled, model.layers))
    planned = fitted(model, "60%")
    assert recomputes(planned)
    assert not keeps_in_part(planned)
    expected = trained(plain, SAMPLE).values()  # the parameters have other names
    assert all(map(torch.equal, trained(planned, SAMPLE).values(), expected))


def measured(model: nn.Module, cache: Path | None = None) -> MeasuredBlocks:
    host = Host(Call.of(model, SAMPLE.args), CPU)
    around = find_blocks(host, BlockGraphs("Watched", CPU))
    return measure_blocks(
        around, repeats=1, progress=False, cache=cache, wants_options=lambda _: True
    )


@pytest.mark.long
def test_a_block_is_kept_under_any_option_whenever_it_runs() -> None:
    """By schedules of its own; the second run has the random numbers of the first one."""
    planned = fitted(watched(), "60%")
    made = shown(planned).latest.planned
    assert isinstance(made, PlannedBlocks)
    found = measured(watched())
    assert {stage for stage, _ in found.chain.options} == {0, 1, 2}
    state, expected = watched().state_dict(), trained(watched(), SAMPLE)
    for stage, option in found.chain.options:
        kept = ["Fa0", "Fa1", "Fa2"]
        kept[stage] = f"Fa{stage}.{option}"
        again = ["Fa0", "Fa1", "Fa2"]
        again[stage] = f"Fc{stage}"
        back = [f"B{number}" for number in range(stage + 1, 4)][::-1]
        rest = [f"B{number}" for number in range(stage + 1)][::-1]
        for text in ([*kept, "Fa3", *back, *rest], [*again, "Fa3", *back, kept[stage], *rest]):
            schedule = Schedule.parse(" ".join(text))
            other = BlockSchedule.from_schedule(found.blocks, found.chain, schedule)
            shown(planned).use(replace(made, schedule=other))
            planned.load_state_dict(copy.deepcopy(state))
            assert differences(trained(planned, SAMPLE), expected) == [], str(schedule)


@pytest.mark.long
def test_blocks_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[object] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        looks.append(args)
        return stage_options(*args, **kwargs)

    monkeypatch.setattr("chainstay.runtime.measures.option_costs.stage_options", counting)
    first = measured(watched(scaled), tmp_path)
    assert len(looks) == 1
    again = measured(watched(scaled), tmp_path)
    assert len(looks) == 1, "those on file are only tried again"
    assert again.account == first.account
    assert again.chain.options.keys() == first.chain.options.keys()
