"""The referees of transfers, by hand-worked digits, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Move, Timetable, Transfers
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.offload.simulate_timetable import simulate_timetable

DIGITS = OffloadProfile(
    activations=(1, 20, 300, 4000),
    gradients=(50_000, 600_000, 7_000_000, 80_000_000),
    forward_overheads=(10**9, 2 * 10**9, 3 * 10**9),
    backward_overheads=(10**12, 2 * 10**12, 3 * 10**12),
    forward_times=(1, 2, 3),
    backward_times=(4, 5, 6),
)
PLAIN = OffloadProfile(
    activations=(2, 3, 4, 2),
    gradients=(0, 0, 0, 0),
    forward_overheads=(0, 0, 5),
    backward_overheads=(0, 0, 0),
    forward_times=(1, 2, 2),
    backward_times=(1, 3, 2),
)
LINK = Link(bandwidth=1)


def run(
    text: str, budget: int = 100, link: Link = LINK, profile: OffloadProfile = PLAIN
) -> TransferReplay:
    return simulate_offload(profile, Schedule.parse(text), budget=budget, link=link)


def test_every_size_counts_once_at_its_time() -> None:
    """The first backward: all activations, its gradients, its overhead, and nothing else."""
    found = run("Fa0 Fa1 Fa2 B2 B1 B0", budget=10**14, profile=DIGITS)
    assert found.peak_bytes == 1 + 20 + 300 + 4000 + 7_000_000 + 80_000_000 + 3 * 10**12
    assert found.makespan == 21
    assert found.timetable.starts == (0, 1, 3, 6, 12, 17)


@pytest.mark.parametrize(
    ("last", "peak"),
    [
        (0, 1 + 20 + 10**9),
        (1, 1 + 20 + 300 + 2 * 10**9),
        (2, 1 + 20 + 300 + 4000 + 3 * 10**9),
    ],
)
def test_forwards_need_their_overheads_alone(last: int, peak: int) -> None:
    none = (0,) * 4
    profile = replace(DIGITS, gradients=none, backward_overheads=(0,) * 3)
    overheads = tuple(size * (i == last) for i, size in enumerate(profile.forward_overheads))
    profile = replace(profile, forward_overheads=overheads)
    assert run("Fa0 Fa1 Fa2 B2 B1 B0", budget=10**14, profile=profile).peak_bytes == peak


@pytest.mark.parametrize(
    ("stage", "peak"),
    [(1, 1 + 20 + 300 + 600_000 + 7_000_000 + 2 * 10**12), (0, 1 + 20 + 650_000 + 10**12)],
)
def test_backwards_free_what_they_have_used(stage: int, peak: int) -> None:
    overheads = tuple(size * (i == stage) for i, size in enumerate(DIGITS.backward_overheads))
    profile = replace(DIGITS, backward_overheads=overheads, forward_overheads=(0,) * 3)
    assert run("Fa0 Fa1 Fa2 B2 B1 B0", budget=10**14, profile=profile).peak_bytes == peak


def test_a_schedule_by_hand() -> None:
    """Budget 11: F_2 needs 2 + 3 + 4 + 2 + 5 = 16 less a0 and a1, gone at 3 and 6."""
    found = run("Oa0 Fa0 Oa1 Fa1 Fa2 B2 Pa1 B1 Pa0 B0", budget=11)
    assert found.timetable.starts == (0, 1, 5, 7, 10, 13)
    assert [(str(move.op), move.start, move.end) for move in found.timetable.moves] == [
        ("Oa0", 0, 2),
        ("Oa1", 2, 5),
        ("Pa1", 7, 10),
        ("Pa0", 10, 12),
    ]
    assert found.makespan == 14
    assert found.peak_bytes == 11


def test_latency_and_two_directions_by_hand() -> None:
    text = "Oa0 Fa0 Oa1 Fa1 Fa2 Pa1 B2 B1 Pa0 B0"
    slow = run(text, link=Link(bandwidth=1, latency=Fraction(1, 2)))
    assert [(move.start, move.end) for move in slow.timetable.moves] == [
        (0, Fraction(5, 2)),
        (Fraction(5, 2), 6),
        (6, Fraction(19, 2)),
        (Fraction(19, 2), 12),
    ]
    early = "Oa0 Fa0 Fa1 Oa1 Fa2 Pa0 B2 Pa1 B1 B0"
    half, full = run(early), run(early, link=Link(bandwidth=1, duplex="full"))
    assert [move.start for move in half.timetable.moves] == [0, 2, 5, 7]
    assert [move.start for move in full.timetable.moves] == [0, 2, 3, 5]


def test_what_ends_frees_before_what_starts_takes() -> None:
    """a0 leaves at 2, just when F_1 ends and F_2 begins."""
    found = run(
        "Oa0 Fa0 Fa1 Fa2 B2 B1 Pa0 B0", budget=14, profile=replace(PLAIN, forward_times=(1, 1, 2))
    )
    assert found.timetable.starts[2] == 2
    assert found.peak_bytes == 14


@pytest.mark.parametrize(
    ("text", "index", "reason"),
    [
        ("Fa1", 0, "Fa1 is out of order; Fa0 is the next computation"),
        ("Fa0 B0", 1, "B0 is out of order; Fa1 is the next computation"),
        ("Fa0 Fa1 Fa2 B2 B1 B0 B0", 6, "B0 comes after the last backward"),
        ("Oa1", 0, "Oa1 comes before Fa0, which makes a1"),
        ("Oa0 Oa0", 1, "Oa0 comes a second time"),
        ("Oa3", 0, "Oa3 names a3; only a0 to a2 can be offloaded"),
        ("Pa0", 0, "Pa0 brings back a0, which was not offloaded"),
        ("Oa0 Fa0 Pa0 Pa0", 3, "Pa0 comes a second time"),
        ("Oa0 Pa0", 1, "Pa0 waits for ever: what it needs comes later in the schedule"),
        ("Fa0 Oa0 Fa1 Fa2 B2 B1 B0", 6, "B0 needs a0, which is on the host; issue Pa0 before"),
        ("Fa0 Fa1 Fa2 B2 B1 B0 Oa0", 6, "Oa0 comes after B0, which a0 has to be back for"),
        ("Fn0", 0, "Fn0 is not an operation of offloading; write Fa, B, Oa or Pa"),
        ("0:Fa0", 0, "0:Fa0 names a branch"),
    ],
)
def test_what_cannot_run_is_refused_with_its_place(text: str, index: int, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason) as caught:
        run(text)
    assert caught.value.index == index


def test_an_unfinished_schedule_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="the schedule ends before B1"):
        run("Fa0 Fa1 Fa2 B2")


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(
        InvalidScheduleError, match="Fa2 waits for ever: it needs 7 bytes beside the 9"
    ):
        run("Fa0 Fa1 Fa2 B2 B1 B0", budget=15)
    with pytest.raises(InvalidScheduleError, match="input has 2 bytes, the budget is 1"):
        run("Fa0", budget=1)


STARTS = (0, 1, 3, 5, 7, 10)
OUT, BACK = Op(OpKind.OFFLOAD_ACTIVATION, 0), Op(OpKind.PREFETCH_ACTIVATION, 0)


def fluid(*moves: Move, starts: tuple[int, ...] = STARTS, kind: str = "interruptible") -> int:
    timetable = Timetable(starts, moves)
    found = simulate_timetable(PLAIN, timetable, link=LINK, transfers=kind)
    assert found.makespan == 11
    return found.peak_bytes


def test_bytes_are_free_as_they_leave() -> None:
    """F_2 at 3 needs 16: with a0 away 14, with half of it gone by then 15."""
    assert fluid() == 16
    assert fluid(Move(OUT, 0, 2), Move(BACK, 6, 8)) == 14
    assert fluid(Move(OUT, 0, 1), Move(OUT, 4, 5), Move(BACK, 6, 8)) == 15
    assert fluid(Move(OUT, 0, 1), Move(BACK, 6, 7), kind="fractional") == 15


def test_what_left_during_its_forward_is_free_when_that_ends() -> None:
    profile = replace(PLAIN, forward_times=(4, 2, 2), activations=(2, 3, 4, 2))
    starts = (0, 4, 6, 8, 10, 13)
    away = Timetable(starts, (Move(OUT, 0, 2), Move(BACK, 10, 12)))
    assert simulate_timetable(profile, away, link=LINK).peak_bytes == 14


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        ([Move(OUT, 0, 2)], "a0 moves in one direction only"),
        ([Move(OUT, 0, 2), Move(BACK, 0, 2)], "Pa0 moves from 0, while Oa0 has the link until 2"),
        ([Move(OUT, 0, 1), Move(BACK, 6, 7)], "1 bytes of a0 move, it has 2"),
        ([Move(OUT, 0, 2), Move(BACK, 6, 7)], "2 bytes of a0 leave, 1 come back"),
        ([Move(OUT, 0, 3), Move(BACK, 6, 9)], "3 bytes of a0 move, it has 2"),
        ([Move(OUT, 0, 2), Move(BACK, 9, 11)], "a0 is back at 11, B0 needs it at 10"),
        ([Move(OUT, 0, 1), Move(BACK, 4, 6), Move(OUT, 6, 7)], "comes back at 4, it is away at 7"),
        ([Move(OUT, 2, 1), Move(BACK, 4, 6)], "Oa0 moves from 2 to 1"),
        ([Move(Op(OpKind.BACKWARD, 0), 0, 1)], "B0 moves no activation"),
        (
            [
                Move(Op(OpKind.OFFLOAD_ACTIVATION, 1), 0, 3),
                Move(Op(OpKind.PREFETCH_ACTIVATION, 1), 4, 7),
            ],
            "a1 leaves at 0, it is made at 1",
        ),
        (
            [
                Move(Op(OpKind.OFFLOAD_ACTIVATION, 3), 5, 7),
                Move(Op(OpKind.PREFETCH_ACTIVATION, 3), 7, 9),
            ],
            "a3 moves; only a0 to a2 can be offloaded",
        ),
    ],
)
def test_timetables_that_cannot_be_are_refused(moves: list[Move], reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        fluid(*moves)


def test_computations_must_not_overlap_nor_lack() -> None:
    with pytest.raises(InvalidScheduleError, match="Fa1 starts at 0, before 1"):
        fluid(starts=(0, 0, 3, 5, 7, 10))
    with pytest.raises(InvalidScheduleError, match=r"starts 5 computations, .* 3 stages has 6"):
        fluid(starts=(0, 1, 3, 5, 7))


def test_fluid_models_need_fluid_links() -> None:
    timetable = Timetable(STARTS, ())
    with pytest.raises(InvalidProfileError, match="latency is 1, and interruptible transfers have"):
        simulate_timetable(PLAIN, timetable, link=Link(bandwidth=1, latency=1))
    with pytest.raises(InvalidProfileError, match="transfers is 'integral'"):
        simulate_timetable(PLAIN, timetable, link=LINK, transfers=Transfers.INTEGRAL)
