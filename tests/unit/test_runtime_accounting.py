"""What is measured, apart from running: accounts, idle cuts, files, spread, the bar."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from chainstay.profiles import Skip
from chainstay.runtime import measure
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.clock import StageTime, StageTimes, stage_times
from chainstay.runtime.measures.cost_files import AccountFile
from chainstay.runtime.measures.progress import progress_bar, unseen
from chainstay.runtime.measures.stage_cost import OptionCost, StageCost
from chainstay.runtime.stage.idle_cuts import freed_bytes, merge_idle_cuts
from chainstay.schedule import Schedule
from chainstay.validation.simulate import simulate
from runtime_support import random_persistent, stages_of


def cost(name: str, environment: int, random: int) -> StageCost:
    return StageCost(
        name=name,
        forward_time=1,
        backward_time=2,
        output_bytes=10,
        saved_bytes=30,
        gradient_bytes=10,
        recording_bytes=100,
        dropping_bytes=200,
        backward_bytes=300,
        environment_bytes=environment,
        random_bytes=random,
    )


ACCOUNT = Account(
    input_bytes=10,
    input_gradient_bytes=10,
    stages=(cost("a", 1000, 600), cost("b", 50_000, 50_000), cost("loss", 0, 0)),
    skips=(),
)


def overheads(account: Account, schedule: str | None) -> list[tuple[int, int]]:
    profile = account.profile_for(Schedule.parse(schedule)) if schedule else account.profile()
    return [(s.forward_overhead_bytes, s.backward_overhead_bytes) for s in profile.stages]


def test_any_schedule_may_run_every_stage_again() -> None:
    """Its own environment twice, those of all others; in a backward, those up to it."""
    assert overheads(ACCOUNT, None) == [
        (200 + 1000 + 51_000, 300 + 400),
        (200 + 50_000 + 51_000, 300 + 1000),
        (200 + 51_000, 300 + 51_000),
    ]


def test_the_account_of_several_processes_has_the_options_of_none() -> None:
    option = OptionCost(
        name="drops b", saved_bytes=1, recording_bytes=1, backward_bytes=1, replay_time=1,
        stages=1, replayed=(1, 4), redrawn=(2,),
    )  # fmt: skip
    first, *others = ACCOUNT.stages
    stages = (replace(first, options=(option,)), *others)
    own = replace(ACCOUNT, stages=stages, has_options=True)
    assert Account.largest([own]) == own
    several = Account.largest([own, replace(own, input_bytes=11)])
    assert several == replace(ACCOUNT, input_bytes=11)


@pytest.mark.parametrize("seed", range(30))
def test_costs_by_kind_of_run_are_those_of_the_schedule_or_more(seed: int) -> None:
    """Its time is the schedule's own, and no operation needs more than it says."""
    generator = Random(seed)
    names = [field.name for field in fields(StageCost) if field.name.endswith(("_time", "_bytes"))]
    stages = []
    for _ in range(generator.randint(1, 6)):
        numbers: dict[str, Any] = {name: generator.randint(0, 50) for name in names}
        numbers["random_bytes"] = min(numbers["random_bytes"], numbers["environment_bytes"])
        stages.append(StageCost(name="", **numbers))
    loss = replace(stages[-1], environment_bytes=0, random_bytes=0)
    account = Account(input_bytes=5, input_gradient_bytes=5, stages=(*stages, loss), skips=())
    schedule = random_persistent(len(account.stages), seed)
    own = simulate(account.profile_for(schedule), schedule, overheads=account.overheads(schedule))
    by_kind = simulate(account.by_kind(), schedule)
    assert by_kind.makespan == own.makespan
    for snapshot, less in zip(by_kind.timeline, own.timeline, strict=True):
        assert snapshot.during_bytes >= less.during_bytes


def test_a_stage_that_runs_once_saves_no_environment_and_has_one_form() -> None:
    assert overheads(ACCOUNT, "Fa0 Fa1 Fa2 B2 B1 B0") == [(100, 300)] * 3


