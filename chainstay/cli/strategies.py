"""Strategies to train within a budget, compared with each other at the same costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.table import Table
from rich.text import Text

from chainstay.baselines import ScheduleCosts, checkpoint_sequential
from chainstay.cli.terminal import new_table, short_bytes, spinner
from chainstay.errors import (
    BackendError,
    ChainstayError,
    HostBudgetError,
    InfeasibleBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    SolverLimitError,
    UnsupportedModelError,
)
from chainstay.plans import Plan
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.timetable import Time
from chainstay.units import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One strategy to train within a budget.

    Attributes:
        name: Name of the strategy.
        makespan: Time of a step in ns; ``None`` if there is no schedule.
        peak_bytes: Peak of a step in bytes; ``None`` if there is no schedule.
        solution: The solution, if the strategy was solved for.
        remark: The proof in a few words, or the reason why there is no schedule.
        refusal: The error of a solver that found no schedule.
        plain_time: Time of a step without a budget in ns, if it was measured for this
            strategy anew; ``None`` for that of the table.
    """

    name: str
    makespan: Time | None = None
    peak_bytes: int | None = None
    solution: Solution | None = None
    remark: str = ""
    refusal: ChainstayError | None = None
    plain_time: Time | None = None

    def slowdown(self, plain_time: Time) -> Fraction:
        """Return the time of a step as a multiple of that without a budget."""
        return Fraction(self.makespan or 0) / ((self.plain_time or plain_time) or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A plan, and the strategies that it was chosen from.

    Attributes:
        title: The model or profile, for people.
        strategies: All strategies.
        chosen: The plan's strategy.
        plan: The plan.
        plain_time: Time of a step without a budget, in ns.
        plain_bytes: Peak of a step without a budget, in bytes.
    """

    title: str
    strategies: Sequence[Strategy]
    chosen: Strategy
    plan: Plan
    plain_time: Time
    plain_bytes: int


def solve_strategy(name: str, solve: Callable[[], Solution]) -> Strategy:
    """Run a solver and return its solution, or the reason why there is none."""
    try:
        with spinner(f"solving: {name}"):
            solution = solve()
    except (
        InfeasibleBudgetError,
        HostBudgetError,
        SolverLimitError,
        InvalidProfileError,
        UnsupportedModelError,
        BackendError,
    ) as refusal:
        return refused_strategy(name, refusal)
    return solved_strategy(name, solution)


def solved_strategy(name: str, solution: Solution) -> Strategy:
    """Return a strategy with its solution."""
    proof = "optimal" if solution.is_optimal else f"at most {solution.gap:.1%} above"
    if not solution.lower_bound:
        proof = "no bound"
    return Strategy(
        name=name,
        makespan=solution.makespan,
        peak_bytes=solution.peak_bytes,
        solution=solution,
        remark=proof,
    )


def refused_strategy(name: str, refusal: ChainstayError) -> Strategy:
    """Return a strategy that has no solution, with the reason."""
    return Strategy(name=name, remark=_remark(refusal), refusal=refusal)


def _remark(refusal: ChainstayError) -> str:
    match refusal:
        case InfeasibleBudgetError():
            return f"needs {short_bytes(refusal.required)}"
        case HostBudgetError():
            return f"needs {short_bytes(refusal.required)} of host memory"
        case SolverLimitError():
            return "time limit reached"
        case InvalidScheduleError():
            return "does not fit as it runs"
        case BackendError():
            return "solver not installed"
    is_of_skips = isinstance(refusal, InvalidProfileError) and "skips" in str(refusal)
    return "no skips allowed" if is_of_skips else "not applicable"


def plain_training(makespan: Time, peak_bytes: int, budget: int) -> Strategy:
    """Return plain training, whether it fits or not."""
    remark = "fits" if peak_bytes <= budget else "does not fit"
    return Strategy(name="keep everything", makespan=makespan, peak_bytes=peak_bytes, remark=remark)


def best_checkpointing(
    stages: int, simulate: Callable[[Schedule], ScheduleCosts], budget: int
) -> Strategy:
    """Return the best segment count of torch's ``checkpoint_sequential``."""
    replays = [(simulate(checkpoint_sequential(stages, n)), n) for n in range(1, max(2, stages))]
    simulated = [(replay.makespan, replay.peak_bytes, count) for replay, count in replays]
    fitting = [(makespan, peak, count) for makespan, peak, count in simulated if peak <= budget]
    if not fitting:
        needs = short_bytes(min(peak for _, peak, _ in simulated))
        return Strategy(name="torch checkpoint", remark=f"needs {needs}")
    makespan, peak, count = min(fitting)
    return Strategy(name=f"torch checkpoint ({count})", makespan=makespan, peak_bytes=peak)


def fastest_strategy(strategies: Sequence[Strategy], plain_time: Time = 1) -> Strategy:
    """Return the fastest strategy that was solved for; of equals the first.

    Raises:
        InfeasibleBudgetError: None fits; it names the least budget in which one does.
        ChainstayError: None was found for another reason, such as the time limit.
    """
    found = [s for s in strategies if s.solution is not None and s.makespan is not None]
    if found:
        return min(found, key=lambda strategy: strategy.slowdown(plain_time))
    refusals = [strategy.refusal for strategy in strategies if strategy.refusal is not None]
    tight = [refusal for refusal in refusals if isinstance(refusal, InfeasibleBudgetError)]
    if tight:
        raise min(tight, key=lambda refusal: refusal.required)
    if any(isinstance(refusal, SolverLimitError) for refusal in refusals):
        raise SolverLimitError(
            "no plan was found within the time limit; raise --time-limit, or use --method auto"
        )
    raise refusals[0]


def strategy_table(
    strategies: Sequence[Strategy], chosen: Strategy, plain_time: Time, unit: str
) -> Table:
    """Return a table of all strategies with the chosen one marked; sizes are in `unit`."""
    table = new_table()
    table.add_column("", no_wrap=True)
    table.add_column("strategy", overflow="fold")
    for heading in ("peak", "step", "slower"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("proof", overflow="fold")
    for strategy in strategies:
        is_chosen = strategy is chosen
        style = "bold" if is_chosen else "" if strategy.makespan is not None else "dim"
        mark = ">" if is_chosen else ""
        cells = (mark, *_cells(strategy, plain_time, unit))
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _cells(strategy: Strategy, plain_time: Time, unit: str) -> Iterator[str]:
    is_of_slots = unit == "slots"  # then times are no nanoseconds either
    size, makespan = strategy.peak_bytes, strategy.makespan
    yield strategy.name
    yield "" if size is None else f"{size} {unit}" if is_of_slots else short_bytes(size)
    yield "" if makespan is None else str(makespan) if is_of_slots else format_time(makespan)
    has_times = strategy.makespan and plain_time
    slower = float(strategy.slowdown(plain_time)) - 1 if has_times else 0.0
    yield "" if strategy.makespan is None else f"{slower:.1%}"
    if strategy.plain_time is None or strategy.makespan is None:
        yield strategy.remark
    else:
        yield f"{strategy.remark}; plain {format_time(strategy.plain_time)}"
