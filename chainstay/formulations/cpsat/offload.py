"""Offloading whole activations as a constraint program: intervals on a link and in memory.

Every activation that can move has an optional offload and prefetch; those on one link (or in
one direction of it) do not overlap, and memory is a cumulative resource: ``x_j`` is there
from the start of ``F_{j-1}`` until it has left, and from the start of its prefetch until
``B_{j-1}`` ends. Exact for the integral problem ([BES20], Problem 1).

For every computation above the budget, constraints say which activations are away when it starts.
Where it takes time they are implied, and let the solver reason by order: without them, proofs
crawl through time, tick by tick. Where it takes none, its intervals hold no memory, and these
constraints limit it.

Times are whole steps: ticks of the link, or so many of them that all times fit CP-SAT's exact
range. Durations round up then, which keeps schedules valid and adds at most a step per
operation to the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

from chainstay.errors import SolverLimitError
from chainstay.formulations.ortools_backend import (
    LONGEST,
    CpSatResult,
    Literal,
    Model,
    new_model,
    require_exact,
    solve,
)
from chainstay.formulations.settings import SolverSettings, TerminationStatus
from chainstay.problems.offload import OffloadClaim, OffloadProblem, transfer_contradiction_error
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family
from chainstay.timetable import Time, Timetable, exact, sorted_by_start
from chainstay.units import format_bytes

TimeSteps: TypeAlias = Any
"""A whole number of steps: a variable of CP-SAT, an expression, or a number."""


@dataclass(frozen=True, slots=True)
class _MovableActivation:
    """An activation that can move; its times are zero where it does not.

    Attributes:
        moves: Whether it is offloaded and prefetched.
        offload: Step at which its offload starts.
        released: Step at which its memory is free.
        prefetch: Step at which its prefetch starts.
    """

    moves: Literal
    offload: TimeSteps
    released: TimeSteps
    prefetch: TimeSteps


@dataclass(slots=True)
class OffloadProgram:
    """A CP-SAT model and the meaning of its variables.

    Attributes:
        problem: The problem that it states.
        model: The CP-SAT model.
        horizon: Steps that no answer exceeds.
        ticks_per_step: How many ticks of the link a step has.
        starts: Steps at which computations start.
        times: Steps that computations take.
        moving: Activations that can move, by index.
        intervals: Intervals that take memory of the device.
        demands: Bytes that each of these intervals takes.
    """

    problem: OffloadProblem
    model: Model
    horizon: int
    ticks_per_step: int
    starts: list[TimeSteps] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    moving: dict[int, _MovableActivation] = field(default_factory=dict)
    intervals: list[Any] = field(default_factory=list)
    demands: list[int] = field(default_factory=list)

    def steps(self, ticks: int) -> int:
        """Return the steps that cover `ticks`."""
        return -(-ticks // self.ticks_per_step)

    def transfer_steps(self, j: int) -> int:
        """Return the steps that activation j takes on the link."""
        return self.steps(self.problem.link.transfer_ticks(self.problem.profile.activations[j]))

    def end(self, number: int) -> TimeSteps:
        """Return the step at which computation `number` ends."""
        return self.starts[number] + self.times[number]

    def store(
        self, start: TimeSteps, end: TimeSteps, size: int, only_if: Literal | None = None
    ) -> None:
        """Take `size` bytes from `start` to `end`, or only if a literal holds."""
        if not size:
            return
        length = self.model.new_int_var(0, self.horizon, "")
        if only_if is None:
            interval = self.model.new_interval_var(start, length, end, "")
        else:
            interval = self.model.new_optional_interval_var(start, length, end, only_if, "")
        self.intervals.append(interval)
        self.demands.append(size)

    def start_from(self, timetable: Timetable) -> None:
        """Hint the times of a known answer."""
        scale = Fraction(self.problem.link.ticks, self.ticks_per_step)
        for variable, start in zip(self.starts, timetable.starts, strict=True):
            self.model.add_hint(variable, math.ceil(start * scale))
        first = {move.op: math.ceil(move.start * scale) for move in reversed(timetable.moves)}
        for j, moving in self.moving.items():
            offload = first.get(Op(OpKind.OFFLOAD_ACTIVATION, j))
            prefetch = first.get(Op(OpKind.PREFETCH_ACTIVATION, j))
            self.model.add_hint(moving.moves, offload is not None)
            self.model.add_hint(moving.offload, offload or 0)
            self.model.add_hint(moving.prefetch, prefetch or 0)

    def decode(self, outcome: CpSatResult) -> Schedule:
        """Return the schedule that the solver found."""
        assert outcome.values is not None, "there is nothing to decode"
        values = outcome.values
        transfers: dict[Op, Time] = {}
        for j, moving in self.moving.items():
            if outcome.is_on(moving.moves):
                transfers[Op(OpKind.OFFLOAD_ACTIVATION, j)] = values[moving.offload.index]
                transfers[Op(OpKind.PREFETCH_ACTIVATION, j)] = values[moving.prefetch.index]
        return sorted_by_start([values[start.index] for start in self.starts], transfers)


def build(problem: OffloadProblem, *, known: Time | None = None, least: Time = 0) -> OffloadProgram:
    """Return the program of `problem`, whose transfers are integral.

    Args:
        problem: A feasible problem.
        known: A makespan that can be reached; no slower answer is looked for.
        least: A makespan that no answer is below.

    Raises:
        InvalidProfileError: The sizes add up to more than 2**53.
        BackendError: OR-Tools is missing.
    """
    profile, link = problem.profile, problem.link
    require_exact(profile.peak_bytes)
    movable = [j for j, size in enumerate(profile.activations[: len(profile) - 1]) if size]
    longest = profile.least_time * link.ticks
    longest += 2 * sum(link.transfer_ticks(profile.activations[j]) for j in movable)
    ticks_per_step = max(1, -(-longest // LONGEST))
    operations = 2 * (len(profile) + len(movable))
    horizon = longest // ticks_per_step + operations
    if known is not None:
        rounding = 0 if ticks_per_step == 1 else operations
        horizon = min(horizon, math.ceil(known * link.ticks / Fraction(ticks_per_step)) + rounding)
    program = OffloadProgram(problem, new_model(), horizon, ticks_per_step)
    _compute_in_order(program)
    _move_one_at_a_time(program, movable)
    _store_activations(program)
    _store_the_rest(program)
    _free_enough(program)
    program.model.add_cumulative(program.intervals, program.demands, problem.budget)
    makespan = program.end(2 * len(profile) - 1)
    program.model.add(makespan >= math.ceil(least * link.ticks / Fraction(ticks_per_step)))
    program.model.minimize(makespan)
    return program


def claim(
    problem: OffloadProblem,
    settings: SolverSettings,
    *,
    known: OffloadClaim | None = None,
    least: Time = 0,
) -> OffloadClaim:
    """Return the fastest schedule that CP-SAT finds, and its bound.

    Args:
        problem: Feasible; its transfers are integral.
        settings: The settings.
        known: An answer to start from, with its timetable.
        least: A makespan that no answer is below.

    Raises:
        SolverLimitError: Time ran out with nothing to show.
        BackendError: OR-Tools is missing, or CP-SAT failed.
        CertificateError: CP-SAT says that nothing fits.
        InvalidProfileError: The sizes add up to more than 2**53.
    """
    program = build(problem, known=None if known is None else known.makespan, least=least)
    if known is not None:
        assert known.timetable is not None, "its times are the start"
        program.start_from(known.timetable)
    outcome = solve(program.model, settings.limits)
    if outcome.status is TerminationStatus.INFEASIBLE:
        if problem.link.capacity is not None:
            raise SolverLimitError(f"{settings}: nothing fits with so little room on the host")
        raise transfer_contradiction_error(
            f"{settings} says that nothing fits", problem, {str(settings): None}
        )
    step = Fraction(program.ticks_per_step, problem.link.ticks)
    slack = 0 if program.ticks_per_step == 1 else 2 * (len(problem.profile) + len(program.moving))
    bound = max(least, exact(step * ((outcome.bound or 0) - slack)))
    if outcome.values is None:
        if known is None:
            raise SolverLimitError(
                f"{settings} found no schedule of this {len(problem.profile)}-stage chain in "
                f"{format_bytes(problem.budget)} in time; raise time_limit_s, or use "
                "method='heuristics'",
                best_bound=math.ceil(bound),
            )
        return replace(known, lower_bound=min(bound, known.makespan), family=Family.ALL)
    found = exact(step * outcome.objective)
    is_proved = outcome.status is TerminationStatus.OPTIMAL and not slack
    return OffloadClaim(
        schedule=program.decode(outcome),
        makespan=found,
        lower_bound=found if is_proved else min(bound, found),
        family=Family.ALL,
    )


def _compute_in_order(program: OffloadProgram) -> None:
    """Let one computation run at a time, in their order."""
    profile, ticks = program.problem.profile, program.problem.link.ticks
    program.times = [
        program.steps(u * ticks)
        for u in (*profile.forward_times, *reversed(profile.backward_times))
    ]
    program.starts = [
        program.model.new_int_var(0, program.horizon, f"start {k}")
        for k in range(len(program.times))
    ]
    for number in range(len(program.times) - 1):
        program.model.add(program.starts[number + 1] >= program.end(number))
    program.model.add(program.end(len(program.times) - 1) <= program.horizon)


def _move_one_at_a_time(program: OffloadProgram, movable: list[int]) -> None:
    """Let activations move: made, offloaded, released, prefetched, and then read again.

    An activation is released when it has left and its forward has read it.
    """
    model, links = program.model, ([], [])  # type: tuple[Any, tuple[list[Any], list[Any]]]
    last, on_host = len(program.times) - 1, []
    for j in movable:
        steps, moves = program.transfer_steps(j), model.new_bool_var(f"moves {j}")
        offload, released, prefetch = (
            model.new_int_var(0, program.horizon, f"{name} {j}")
            for name in ("offload", "released", "prefetch")
        )
        for link, start in zip(links, (offload, prefetch), strict=True):
            link.append(
                model.new_optional_interval_var(start, steps, start + steps, moves, f"link {j}")
            )
        if j:
            model.add(offload >= program.end(j - 1)).only_enforce_if(moves)
        model.add(released >= offload + steps).only_enforce_if(moves)
        model.add(released >= program.end(j)).only_enforce_if(moves)
        model.add(prefetch >= released).only_enforce_if(moves)
        model.add(prefetch + steps <= program.starts[last - j]).only_enforce_if(moves)
        for time in (offload, prefetch):
            model.add(time == 0).only_enforce_if(~moves)
        program.moving[j] = _MovableActivation(moves, offload, released, prefetch)
        length, back = model.new_int_var(0, program.horizon, ""), prefetch + steps
        on_host.append(model.new_optional_interval_var(offload, length, back, moves, f"host {j}"))
    if program.problem.link.is_full_duplex:
        for link in links:
            model.add_no_overlap(link)
    else:
        model.add_no_overlap([*links[0], *links[1]])
    if (capacity := program.problem.link.capacity) is not None:
        sizes = [program.problem.profile.activations[j] for j in movable]
        model.add_cumulative(on_host, sizes, capacity)


def _store_activations(program: OffloadProgram) -> None:
    """Take memory for activations from their making to the backward that frees them.

    An activation takes none while it is away.
    """
    last = len(program.times) - 1
    for j, size in enumerate(program.problem.profile.activations):
        made = program.starts[j - 1] if j else 0
        freed = program.end(last - j + 1) if j else program.end(last)
        if j not in program.moving:
            program.store(made, freed, size)
            continue
        moving = program.moving[j]
        program.model.add(moving.released == freed).only_enforce_if(~moving.moves)
        program.store(made, moving.released, size)
        program.store(moving.prefetch, freed, size, moving.moves)


def _store_the_rest(program: OffloadProgram) -> None:
    """Take memory for overheads, and for gradients between the backwards that make and use them."""
    profile, last = program.problem.profile, len(program.times) - 1
    for j, size in enumerate(profile.gradients):
        made = program.starts[last - min(j, len(profile) - 1)]
        program.store(made, program.end(last - j + 1) if j else program.end(last), size)
    overheads = (*profile.forward_overheads, *reversed(profile.backward_overheads))
    for number, size in enumerate(overheads):
        program.store(program.starts[number], program.end(number), size)


def _free_enough(program: OffloadProgram) -> None:
    """Let the excess of a computation above the budget be away when it starts."""
    profile, budget = program.problem.profile, program.problem.budget
    loads = (*profile.forward_loads, *reversed(profile.backward_loads))
    for number, load in enumerate(loads):
        stage = min(number, len(loads) - 1 - number)
        older = {j: moving for j, moving in program.moving.items() if j < stage}
        if load <= budget:
            continue
        terms = [
            (profile.activations[j], _is_away(program, moving, number))
            for j, moving in older.items()
        ]
        program.model.add(sum(size * literal for size, literal in terms) >= load - budget)


def _is_away(program: OffloadProgram, moving: _MovableActivation, number: int) -> Literal:
    """Return a literal that implies that an activation is away when computation `number` starts."""
    away = program.model.new_bool_var("")
    program.model.add_implication(away, moving.moves)
    program.model.add(moving.released <= program.starts[number]).only_enforce_if(away)
    program.model.add(moving.prefetch >= program.starts[number]).only_enforce_if(away)
    return away