def test_the_output_stands_beside_what_runs_behind_the_loss() -> None:
    stage = replace(cost("a", 0, 0), again_bytes=7)
    account = replace(ACCOUNT, stages=(stage, stage, cost("loss", 0, 0)))
    assert account.overheads(Schedule.parse("Fc0 Fa1 Fa2 B2 B1 Fa0 B0")) == (
        *(200, 100, 100),
        *(300, 300, 100 + 7, 300),
    )
    by_kind = account.by_kind().stages[0]
    assert by_kind.first is not None
    assert by_kind.again is not None
    assert (by_kind.first.overhead_bytes, by_kind.again.overhead_bytes) == (100, 107)
    assert by_kind.dropped(first=True).overhead_bytes == 200
    assert by_kind.dropped(first=False).overhead_bytes == 207


def test_an_environment_lasts_from_the_first_run_to_the_last_and_buffers_to_the_backward() -> None:
    assert overheads(ACCOUNT, "Fc0 Fa1 Fa2 B2 B1 Fa0 B0") == [
        (100 + 1000 + 1000, 300 + 400),  # recorded at last, which is dearer than being dropped
        (100 + 1000, 300 + 1000),
        (100 + 1000, 300 + 1000),
    ]
    assert overheads(ACCOUNT, "Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0") == [
        (200 + 51_000 + 1000, 300 + 400),
        (100 + 51_000 + 50_000, 300 + 1000),
        (100 + 51_000, 300 + 51_000),
    ]


def test_each_operation_has_an_overhead_of_its_own() -> None:
    """Dropped, recorded, recorded without use, and discards, which need nothing."""
    schedule = "Fc0 Fa1 Db1 Fn1 Da1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0"
    saved = 51_000
    assert ACCOUNT.overheads(Schedule.parse(schedule)) == (
        200 + 1000,
        200 + saved,
        0,
        200 + saved + 50_000,
        0,
        100 + saved,
        300 + saved,
        200 + saved + 1000,
        100 + saved + 50_000,
        300 + 1000,
        100 + 1000 + 1000,
        300 + 400,
    )


def test_what_the_caller_has_and_is_made_again_counts_twice() -> None:
    """Stage 0 makes a tensor of 7 bytes that the loss reads; from its second run on, two live."""
    stages = (cost("a", 0, 0), cost("b", 0, 0), cost("loss", 0, 0))
    account = Account(
        input_bytes=10,
        input_gradient_bytes=10,
        stages=stages,
        skips=(Skip(first=0, last=2, bytes=2), Skip(first=1, last=2, bytes=7)),
    )
    schedule = Schedule.parse("Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0")
    assert account.overheads(schedule) == (200, 200, 100, 300, 200, 107, 307, 100, 300)
    assert overheads(account, None) == [(200, 300), (207, 307), (207, 307)]
    once = Schedule.parse("Fa0 Fc1 Fa2 B2 Fa1 B1 B0")
    assert account.overheads(once) == (100, 200, 100, 300, 100, 300, 300)


def test_a_schedule_never_needs_more_than_the_profile_for_all_says() -> None:
    peaks = []
    for text in ("Fa0 Fa1 Fa2 B2 B1 B0", "Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0"):
        schedule = Schedule.parse(text)
        own = simulate(ACCOUNT.profile_for(schedule), schedule).peak_bytes
        peaks.append((own, simulate(ACCOUNT.profile(), schedule).peak_bytes))
    assert peaks[0][0] < peaks[0][1]
    assert peaks[1][0] <= peaks[1][1]


def names(*parts: nn.Module) -> list[str]:
    merged = merge_idle_cuts(stages_of(*parts), (torch.rand(4, 8),))
    return [stage.name for stage in merged]


class Doubled(nn.Module):
    """Saves nothing."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        return activation * 2.0


def test_a_cut_stays_if_either_side_saves_the_state() -> None:
    assert names(nn.Linear(8, 8), nn.Linear(8, 8)) == ["0", "1"]  # the reader
    assert names(nn.Linear(8, 8), nn.Tanh(), Doubled(), nn.Tanh())[0] != "0"
    assert names(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) == ["0", "1", "2"]


def test_a_cut_goes_if_nobody_saves_the_state_unless_it_is_small() -> None:
    assert names(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)) == ["0+1", "2"]
    assert names(nn.Linear(8, 8), Doubled(), nn.Tanh()) == ["0+1+2"]
    assert names(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8)) == ["0", "1", "2"]


class Counted(nn.Module):
    """Saves nothing, but for a number without a gradient that it takes from a graph of its own."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        place, count = _with_a_graph(activation)
        given = [activation + count]
        while len(given) < 50 and given[-1].data_ptr() != place:
            given.append(activation + count)
        return given[-1]


