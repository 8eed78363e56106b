"""Recomputing and offloading as a constraint program: lifetimes of items in memory and on links.

Between two backwards come *sweeps* over the stages; each forward in them is optional, and
makes a plain activation or saved data. What it makes has a *lifetime* in memory, and so has what a
prefetch brings back; whoever reads an item names one of its lifetimes. Memory before and behind
the links is cumulative, each link serves one transfer at a time. Nothing is assumed about
discards, and every schedule within the `ModelSize` is a solution.

Computations that take no time hold memory all the same. So all times are multiples of a
*time unit*, and a computation without time takes one unit: as there are fewer of them than units
in a tick, times in ticks are what they were.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from chainstay.formulations.cpsat.hybrid_truncation import ModelSize, item_bytes, items_of
from chainstay.formulations.cpsat.hybrid_variables import (
    ComputationInterval,
    HybridProgram,
    ItemTransfers,
    TimeUnits,
)
from chainstay.formulations.ortools_backend import LONGEST, Literal, new_model, require_exact
from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import ChainProfile
from chainstay.profiles.chain import require_plain
from chainstay.schedule import Item
from chainstay.timetable import Time

_PREFETCH: Final = -1
_INPUT: Final = -2


def build(
    problem: HybridProblem, model_size: ModelSize, *, known: Time | None = None, least: Time = 0
) -> HybridProgram:
    """Return the program of `problem`, whose transfers are integral.

    Args:
        problem: The problem to state.
        model_size: How much of it to state.
        known: A makespan that can be reached; no slower answer is looked for.
        least: A makespan that no answer is below.

    Raises:
        InvalidProfileError: The sizes add up to more than 2**53, or stages have options.
        BackendError: OR-Tools is missing.
    """
    profile = problem.profile
    require_plain(profile, "the integer program of recomputing with offloading")
    require_exact(
        sum(item_bytes(problem, item) for item in items_of(problem))
        + sum(profile.gradient_bytes(i) for i in range(len(profile) + 1))
        + sum(s.forward_overhead_bytes + s.backward_overhead_bytes for s in profile.stages)
    )
    program = _empty_program(problem, model_size, known)
    model = program.model
    _compute_in_order(program)
    _add_lifetimes(program)
    _move_one_at_a_time(program)
    _read(program)
    _make_nothing_in_vain(program)
    _store_in_budget(program)
    model.add(
        program.makespan
        >= math.ceil(
            least * problem.link.ticks * Fraction(program.units_per_tick, program.ticks_per_unit)
        )
    )
    model.minimize(program.makespan)
    return program


def _empty_program(
    problem: HybridProblem, model_size: ModelSize, known: Time | None
) -> HybridProgram:
    """Return the program without constraints; the fastest answers of this size keep its horizon."""
    profile, link = problem.profile, problem.link
    places = [(t, i) for t, i, _ in _forwards(len(profile), model_size.sweeps)]
    forward = [profile.stages[i].forward_time for _, i in places]
    backward = [stage.backward_time for stage in profile.stages]
    instant_computations = (forward + backward).count(0)
    longest = (sum(forward) + sum(backward)) * link.ticks
    moving = sum(link.transfer_ticks(item_bytes(problem, item)) for item in items_of(problem))
    longest += (1 + model_size.prefetches) * moving
    if known is not None:
        longest = min(longest, math.ceil(known * link.ticks))
    is_exact = longest * (instant_computations + 1) <= LONGEST
    units_per_tick, ticks = (
        (instant_computations + 1, 1) if is_exact else (1, -(-longest // LONGEST))
    )
    operations = len(places) + len(profile) + 2 * len(profile) * (1 + model_size.prefetches)
    horizon = -(-longest * units_per_tick // ticks) + (
        instant_computations if is_exact else operations
    )
    return HybridProgram(
        problem,
        model_size,
        new_model(),
        horizon,
        units_per_tick,
        ticks,
        instant_computations,
        is_exact,
        known,
    )


def _forwards(stages: int, sweeps: int) -> list[tuple[int, int, int]]:
    """Return phase (the backward that ends it), stage and sweep of every possible forward."""
    return [
        (phase, stage, sweep)
        for phase in reversed(range(stages))
        for sweep in range(sweeps)
        for stage in range(phase + 1)
    ]


def _compute_in_order(program: HybridProgram) -> None:
    """Let one computation run at a time, and each forward at least once.

    The latter follows from the rest, and helps the solver.
    """
    profile, ticks = program.problem.profile, program.problem.link.ticks
    forwards = _forwards(len(profile), program.model_size.sweeps)
    end: TimeUnits = 0
    for phase in reversed(range(len(profile))):
        for _, i, sweep in (forward for forward in forwards if forward[0] == phase):
            duration = program.covering_units(profile.stages[i].forward_time * ticks)
            saves = program.model.new_bool_var(f"Fa{i} {phase} {sweep}")
            plain = program.model.new_bool_var(f"Fc{i} {phase} {sweep}") if i < phase else None
            start = program.new_time(f"F{i} {phase} {sweep}")
            program.model.add(start >= end)
            runs = saves if plain is None else saves + plain
            if plain is not None:
                program.model.add_at_most_one(saves, plain)
            end = start + duration * runs
            program.computations.append(
                ComputationInterval(i, phase, sweep, start, end, duration, plain, saves)
            )
        duration = program.covering_units(profile.stages[phase].backward_time * ticks)
        start = program.new_time(f"B{phase}")
        program.model.add(start >= end)
        end = start + duration
        program.computations.append(
            ComputationInterval(phase, phase, 0, start, end, duration, None, None)
        )
    program.model.add(end <= program.horizon)
    last = len(profile) - 1
    for i in range(len(profile)):
        first = [p.runs for p in program.computations if (p.phase, p.stage) == (last, i)]
        program.model.add(sum(first[: program.model_size.sweeps]) >= 1)
    _pack_sweeps(program)


def _pack_sweeps(program: HybridProgram) -> None:
    """Let a sweep start where the one before ended, so that a sequence has one encoding only."""
    for phase in range(len(program.problem.profile)):
        by_lap = [
            [
                p
                for p in program.computations
                if p.phase == phase and p.sweep == sweep and not p.is_backward
            ]
            for sweep in range(program.model_size.sweeps)
        ]
        for before, sweep in pairwise(by_lap):
            for p in sweep:
                earlier = [q.runs for q in sweep if q.stage < p.stage]
                later = [q.runs for q in before if q.stage >= p.stage]
                program.model.add(sum(earlier) + sum(later) >= p.runs)


def _add_lifetimes(program: HybridProgram) -> None:
    """Add lifetimes: of what is made from its making, of what is prefetched from its prefetch."""
    problem, model = program.problem, program.model
    program.lifetimes = {item: [] for item in items_of(problem)}
    program.add_lifetime(Item("a", 0), _INPUT, 0, 0, model.new_constant(1))
    for position, p in enumerate(program.computations):
        for item, exists in ((Item("a", p.stage + 1), p.plain), (Item("b", p.stage), p.saves)):
            if exists is not None:
                program.add_lifetime(item, position, p.start, p.end, exists)
    for item, lifetimes in program.lifetimes.items():
        if item_bytes(problem, item):
            _may_move(program, item)
        model.add_no_overlap([lifetime.span for lifetime in lifetimes])


def _may_move(program: HybridProgram, item: Item) -> None:
    """Let an item be sent once, from one lifetime, and prefetched after it."""
    model = program.model
    sent = model.new_bool_var(f"sent {item}")
    transfers = ItemTransfers(sent, program.new_time(f"sent {item}"))
    took = _transfer_length(program, item) * sent
    gone = transfers.start + took
    for lifetime in program.lifetimes[item]:
        sends = model.new_bool_var("")
        model.add_implication(sends, lifetime.exists)
        model.add(transfers.start >= lifetime.ready).only_enforce_if(sends)
        model.add(lifetime.end >= gone).only_enforce_if(sends)
        lifetime.uses.append(sends)
        transfers.senders.append(sends)
    model.add(sum(transfers.senders) == sent)
    for number in range(
        program.model_size.useful_prefetches(program.problem, item, program.known_makespan)
    ):
        comes, start = model.new_bool_var(f"back {item} {number}"), program.new_time()
        model.add(start >= gone).only_enforce_if(comes)
        before = transfers.prefetches[-1][0] if number else None
        if before is None:
            model.add(sent == comes)
        else:
            model.add_implication(comes, before)
            model.add(start >= transfers.prefetches[-1][1]).only_enforce_if(comes)
        transfers.prefetches.append((comes, start))
        program.add_lifetime(item, _PREFETCH, start, start + took, comes)
    if not transfers.prefetches:
        model.add(sent == 0)
    program.transfers[item] = transfers


def _transfer_length(program: HybridProgram, item: Item) -> int:
    """Return how long the transfer of an item takes, in time units."""
    size = item_bytes(program.problem, item)
    return program.covering_units(program.problem.link.transfer_ticks(size))


def _move_one_at_a_time(program: HybridProgram) -> None:
    """Let the link, or each direction of it, serve one transfer at a time; limit the host."""
    model, link = program.model, program.problem.link
    out: list[Any] = []
    back: list[Any] = []
    held: list[Any] = []
    for item, transfers in program.transfers.items():
        length, sent = _transfer_length(program, item), transfers.sent
        out.append(model.new_optional_fixed_size_interval_var(transfers.start, length, sent, "out"))
        until = program.new_time()
        model.add(until >= transfers.start + length).only_enforce_if(sent)
        for comes, start in transfers.prefetches:
            back.append(model.new_optional_fixed_size_interval_var(start, length, comes, "back"))
            model.add(until >= start + length).only_enforce_if(comes)
        held.append(
            model.new_optional_interval_var(
                transfers.start, program.new_time(), until, sent, "held"
            )
        )
    for channel in (out, back) if link.is_full_duplex else (out + back,):
        model.add_no_overlap(channel)
    if link.capacity is not None:
        sizes = [item_bytes(program.problem, item) for item in program.transfers]
        model.add_cumulative(held, sizes, link.capacity)


def _read(program: HybridProgram) -> None:
    """Let each computation read a lifetime of its input in either form, and of saved data."""
    for position, p in enumerate(program.computations):
        program.reads[position] = []
        sources = [Item("a", p.stage)]
        if p.stage:
            sources.append(Item("b", p.stage - 1))
        program.model.add(sum(_reading(program, position, sources)) == p.runs)
        if p.is_backward:
            program.model.add(sum(_reading(program, position, [Item("b", p.stage)])) == 1)


def _reading(program: HybridProgram, position: int, sources: list[Item]) -> list[Literal]:
    """Return, for each lifetime of the sources, whether a computation reads it."""
    model, p = program.model, program.computations[position]
    literals = []
    for item in sources:
        for lifetime in program.lifetimes[item]:
            if lifetime.maker >= position:
                continue
            reads = model.new_bool_var("")
            model.add_implication(reads, lifetime.exists)
            model.add(lifetime.ready <= p.start).only_enforce_if(reads)
            model.add(lifetime.end >= p.end).only_enforce_if(reads)
            if len(sources) > 1 and item.kind == "b":
                _not_while_the_other_form_returns(program, p, reads)
            lifetime.uses.append(reads)
            program.reads[position].append((item, lifetime, reads))
            literals.append(reads)
    return literals


def _not_while_the_other_form_returns(
    program: HybridProgram, p: ComputationInterval, reads: Literal
) -> None:
    """Forbid to read the saved form while a prefetch of the plain form is on its way.

    A schedule reads the plain form where both are stored, and waits if it is on its way.
    """
    transfers = program.transfers.get(Item("a", p.stage))
    if transfers is None:
        return
    for lifetime in program.lifetimes[Item("a", p.stage)]:
        if lifetime.maker != _PREFETCH:
            continue
        is_back = program.model.new_bool_var("")
        conditions = [reads, lifetime.exists]
        program.model.add(lifetime.ready <= p.start).only_enforce_if([*conditions, is_back])
        program.model.add(lifetime.made >= p.start).only_enforce_if([*conditions, ~is_back])


def _make_nothing_in_vain(program: HybridProgram) -> None:
    """Let everything that is made or prefetched be read or sent."""
    for lifetimes in program.lifetimes.values():
        for lifetime in lifetimes:
            program.model.add_bool_or([~lifetime.exists, *lifetime.uses])


def _store_in_budget(program: HybridProgram) -> None:
    """Limit lifetimes, gradients and overheads to the budget."""
    problem, model = program.problem, program.model
    profile: ChainProfile = problem.profile
    spans: list[Any] = []
    sizes: list[int] = []

    def store(span: Any, size: int) -> None:
        if size:
            spans.append(span)
            sizes.append(size)

    for item, lifetimes in program.lifetimes.items():
        for lifetime in lifetimes:
            store(lifetime.span, item_bytes(problem, item))
    backwards = {p.stage: p for p in program.computations if p.is_backward}
    for i in range(len(profile) + 1):
        made = backwards[i].start if i < len(profile) else 0
        gone = backwards[i - 1].end if i else program.makespan
        store(model.new_interval_var(made, program.new_time(), gone, ""), profile.gradient_bytes(i))
    for p in program.computations:
        stage = profile.stages[p.stage]
        if p.is_backward:
            span = model.new_fixed_size_interval_var(p.start, p.duration, "")
            store(span, stage.backward_overhead_bytes)
        for literal in (p.plain, p.saves):
            if literal is not None:
                span = model.new_optional_fixed_size_interval_var(p.start, p.duration, literal, "")
                store(span, stage.forward_overhead_bytes)
    model.add_cumulative(spans, sizes, problem.budget)
