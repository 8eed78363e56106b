"""The chain's model: every sentence is needed, and it reads and writes schedules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chainstay.errors import UnknownMethodError
from chainstay.formulations import program_by_highs
from chainstay.formulations.chain.constraints import CONSTRAINTS
from chainstay.formulations.chain.cuts import CUTS, exact_cuts
from chainstay.formulations.chain.formulation import ChainFormulation, build
from chainstay.formulations.integer_program import IntegerProgram, Key
from chainstay.formulations.program_by_cpsat import solve_by_cpsat
from chainstay.formulations.program_by_highs import memory_scale, pyomo_model, solve_by_highs
from chainstay.formulations.pyomo_types import Model
from chainstay.formulations.settings import Limits
from chainstay.profiles import ChainProfile, RunCost, Skip, Stage, StageOption
from chainstay.schedule import Discards, Schedule
from chainstay.validation import search
from chainstay.validation.persistent_search import persistent_optimum
from chainstay.validation.simulate import simulate
from formulation_support import PAIR
from golden_chains import GOLDEN, GoldenChain

MINUTE = Limits(time_s=60.0)
PLENTY = 10**6
UNIT = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=1, backward_time=1, output_bytes=1, saved_bytes=1, gradient_bytes=1),
    )
    * 4,
)


def chain(input_bytes: int, *stages: tuple[int, int, int, int, int, int]) -> ChainProfile:
    """Stages as (forward time, output, saved, gradient, forward and backward overhead)."""
    names = [
        "forward_time",
        "output_bytes",
        "saved_bytes",
        "gradient_bytes",
        "forward_overhead_bytes",
        "backward_overhead_bytes",
    ]
    return ChainProfile(
        input_bytes=input_bytes,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(**dict(zip(names, stage, strict=True)))  # type: ignore[arg-type]
            for stage in stages
        ),
    )


THIN = chain(1, (0, 1, 1, 0, 0, 0), (0, 1, 0, 1, 2, 0), (7, 0, 2, 0, 0, 0), (9, 0, 0, 0, 0, 1))
RERUN = chain(0, (9, 2, 4, 2, 2, 0), (0, 0, 0, 0, 1, 0), (0, 1, 1, 1, 0, 0), (8, 1, 1, 0, 2, 0))
FAT = chain(0, (6, 0, 5, 0, 0, 0), (0, 2, 6, 2, 0, 0), (5, 6, 6, 4, 0, 0), (0, 0, 0, 0, 0, 0))
HEAVY = chain(5, (5, 5, 7, 5, 0, 3), (0, 0, 0, 0, 3, 6), (0, 0, 0, 0, 0, 4), (3, 8, 6, 6, 0, 0))
SKIP = dataclasses.replace(
    chain(1, (1, 6, 6, 0, 0, 0), (1, 6, 1, 0, 0, 0), (1, 0, 1, 0, 0, 0)),
    skips=(Skip(first=1, last=2, bytes=5),),
)

LONE = dataclasses.replace(
    chain(2, (5, 2, 5, 1, 3, 0), (0, 3, 1, 3, 0, 4), (1, 0, 4, 3, 1, 1)), input_gradient_bytes=3
)
LONE = dataclasses.replace(  # what stage 2 saves needs no input
    LONE,
    stages=(
        dataclasses.replace(LONE.stages[0], first=RunCost(time=7), again=RunCost(time=7)),
        dataclasses.replace(LONE.stages[1], first=RunCost(time=6), again=RunCost(time=6)),
        dataclasses.replace(LONE.stages[2], first=RunCost(overhead_bytes=2), needs_input=False),
    ),
)
# Fa0 has no room beside the gradient of a^1, and would have it in the phase that the record of
# stages 1 and 2 skips.
SKIPPED = chain(0, (1, 1, 2, 3, 3, 0), (10, 0, 1, 0, 0, 0), (0, 0, 0, 0, 0, 0))
SKIPPED = dataclasses.replace(
    SKIPPED,
    stages=(
        SKIPPED.stages[0],
        dataclasses.replace(
            SKIPPED.stages[1],
            options=(StageOption(saved_bytes=2, first=RunCost(), stages=2),),
        ),
        SKIPPED.stages[2],
    ),
)

# To run stage 0 again takes 1 ns, and 5 bytes from its first run on; stage 1 takes 3 ns.
DRAWING = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=1, output_bytes=1, saved_bytes=4, environment_bytes=5),
        Stage(forward_time=3, output_bytes=1, saved_bytes=4),
        Stage(saved_bytes=3),
    ),
)

NEEDED_FOR_THE_OPTIMUM = {
    "forward_needs_its_input": (RERUN, 7, "table1"),
    "backward_needs_its_saved_data": (THIN, 6, "table1"),
    "backward_needs_its_input": (HEAVY, 21, "free"),
    "dropped_inputs_were_stored": (LONE, 14, "free"),
    "records_of_several_stages_are_closed": (PAIR, 21, "table1"),
    "joined_phases_are_empty": (SKIPPED, 6, "table1"),
    "activations_carried_to_next_phase": (HEAVY, 21, "free"),
    "saved_data_carried_to_next_phase": (RERUN, 7, "table1"),
    "skips_are_stored_with_what_has_them": (SKIP, 8, "table1"),
    "environments_are_saved_for_later_runs": (DRAWING, 9, "table1"),
    "memory_of_forwards": (RERUN, 7, "tape"),
    "memory_of_recordings": (RERUN, 7, "table1"),
    "memory_of_backwards": (FAT, 17, "tape"),
}
NEEDED_TO_REFUSE = {
    "tape_keeps_inputs_between_phases": "Fc0 Fa1 Fa2 Fa3 B3 B2 Da1 Fc0 B1 Fa0 B0",
    "tape_keeps_inputs_in_a_phase": "Fc0 Fa1 Fa2 Fa3 B3 Fn1 B2 Db1 Fc0 Fa1 B1 Fa0 B0",
}


def test_every_sentence_has_an_instance_that_needs_it() -> None:
    names = {group.__name__ for group in CONSTRAINTS}
    assert names == {
        *NEEDED_FOR_THE_OPTIMUM,
        *NEEDED_TO_REFUSE,
        "activation_stored_once",
    }


@pytest.mark.parametrize("name", NEEDED_FOR_THE_OPTIMUM)
def test_without_a_sentence_the_optimum_is_too_good_to_be_true(name: str) -> None:
    profile, budget, discards = NEEDED_FOR_THE_OPTIMUM[name]
    formulation = build(profile, budget, discards=discards, cuts=False)
    if profile.has_environments:
        true = persistent_optimum(profile, budget).makespan
    else:
        true = search.optimum(profile, budget, discards=discards).makespan
    for solve in (solve_by_highs, solve_by_cpsat):
        answer = solve(formulation.program, MINUTE)
        assert formulation.makespan(answer.objective) == true
    leave_out(formulation, name)
    answer = solve_by_highs(formulation.program, MINUTE)
    assert formulation.makespan(answer.objective) < true


def leave_out(formulation: ChainFormulation, name: str) -> None:
    program = formulation.program
    program.rows = [row for row in program.rows if row.name != name]


@pytest.mark.parametrize("name", NEEDED_TO_REFUSE)
def test_without_a_sentence_an_invalid_schedule_is_accepted(name: str) -> None:
    schedule = Schedule.parse(NEEDED_TO_REFUSE[name])
    formulation = build(UNIT, PLENTY, discards="tape", cuts=False)
    assert formulation.encode(schedule) is None
    leave_out(formulation, name)
    with pytest.raises(ValueError, match="removes the input of stage 1"):
        simulate(UNIT, read_back(formulation, schedule), discards="tape")


def read_back(formulation: ChainFormulation, schedule: Schedule) -> Schedule:
    on = formulation.encode(schedule)
    assert on is not None
    return formulation.decode(on)


def test_without_single_copies_an_activation_is_used_after_it_was_dropped() -> None:
    """Phase 2 makes a^1 while it is stored, and Fn1 takes one copy: Fa1 finds the other."""
    formulation = build(UNIT, PLENTY, cuts=False)
    on = frozenset[Key](
        {
            *(("keep_input", 3, 0), ("keep_input", 3, 1), ("drop_input", 3, 2)),
            *(("keep_all", 3, 3, 0), ("activation_stored", 2, 1)),
            *(("keep_input", 2, 0), ("drop_input", 2, 1), ("keep_all", 2, 2, 0)),
            *(("activation_stored", 1, 1), ("keep_all", 1, 1, 0), ("keep_all", 0, 0, 0)),
        }
    )
    program = formulation.program
    broken = {row.name for row in program.rows if program.is_broken(row, on)}
    assert broken == {"activation_stored_once"}
    with pytest.raises(ValueError, match="Fa1 needs its input a1"):
        simulate(UNIT, formulation.decode(on))


@pytest.mark.parametrize(
    ("golden", "discards"),
    [(g, d) for g in GOLDEN for d in Discards if g.schedules.get(d) and g.stages <= 7],
    ids=lambda case: case.name,
)
def test_golden_schedules_survive_encoding(golden: GoldenChain, discards: Discards) -> None:
    schedule = golden.schedules[discards]
    assert schedule is not None
    formulation = build(golden.profile, golden.budget, discards=discards, cuts=False)
    on = formulation.encode(schedule)
    if on is None:
        pytest.skip("two sweeps in a phase, or a discard that waits for its end")
    decoded = formulation.decode(on)
    replay = simulate(golden.profile, decoded, discards=discards)
    assert replay.makespan == golden.optimum[discards]
    peak = formulation.program.peak(on) * formulation.phases.unit
    assert replay.peak_bytes <= peak <= golden.budget


@pytest.mark.parametrize(
    "text",
    [
        "Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0",
        "Fc0 Fc1 Fc2 Fa3 B3 Fa2 B2 Fa1 B1 Fa0 B0",
        "Fc0 Fn1 Fa2 Fa3 B3 B2 Fa0 Fa1 B1 B0",
    ],
)
@pytest.mark.parametrize("discards", Discards)
def test_single_sweeps_come_back_as_they_were(text: str, discards: Discards) -> None:
    formulation = build(UNIT, 10, discards=discards)
    assert str(read_back(formulation, Schedule.parse(text))) == text


def test_free_discards_in_mid_sweep_come_back_as_they_were() -> None:
    text = "Fc0 Fa1 Da1 Fc2 Fa3 B3 Fa2 B2 Fa0 B1 B0"
    formulation = build(UNIT, 10, discards="free")
    decoded = read_back(formulation, Schedule.parse(text))
    replay = simulate(UNIT, decoded, discards="free")
    assert replay.makespan == simulate(UNIT, Schedule.parse(text), discards="free").makespan


def test_a_recorded_stage_that_runs_again_comes_back_as_it_was() -> None:
    text = "Fc0 Fa1 Fn1 Fn2 Fa3 B3 Fc0 Fn1 Fa2 B2 Fa0 B1 B0"
    assert str(read_back(build(RERUN, PLENTY), Schedule.parse(text))) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1", "it ends before B0"),
        ("Fa0 Fa1 Fa2 Fa3 B2 B3 B1 B0", "a backward out of turn"),
        ("Fc0 Fc1 Fc2 Fa3 Fa0 B3 Fa2 B2 Fa1 B1 B0", "two sweeps in a phase"),
        ("Fa0 Fa1 Fa2 Fa4 B4 B3 B2 B1 B0", "no such stage"),
        ("Fn0 Fa1 Fa2 Fa3 B3 B2 B1 Fa0 B0", "the network's input is dropped"),
        ("Fa1 Fa2 Fa3 B3 B2 B1 Fa0 B0", "no input for Fa1"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 Da0 B0", "a discard under table1"),
        ("Fa0 Fa1 Fa2 Fc2 Fa3 B3 B2 B1 B0", "a rerun that cannot pay"),
    ],
)
def test_what_the_model_lacks_is_not_encoded(text: str, why: str) -> None:
    assert build(UNIT, PLENTY).encode(Schedule.parse(text)) is None, why


def test_what_exceeds_the_budget_by_a_byte_is_not_encoded() -> None:
    scaled = dataclasses.replace(UNIT, input_bytes=10**9 + 1)
    keep_all = Schedule.keep_all(4)
    peak = simulate(scaled, keep_all).peak_bytes
    assert build(scaled, peak).encode(keep_all)
    assert not build(scaled, peak - 1).encode(keep_all)


def test_the_limit_leaves_room_for_solver_errors_and_is_kept_to_the_byte_all_the_same() -> None:
    """Bytes in a quarter of a PiB are below HiGHS' tolerance, and it must lose no schedule."""
    stage = Stage(output_bytes=2**47 + 1, saved_bytes=2**47 + 3)
    profile = ChainProfile(input_bytes=2**47, input_gradient_bytes=0, stages=(stage,) * 2)
    peak = simulate(profile, Schedule.keep_all(2)).peak_bytes
    below = build(profile, peak - 1)
    units = (peak - 1) / below.phases.unit / memory_scale(below.program)
    assert 2**-29 < below.model.memory_limit.value - units < 2**-27
    assert not below.encode(Schedule.keep_all(2))
    assert build(profile, peak).encode(Schedule.keep_all(2))


