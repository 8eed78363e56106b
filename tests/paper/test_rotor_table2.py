"""The toy of [BEHJS24], Table 2, and the makespans printed beside it (Section 3)."""

from __future__ import annotations

import pytest

from chainstay import ChainProfile, Stage, simulate, solve_chain

# Sizes in MB and times in ms as printed; here in units of 10 kB and 10 µs, so all are whole.
OUTPUT = (954, 1068, 1106, 1068, 954, 763, 0)
SAVED = (954, 1068, 1108, 1066, 954, 763, 0)
BACKWARD_OVERHEAD = (2001, 2764, 3099, 3099, 2764, 1908, 0)
FORWARD_TIME = (160, 220, 244, 251, 210, 143, 0)
BACKWARD_TIME = (305, 448, 509, 493, 421, 334, 0)

TOY = ChainProfile(
    input_bytes=763,
    input_gradient_bytes=763,
    stages=tuple(
        Stage(
            name=f"fc{number}",
            forward_time=forward_time,
            backward_time=backward_time,
            output_bytes=output,
            saved_bytes=saved,
            gradient_bytes=output,
            backward_overhead_bytes=overhead,
        )
        for number, (output, saved, overhead, forward_time, backward_time) in enumerate(
            zip(OUTPUT, SAVED, BACKWARD_OVERHEAD, FORWARD_TIME, BACKWARD_TIME, strict=True), 1
        )
    ),
)


@pytest.mark.parametrize("method", ["dp", "mip", "auto"])
@pytest.mark.parametrize(("budget", "makespan"), [(9_000, 4_742), (10_700, 3_738)])
def test_printed_makespans(method: str, budget: int, makespan: int) -> None:
    solution = solve_chain(TOY, budget, method=method)
    assert solution.makespan == makespan
    assert solution.is_optimal


def test_printed_schedule_replays() -> None:
    schedule = solve_chain(TOY, 9_000, method="dp").schedule
    assert simulate(TOY, schedule).peak_bytes <= 9_000