def _with_a_graph(activation: torch.Tensor) -> tuple[int, float]:
    """Return the place of a tensor that a graph saves, and a number; the graph is gone."""
    saved = (activation + 1.0).exp()
    return saved.data_ptr(), saved.sum().item()


def test_a_cut_goes_though_its_state_has_the_place_of_what_a_graph_saved_before() -> None:
    stages = stages_of(nn.Linear(64, 64), Counted(), Doubled(), nn.Tanh())
    freed = freed_bytes(stages, (torch.rand(64, 64),), ())
    assert [own.after_run for own in freed] == [0, *[64 * 64 * 4] * 3]


def test_kept_stages_without_idle_cuts_need_what_is_predicted() -> None:
    """Against the layers' own saved tensors, counted by hand."""
    stages = stages_of(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
    merged = merge_idle_cuts(stages, (torch.rand(4, 8),))
    model = nn.Sequential(*(nn.Sequential(*(p.function for p in s.parts)) for s in merged))  # type: ignore[attr-defined]
    *found, _ = measure(model, torch.rand(4, 8), repeats=1).profile.stages
    saved = sum(stage.saved_bytes for stage in found)
    layer, statistics = 4 * 8 * 4, 2 * 8 * 4
    assert saved == 3 * layer + statistics  # the first linear's, the ReLU's and the output


MODEL = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))


def test_what_is_in_the_cache_is_not_measured_again(tmp_path: Path) -> None:
    first = measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    assert not path.name.startswith(".")
    again = measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    assert (again.account, again.chain.effects) == (first.account, first.chain.effects)
    assert measure(MODEL, torch.rand(4, 8), repeats=1).account != first.account  # other times


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (MODEL, torch.rand(5, 8)),
        (MODEL, torch.rand(4, 8, requires_grad=True)),
        (MODEL, torch.rand(8, 4).T),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8)), torch.rand(4, 8)),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 7)), torch.rand(4, 8)),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).eval(), None),
    ],
)
def test_another_model_or_call_has_a_file_of_its_own(
    tmp_path: Path, model: nn.Sequential, sample: torch.Tensor | None
) -> None:
    measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    measure(model, torch.rand(4, 8) if sample is None else sample, repeats=1, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut off", "a number", "another kind", "not text", "numbers"])
def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(tmp_path: Path, damage: str) -> None:
    measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    document = json.loads(text)
    document["stages"][0]["saved_bytes"] += 1
    damaged = {
        "cut off": text[:-20].encode(),
        "a number": b"17",
        "another kind": text.replace("chain-account", "chain-profile").encode(),
        "not text": b"\xff\xfe\x00",
        "numbers": json.dumps(document).encode(),
    }
    path.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match=f"{path.name} is ignored: .*; the model is measured anew"):
        measured = measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    again = measure(MODEL, torch.rand(4, 8), repeats=1, cache=tmp_path)
    assert again.account == measured.account


def test_a_cache_that_cannot_be_written_is_told_and_the_model_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    model, cache = nn.Sequential(nn.Linear(4, 4)), tmp_path / "file"
    with (
        pytest.warns(UserWarning, match="is ignored: "),
        pytest.warns(UserWarning, match="is not written: "),
    ):
        measured = measure(model, torch.zeros(2, 4), cache=cache)
    assert len(measured.profile) == 2


def test_accounts_with_skips_come_back_whole(tmp_path: Path) -> None:
    stages = tuple(cost(name, 7, 3) for name in "abc")
    account = Account(
        input_bytes=10,
        input_gradient_bytes=0,
        stages=stages,
        skips=(Skip(first=1, last=2, bytes=4),),
    )
    file = AccountFile(tmp_path / "deep" / "x.json", ("a", "b", "c"))
    file.write(account)
    assert file.read() == account
    with pytest.warns(UserWarning, match="it is of other stages"):
        assert AccountFile(file.path, ("a", "z", "c")).read() is None


