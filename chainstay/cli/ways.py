"""What a budget can be met with, side by side: every way judged on the same costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.table import Table
from rich.text import Text

from chainstay.cli.tables import short_bytes
from chainstay.cli.terminal import busy, plain_table
from chainstay.errors import (
    BackendError,
    InfeasibleBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnsupportedModelError,
)
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.timetable import Time
from chainstay.units import format_time

__all__ = ["Way", "best_of", "checkpointed", "solved", "ways_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train within a budget.

    Attributes:
        name: For people.
        makespan: Of a step; ``None`` where there is no schedule.
        peak_bytes: Of a step, likewise.
        solution: Of those that are solved for.
        says: How sure it is to be the best of its kind, or why there is none.
        refusal: What was said instead of a solution.
        plain_time: Of a step without a budget, where that was measured for this way anew;
            ``None`` for that of the table.
    """

    name: str
    makespan: Time | None = None
    peak_bytes: int | None = None
    solution: Solution | None = None
    says: str = ""
    refusal: InfeasibleBudgetError | None = None
    plain_time: Time | None = None

    def slowdown(self, plain_time: Time) -> Fraction:
        """How many times as long as without a budget a step takes."""
        return Fraction(self.makespan or 0) / ((self.plain_time or plain_time) or 1)


def solved(name: str, solve: Callable[[], Solution]) -> Way:
    """What a solver says, or why it says nothing."""
    try:
        with busy(f"solving: {name}"):
            solution = solve()
    except InfeasibleBudgetError as refusal:
        needs = short_bytes(refusal.required)
        return Way(name=name, says=f"needs {needs}", refusal=refusal)
    except SolverLimitError:
        return Way(name=name, says="time ran out")
    except InvalidProfileError as refusal:
        return Way(name=name, says="not with skips" if "skips" in str(refusal) else "not for it")
    except UnsupportedModelError:
        return Way(name=name, says="not for it")
    except BackendError:
        return Way(name=name, says="no solver for it here")
    proof = "optimal" if solution.is_optimal else f"at most {solution.gap:.1%} above"
    if not solution.lower_bound:
        proof = "no bound"
    return Way(
        name=name,
        makespan=solution.makespan,
        peak_bytes=solution.peak_bytes,
        solution=solution,
        says=proof,
    )


def checkpointed(
    schedules: Sequence[Schedule],
    judge: Callable[[Schedule], tuple[int, int]],
    budget: int,
) -> Way:
    """The best segment count of torch's ``checkpoint_sequential``.

    Args:
        schedules: With 1, 2, ... segments.
        judge: From a schedule to makespan and peak.
        budget: In bytes.
    """
    judged = [(*judge(schedule), count) for count, schedule in enumerate(schedules, start=1)]
    fitting = [each for each in judged if each[1] <= budget]
    if not fitting:
        needs = short_bytes(min(peak for _, peak, _ in judged))
        return Way(name="torch checkpoint", says=f"needs {needs}")
    makespan, peak, count = min(fitting)
    return Way(name=f"torch checkpoint ({count})", makespan=makespan, peak_bytes=peak)


def best_of(ways: Sequence[Way], plain_time: Time = 1) -> Way:
    """The fastest that was solved for; of equals the first.

    Args:
        ways: To choose from.
        plain_time: Of a step without a budget.

    Raises:
        InfeasibleBudgetError: None fits; it names the least budget in which one does.
        SolverLimitError: Time ran out before any was found.
    """
    found = [way for way in ways if way.solution is not None and way.makespan is not None]
    if found:
        return min(found, key=lambda way: way.slowdown(plain_time))
    refusals = [way.refusal for way in ways if way.refusal is not None]
    if refusals:
        raise min(refusals, key=lambda refusal: refusal.required)
    raise SolverLimitError(
        "no way was found in the time that there was; give more with --time-limit, or use "
        "--method auto"
    )


def ways_table(ways: Sequence[Way], chosen: Way, plain_time: Time) -> Table:
    """All ways, the chosen one marked."""
    table = plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("way", overflow="fold")
    for heading in ("peak", "step", "slower"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of its kind", overflow="fold")
    for way in ways:
        style = "bold" if way is chosen else "" if way.makespan is not None else "dim"
        table.add_row(*(Text(cell, style=style) for cell in _cells(way, plain_time, way is chosen)))
    return table


def _cells(way: Way, plain_time: Time, is_chosen: bool) -> Iterator[str]:  # noqa: FBT001
    yield ">" if is_chosen else ""
    yield way.name
    yield "" if way.peak_bytes is None else short_bytes(way.peak_bytes)
    yield "" if way.makespan is None else format_time(way.makespan)
    slower = float(way.slowdown(plain_time)) - 1 if way.makespan and plain_time else 0.0
    yield "" if way.makespan is None else f"{slower:.1%}"
    if way.plain_time is None or way.makespan is None:
        yield way.says
    else:
        yield f"{way.says}; plain {format_time(way.plain_time)}"
