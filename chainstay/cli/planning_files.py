"""Ways for what a profile file says: a chain, a join or offloading."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chainstay.baselines import checkpoint_sequential
from chainstay.baselines.join import keep_all_join
from chainstay.cli.endings import CommandLineError
from chainstay.cli.planning import Asked, Outcome
from chainstay.cli.profiling import Request
from chainstay.cli.ways import Way, best_of, checkpointed, solved
from chainstay.files import read_text
from chainstay.plans import Plan
from chainstay.plans.reading import parse_profile
from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile, Link, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.solve import solve_chain, solve_join
from chainstay.solve.budgets import size_of
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.timetable import Time
from chainstay.units import parse_bytes
from chainstay.validation.join import simulate_join
from chainstay.validation.simulate import simulate

__all__ = ["chain_outcome", "keep_everything", "needed", "plan_of_file", "segmented"]

_MOST_BYTES: Final = 64 * 1024**2
"""Of a profile file."""


def plan_of_file(request: Request, asked: Asked, link: Link | None) -> Outcome:
    """Ways for what a profile file says.

    Raises:
        CommandLineError: There is no such file, or an option is for models.
        InvalidProfileError: It is malformed.
    """
    for option, value in (("--input", request.inputs), ("--device", request.device)):
        if value:
            raise CommandLineError(
                f"{option} is for models, and {request.model} is a profile file, whose costs are "
                "known; leave it out"
            )
    text = read_text(request.model, most=_MOST_BYTES, error=CommandLineError)
    profile = parse_profile(text, CommandLineError)
    match profile:
        case ChainProfile():
            return chain_outcome(profile, request.model, asked, link)
        case OffloadProfile():
            return _offload_outcome(profile, request.model, asked, link)
    if asked.offload:
        raise CommandLineError("--offload is for chains; joins are not offloaded yet, leave it out")
    return _join_outcome(profile, request.model, asked)


def chain_outcome(profile: ChainProfile, title: str, asked: Asked, link: Link | None) -> Outcome:
    """Ways for a chain of which nothing but its profile is known."""
    keep_all = Schedule.keep_all(len(profile))
    plain = simulate(profile, keep_all)
    budget = size_of(asked.budget, lambda: plain.peak_bytes)

    def judge(schedule: Schedule) -> tuple[int, int]:
        replay = simulate(profile, schedule)
        return replay.makespan, replay.peak_bytes

    ways = [
        keep_everything(plain.makespan, plain.peak_bytes, budget),
        checkpointed(segmented(len(profile)), judge, budget),
        solved("recompute", lambda: solve_chain(profile, budget, asked.chain_method())),
    ]
    if asked.offload:
        known = needed(link, asked)
        ways += [
            solved("offload", lambda: _offloaded(profile, budget, known, asked)),
            solved("both", lambda: solve_hybrid(profile, budget, link=known)),
        ]
    chosen = best_of(ways)
    assert chosen.solution is not None, "chosen from those that were solved"
    costs = OffloadProfile.from_chain(profile) if chosen.name == "offload" else profile
    plan = Plan(solution=chosen.solution, profile=costs, model=title)
    return Outcome(
        title=f"{title}: {len(profile)} stages",
        ways=ways,
        chosen=chosen,
        plan=plan,
        plain_time=plain.makespan,
        plain_bytes=plain.peak_bytes,
    )


def _offloaded(profile: ChainProfile, budget: int, link: Link, asked: Asked) -> Solution:
    costs = OffloadProfile.from_chain(profile)
    return solve_offload(costs, budget, link=link, method=asked.other_method())


def _offload_outcome(
    profile: OffloadProfile, title: str, asked: Asked, link: Link | None
) -> Outcome:
    budget = size_of(asked.budget, lambda: profile.peak_bytes)
    known = needed(link, asked)
    method = asked.other_method()
    ways = [
        keep_everything(profile.least_time, profile.peak_bytes, budget),
        solved("offload", lambda: solve_offload(profile, budget, link=known, method=method)),
    ]
    chosen = best_of(ways)
    assert chosen.solution is not None, "chosen from those that were solved"
    return Outcome(
        title=f"{title}: {len(profile)} stages to be offloaded",
        ways=ways,
        chosen=chosen,
        plan=Plan(solution=chosen.solution, profile=profile, model=title),
        plain_time=profile.least_time,
        plain_bytes=profile.peak_bytes,
    )


def _join_outcome(profile: JoinProfile | HomogeneousJoin, title: str, asked: Asked) -> Outcome:
    if isinstance(profile, HomogeneousJoin):
        plain_bytes, branches = profile.enough_slots, len(profile.lengths)
    else:
        plain_bytes = simulate_join(profile, keep_all_join(profile)).peak_bytes
        branches = len(profile.branches)
    budget = size_of(asked.budget, lambda: plain_bytes)
    method = asked.other_method()
    ways = [
        keep_everything(profile.least_time, plain_bytes, budget),
        solved("recompute", lambda: solve_join(profile, budget, method)),
    ]
    chosen = best_of(ways)
    assert chosen.solution is not None, "chosen from those that were solved"
    return Outcome(
        title=f"{title}: {branches} branches, {profile.stages} stages in all",
        ways=ways,
        chosen=chosen,
        plan=Plan(solution=chosen.solution, profile=profile, model=title),
        plain_time=profile.least_time,
        plain_bytes=plain_bytes,
    )


def keep_everything(makespan: Time, peak_bytes: int, budget: int) -> Way:
    """Plain training, whether it fits or not."""
    says = "fits" if peak_bytes <= budget else "does not fit"
    return Way(name="keep everything", makespan=makespan, peak_bytes=peak_bytes, says=says)


def segmented(stages: int) -> list[Schedule]:
    """``checkpoint_sequential`` with 1, 2, ... segments."""
    return [checkpoint_sequential(stages, count) for count in range(1, max(2, stages))]


def needed(link: Link | None, asked: Asked) -> Link:
    """The link, without which nobody can say how long transfers take.

    Raises:
        CommandLineError: There is none.
    """
    if link is None:
        raise CommandLineError(
            "offloading takes as long as the link does: give its speed, as in --link 12GB/s"
        )
    capacity = None if asked.host_budget is None else parse_bytes(asked.host_budget)
    return link if capacity is None else replace(link, capacity=capacity)