def test_a_kept_stage_and_one_run_again_add_up_to_what_was_measured() -> None:
    long = StageTimes(forward=[10, 12, 11], backward=[20, 22, 21], dropped=[50, 40, 46])
    long.again = [13, 12, 14]  # so hooks take 14 - 13
    short = StageTimes(forward=[2], backward=[3], dropped=[15], again=[7])  # and here 10 - 7
    loss = StageTimes(forward=[3], backward=[4])
    times = stage_times([long, short, loss])
    assert times == [
        StageTime(13, 19, hooks=2, kept=11),
        StageTime(5, 0, rerun=2, hooks=2, kept=2),
        StageTime(3, 4, kept=3),
    ]
    account = Account(
        input_bytes=1, input_gradient_bytes=0, stages=tuple(map(timed, times)), skips=()
    )
    kept, once, released, twice = (
        simulate(account.profile_for(schedule), schedule, discards="free").makespan
        for schedule in map(
            Schedule.parse,
            (
                "Fa0 Fa1 Fa2 B2 B1 B0",
                "Fc0 Fc1 Fa2 B2 Fa1 B1 Fa0 B0",
                "Fc0 Fa1 Da1 Fa2 B2 Fa0 B1 B0",
                "Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0",
            ),
        )
    )
    assert kept == (11 + 21) + (2 + 3) + (3 + 4)
    assert once == kept + (13 + 2) + (7 + 2)
    assert released == kept + (13 + 2) + 2
    assert twice == once + 13


@pytest.mark.parametrize(
    ("text", "reruns", "hooked"),
    [
        ("Fa0 Fa1 Ob1 Fa2 Fa3 B3 B2 Pb1 B1 B0", 0, {1, 2}),
        ("Fa0 Fc1 Oa2 Fa2 Fa3 B3 B2 Pa2 Fa1 B1 B0", 1, {1, 2}),
        ("Fa0 Ob0 Fa1 Fa2 Ob2 Fa3 B3 Pb2 B2 B1 Pb0 B0", 0, {0, 1, 2, 3}),
        ("Fa0 Ob0 Fa1 Ob1 Fa2 Fa3 B3 B2 Pb1 B1 Pb0 B0", 0, {0, 1, 2}),
    ],
)
def test_what_moves_takes_the_stages_that_make_and_read_it_time(
    text: str, reruns: int, hooked: set[int]
) -> None:
    stage = replace(cost("x", 0, 0), rerun_time=5, hooks_time=3)
    account = replace(ACCOUNT, stages=(stage,) * 4)
    times = [stage.backward_time for stage in account.profile_for(Schedule.parse(text)).stages]
    assert times == [
        2 + 3 * (stage in hooked) + 5 * reruns * (stage == 1) for stage in range(len(times))
    ]


def timed(time: StageTime) -> StageCost:
    return replace(
        cost("x", 0, 0),
        forward_time=time.forward,
        backward_time=time.backward,
        rerun_time=time.rerun,
        hooks_time=time.hooks,
    )


def test_where_nobody_can_time_a_run_again_it_is_a_difference() -> None:
    alone = StageTimes(forward=[3, 3], backward=[4, 4], dropped=[12, 12])
    free = StageTimes(forward=[3], backward=[4], dropped=[5])
    assert stage_times([alone, free]) == [StageTime(5, 2, kept=3), StageTime(0, 7, kept=3)]


def test_no_schedule_takes_longer_by_the_profiles_for_all_than_by_its_own() -> None:
    account = replace(
        ACCOUNT,
        stages=tuple(replace(stage, rerun_time=5, hooks_time=3) for stage in ACCOUNT.stages),
    )
    for text in ("Fa0 Fa1 Fa2 B2 B1 B0", "Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0"):
        schedule = Schedule.parse(text)
        reruns = 0 if "n" not in text else 3
        own, one, by_kind = (
            simulate(profile, schedule, discards="free").makespan
            for profile in (account.profile_for(schedule), account.profile(), account.by_kind())
        )
        assert one == own - reruns * 5 - bool(reruns) * 2 * 3
        assert by_kind == own


class Terminal(io.StringIO):
    """Says that somebody is looking."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_unless_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar(wanted=True) as progress:
        assert progress is unseen
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(wanted=False) as progress:
        assert progress is unseen
    with progress_bar(wanted=True) as progress:
        progress("quick", more=2)
    assert terminal.getvalue() == ""
    monkeypatch.setattr("chainstay.runtime.measures.progress._PATIENCE_S", -1.0)
    with progress_bar(wanted=True) as progress:
        progress("slow work", more=2)
        progress("slow work")
    assert "slow work" in terminal.getvalue()