def test_an_overrun_is_forbidden_until_the_budget_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The solver is handed a limit that everything fits in, and the answer keeps the true one."""
    formulation, models = build(FAT, 17), list[object]()

    def too_roomy(program: IntegerProgram) -> Model:
        model = pyomo_model(program)
        model.memory_limit.set_value(10**4)
        models.append(model)
        return model

    monkeypatch.setattr(program_by_highs, "pyomo_model", too_roomy)
    answer = solve_by_highs(formulation.program, MINUTE)
    assert len(models) > 1
    assert formulation.makespan(answer.objective) == search.optimum(FAT, 17).makespan


def test_cuts_are_added_where_they_are_exact() -> None:
    assert exact_cuts(UNIT, Discards.TABLE1) == exact_cuts(UNIT, Discards.TAPE) == CUTS
    assert len(exact_cuts(UNIT, Discards.FREE)) == 3
    assert len(exact_cuts(RERUN, Discards.TABLE1)) == 6
    assert exact_cuts(RERUN, Discards.TAPE) == CUTS
    assert len(exact_cuts(THIN, Discards.TAPE)) == 3
    large = dataclasses.replace(UNIT, input_gradient_bytes=2)
    assert len(exact_cuts(large, Discards.TAPE)) == 3
    for cut in CUTS:
        assert build(UNIT, 9).model.component(cut.__name__) is not None
        assert build(UNIT, 9, cuts=False).model.component(cut.__name__) is None
        assert build(THIN, 9, cuts=True).model.component(cut.__name__) is not None


def test_unknown_discards_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'paper', must be one of 'table1'"):
        build(UNIT, 9, discards="paper")


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_the_model_can_be_written_out(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"chain.{suffix}"
    build(UNIT, 9).model.write(str(path), io_options={"symbolic_solver_labels": True})
    assert "memory_of_forwards" in path.read_text()
