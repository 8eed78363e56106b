"""Recomputing and offloading as a constraint program: lives of items in memory and on links.

Between two backwards come *passes* over the stages; each forward in them is optional, and
makes a plain activation or saved data. What it makes has a *life* in memory, and so has what a
prefetch brings back; whoever reads an item names one of its lives. Memory behind and before
the links is cumulative, each link serves one transfer at a time. Nothing is assumed about
discards, and every program list within the `Extent` is a solution.

Computations that take no time hold memory all the same. So all times are multiples of a
*grain*, and a computation without time takes one grain: as there are fewer of them than grains
in a tick, times in ticks are what they were.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from chainstay.errors import InvalidProfileError
from chainstay.formulations.cpsat.binding import Literal, new_model
from chainstay.formulations.cpsat.lives import Computation, Grains, HybridProgram, Moves
from chainstay.formulations.extent import Extent, Item, items_of, size_of
from chainstay.hybrid import HybridProblem
from chainstay.profiles import ChainProfile
from chainstay.timetable import Time

__all__ = ["build"]

_PREFETCH: Final = -1
_INPUT: Final = -2
_LARGEST_BYTES: Final = 2**53
_LONGEST: Final = 2**45
"""Grains; sums of a few of them stay exact in floats, in which CP-SAT reports."""


def build(
    problem: HybridProblem, extent: Extent, *, known: Time | None = None, least: Time = 0
) -> HybridProgram:
    """State `problem`, whose transfers are integral.

    Args:
        problem: What to solve.
        extent: How much of it to state.
        known: A makespan that can be reached; no slower answer is looked for.
        least: A makespan that no answer is below.

    Raises:
        InvalidProfileError: The sizes add up to more than 2**53.
        BackendError: OR-Tools is missing.
    """
    _require_exact(problem)
    of = _empty_program(problem, extent, known)
    model = of.model
    _compute_in_order(of)
    _live(of)
    _move_one_at_a_time(of)
    _read(of)
    _make_nothing_in_vain(of)
    _store_in_budget(of)
    model.add(of.makespan >= math.ceil(least * problem.link.ticks * Fraction(of.grains, of.ticks)))
    model.minimize(of.makespan)
    return of


def _require_exact(problem: HybridProblem) -> None:
    profile = problem.profile
    total = sum(size_of(problem, item) for item in items_of(problem))
    total += sum(profile.gradient_bytes(i) for i in range(len(profile) + 1))
    total += sum(s.forward_overhead_bytes + s.backward_overhead_bytes for s in profile.stages)
    if total >= _LARGEST_BYTES:
        raise InvalidProfileError(
            f"sizes add up to {total} bytes, and CP-SAT is exact up to 2**53; measure in coarser "
            "units"
        )


def _empty_program(problem: HybridProblem, extent: Extent, known: Time | None) -> HybridProgram:
    """Without a sentence; its horizon is one that the fastest answers in the extent keep."""
    profile, link = problem.profile, problem.link
    places = [(t, i) for t, i, _ in _forwards(len(profile), extent.passes)]
    forward = [profile.stages[i].forward_time for _, i in places]
    backward = [stage.backward_time for stage in profile.stages]
    empty = (forward + backward).count(0)
    longest = (sum(forward) + sum(backward)) * link.ticks
    moving = 0
    for item in items_of(problem):
        slowest = max(
            link.transfer_ticks(size_of(problem, item), level) for level in range(len(link.levels))
        )
        moving += (1 + extent.prefetches) * slowest
    longest += moving
    if known is not None:
        longest = min(longest, math.ceil(known * link.ticks))
    is_exact = longest * (empty + 1) <= _LONGEST
    grains, ticks = (empty + 1, 1) if is_exact else (1, -(-longest // _LONGEST))
    operations = len(places) + len(profile) + 2 * len(profile) * (1 + extent.prefetches)
    horizon = -(-longest * grains // ticks) + (empty if is_exact else operations)
    return HybridProgram(
        problem, extent, new_model(), horizon, grains, ticks, empty, is_exact, known
    )


def _forwards(stages: int, passes: int) -> list[tuple[int, int, int]]:
    """Phase (the backward that ends it), stage and pass of every place for a forward."""
    return [
        (phase, stage, lap)
        for phase in reversed(range(stages))
        for lap in range(passes)
        for stage in range(phase + 1)
    ]


def _compute_in_order(of: HybridProgram) -> None:
    """One computation at a time; each forward at least once, which follows, and helps to see."""
    profile, ticks = of.problem.profile, of.problem.link.ticks
    forwards = _forwards(len(profile), of.extent.passes)
    end: Grains = 0
    for phase in reversed(range(len(profile))):
        for _, i, lap in (each for each in forwards if each[0] == phase):
            length = of.length(profile.stages[i].forward_time * ticks)
            saves = of.model.new_bool_var(f"Fa{i} {phase} {lap}")
            plain = of.model.new_bool_var(f"Fc{i} {phase} {lap}") if i < phase else None
            start = of.moment(f"F{i} {phase} {lap}")
            of.model.add(start >= end)
            runs = saves if plain is None else saves + plain
            if plain is not None:
                of.model.add_at_most_one(saves, plain)
            end = start + length * runs
            of.computations.append(Computation(i, phase, lap, start, end, length, plain, saves))
        length = of.length(profile.stages[phase].backward_time * ticks)
        start = of.moment(f"B{phase}")
        of.model.add(start >= end)
        end = start + length
        of.computations.append(Computation(phase, phase, 0, start, end, length, None, None))
    of.model.add(end <= of.horizon)
    last = len(profile) - 1
    for i in range(len(profile)):
        first = [p.runs for p in of.computations if (p.phase, p.stage) == (last, i)]
        of.model.add(sum(first[: of.extent.passes]) >= 1)
    _pack_passes(of)


def _pack_passes(of: HybridProgram) -> None:
    """A pass starts where the one before has got as far: no two ways to write one sequence."""
    for phase in range(len(of.problem.profile)):
        by_lap = [
            [p for p in of.computations if p.phase == phase and p.lap == lap and not p.is_backward]
            for lap in range(of.extent.passes)
        ]
        for before, lap in pairwise(by_lap):
            for p in lap:
                earlier = [q.runs for q in lap if q.stage < p.stage]
                later = [q.runs for q in before if q.stage >= p.stage]
                of.model.add(sum(earlier) + sum(later) >= p.runs)


def _live(of: HybridProgram) -> None:
    """What is made from its making, what is prefetched from its prefetch."""
    problem, model = of.problem, of.model
    of.lives = {item: [] for item in items_of(problem)}
    of.live(("a", 0), _INPUT, 0, 0, model.new_constant(1))
    for position, p in enumerate(of.computations):
        for item, exists in ((("a", p.stage + 1), p.plain), (("b", p.stage), p.saves)):
            if exists is not None:
                of.live(item, position, p.start, p.end, exists)
    for item, lives in of.lives.items():
        if size_of(problem, item):
            _may_move(of, item)
        model.add_no_overlap([life.span for life in lives])


def _may_move(of: HybridProgram, item: Item) -> None:
    """Sent once, to one level, from one of the lives; prefetched as often as is of use."""
    model, lengths = of.model, _transfer_lengths(of, item)
    sent = [model.new_bool_var(f"sent {item} {level}") for level in range(len(lengths))]
    model.add_at_most_one(sent)
    moves = Moves(sent, of.moment(f"sent {item}"))
    took = sum(length * literal for length, literal in zip(lengths, sent, strict=True))
    gone = moves.start + took
    for life in of.lives[item]:
        sends = model.new_bool_var("")
        model.add_implication(sends, life.exists)
        model.add(moves.start >= life.ready).only_enforce_if(sends)
        model.add(life.end >= gone).only_enforce_if(sends)
        life.uses.append(sends)
        moves.senders.append(sends)
    model.add(sum(moves.senders) == sum(sent))
    for number in range(of.extent.prefetches_of(of.problem, item, of.below)):
        comes, start = model.new_bool_var(f"back {item} {number}"), of.moment()
        model.add(start >= gone).only_enforce_if(comes)
        before = moves.prefetches[-1][0] if number else None
        if before is None:
            model.add(sum(sent) == comes)
        else:
            model.add_implication(comes, before)
            model.add(start >= moves.prefetches[-1][1]).only_enforce_if(comes)
        moves.prefetches.append((comes, start))
        of.live(item, _PREFETCH, start, start + took, comes)
    if not moves.prefetches:
        model.add(sum(sent) == 0)
    of.moves[item] = moves


def _transfer_lengths(of: HybridProgram, item: Item) -> list[int]:
    link, size = of.problem.link, size_of(of.problem, item)
    return [of.length(link.transfer_ticks(size, level)) for level in range(len(link.levels))]


def _move_one_at_a_time(of: HybridProgram) -> None:
    """On each link, or in each direction of it; and as much behind it as there is room."""
    model = of.model
    for level, link in enumerate(of.problem.link.levels):
        out: list[Any] = []
        back: list[Any] = []
        held: list[Any] = []
        for item, moves in of.moves.items():
            length, sent = _transfer_lengths(of, item)[level], moves.sent[level]
            out.append(model.new_optional_fixed_size_interval_var(moves.start, length, sent, "out"))
            until = of.moment()
            model.add(until >= moves.start + length).only_enforce_if(sent)
            for comes, start in moves.prefetches:
                uses = comes
                if len(moves.sent) > 1:
                    uses = model.new_bool_var("")
                    model.add_bool_and([comes, sent]).only_enforce_if(uses)
                    model.add_bool_or([uses, ~comes, ~sent])
                back.append(model.new_optional_fixed_size_interval_var(start, length, uses, "back"))
                model.add(until >= start + length).only_enforce_if(uses)
            held.append(
                model.new_optional_interval_var(moves.start, of.moment(), until, sent, "held")
            )
        for link_in_use in (out, back) if link.is_full_duplex else (out + back,):
            model.add_no_overlap(link_in_use)
        if link.capacity is not None:
            sizes = [size_of(of.problem, item) for item in of.moves]
            model.add_cumulative(held, sizes, link.capacity)


def _read(of: HybridProgram) -> None:
    """Each computation reads a life of its input, of either form; a backward saved data, too."""
    for position, p in enumerate(of.computations):
        of.reads[position] = []
        sources: list[Item] = [("a", p.stage)]
        if p.stage:
            sources.append(("b", p.stage - 1))
        of.model.add(sum(_reading(of, position, sources)) == p.runs)
        if p.is_backward:
            of.model.add(sum(_reading(of, position, [("b", p.stage)])) == 1)


def _reading(of: HybridProgram, position: int, sources: list[Item]) -> list[Literal]:
    model, p = of.model, of.computations[position]
    literals = []
    for item in sources:
        for life in of.lives[item]:
            if life.maker >= position:
                continue
            reads = model.new_bool_var("")
            model.add_implication(reads, life.exists)
            model.add(life.ready <= p.start).only_enforce_if(reads)
            model.add(life.end >= p.end).only_enforce_if(reads)
            if len(sources) > 1 and item[0] == "b":
                _not_while_the_other_form_returns(of, p, reads)
            life.uses.append(reads)
            of.reads[position].append((item, life, reads))
            literals.append(reads)
    return literals


def _not_while_the_other_form_returns(of: HybridProgram, p: Computation, reads: Literal) -> None:
    """A program list reads the plain form where both are stored, and waits if it is on its way."""
    moves = of.moves.get(("a", p.stage))
    if moves is None:
        return
    for life in of.lives["a", p.stage]:
        if life.maker != _PREFETCH:
            continue
        is_back = of.model.new_bool_var("")
        conditions = [reads, life.exists]
        of.model.add(life.ready <= p.start).only_enforce_if([*conditions, is_back])
        of.model.add(life.made >= p.start).only_enforce_if([*conditions, ~is_back])


def _make_nothing_in_vain(of: HybridProgram) -> None:
    """What is made or prefetched is read or sent."""
    for lives in of.lives.values():
        for life in lives:
            of.model.add_bool_or([~life.exists, *life.uses])


def _store_in_budget(of: HybridProgram) -> None:
    """Lives, gradients and overheads."""
    problem, model = of.problem, of.model
    profile: ChainProfile = problem.profile
    spans: list[Any] = []
    sizes: list[int] = []

    def store(span: Any, size: int) -> None:  # noqa: ANN401 - an interval of CP-SAT
        if size:
            spans.append(span)
            sizes.append(size)

    for item, lives in of.lives.items():
        for life in lives:
            store(life.span, size_of(problem, item))
    backwards = {p.stage: p for p in of.computations if p.is_backward}
    for i in range(len(profile) + 1):
        made = backwards[i].start if i < len(profile) else 0
        gone = backwards[i - 1].end if i else of.makespan
        store(model.new_interval_var(made, of.moment(), gone, ""), profile.gradient_bytes(i))
    for p in of.computations:
        stage = profile.stages[p.stage]
        if p.is_backward:
            span = model.new_fixed_size_interval_var(p.start, p.length, "")
            store(span, stage.backward_overhead_bytes)
        for literal in (p.plain, p.saves):
            if literal is not None:
                span = model.new_optional_fixed_size_interval_var(p.start, p.length, literal, "")
                store(span, stage.forward_overhead_bytes)
    model.add_cumulative(spans, sizes, problem.budget)
