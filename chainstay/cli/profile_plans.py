"""Plans for what a profile file holds: a chain, a join or offloading."""

from __future__ import annotations

from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.options import ModelOptions, PlanOptions
from chainstay.cli.solver_methods import chain_method, require_link, transfer_method
from chainstay.cli.strategies import (
    PlanResult,
    best_checkpointing,
    fastest_strategy,
    plain_training,
    solve_strategy,
)
from chainstay.files import read_text
from chainstay.plans import Plan
from chainstay.plans.parser import parse_profile
from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile, Link, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.solve import solve_chain, solve_join
from chainstay.solve.budgets import parse_budget
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.simulate import simulate

__all__ = ["plan_chain", "plan_profile_file"]

_MOST_BYTES: Final = 64 * 1024**2
"""Largest profile file, in bytes."""


def plan_profile_file(target: ModelOptions, options: PlanOptions, link: Link | None) -> PlanResult:
    """Return the fastest plan for a profile file, with all other strategies.

    Raises:
        CommandLineError: There is no such file, or an option is for models.
        InvalidProfileError: It is malformed.
    """
    path = target.model
    for option, value in (("--input", target.inputs), ("--device", target.device)):
        if value:
            raise CommandLineError(
                f"{option} is for models, and {path} is a profile file, whose costs are known; "
                "leave it out"
            )
    text = read_text(path, most=_MOST_BYTES, error=CommandLineError)
    profile = parse_profile(text, CommandLineError)
    match profile:
        case ChainProfile():
            return plan_chain(profile, path, options, link)
        case OffloadProfile():
            return _plan_offloading(profile, path, options, link)
    if options.solving.offload:
        raise CommandLineError("--offload is for chains; joins are not offloaded yet, leave it out")
    return _plan_join(profile, path, options)


def plan_chain(
    profile: ChainProfile, title: str, options: PlanOptions, link: Link | None
) -> PlanResult:
    """Return the fastest plan for a chain of which only the profile is known."""
    plain = simulate(profile, Schedule.keep_all(len(profile)))
    budget = parse_budget(options.budget, lambda: plain.peak_bytes)

    def simulate_costs(schedule: Schedule) -> tuple[int, int]:
        replay = simulate(profile, schedule)
        return replay.makespan, replay.peak_bytes

    method = chain_method(options.solving)
    strategies = [
        plain_training(plain.makespan, plain.peak_bytes, budget),
        best_checkpointing(len(profile), simulate_costs, budget),
        solve_strategy("recompute", lambda: solve_chain(profile, budget, method)),
    ]
    if options.solving.offload:
        known = require_link(link, options.solving)
        other = transfer_method(options.solving)
        strategies += [
            solve_strategy(
                "offload",
                lambda: solve_offload(
                    OffloadProfile.from_chain(profile), budget, link=known, method=other
                ),
            ),
            solve_strategy("both", lambda: solve_hybrid(profile, budget, link=known)),
        ]
    chosen = fastest_strategy(strategies)
    assert chosen.solution is not None, "chosen from those that were solved"
    costs = OffloadProfile.from_chain(profile) if chosen.name == "offload" else profile
    plan = Plan(solution=chosen.solution, profile=costs, model=title)
    return PlanResult(
        title=f"{title}: {len(profile)} stages",
        strategies=strategies,
        chosen=chosen,
        plan=plan,
        plain_time=plain.makespan,
        plain_bytes=plain.peak_bytes,
    )


def _plan_offloading(
    profile: OffloadProfile, title: str, options: PlanOptions, link: Link | None
) -> PlanResult:
    budget = parse_budget(options.budget, lambda: profile.peak_bytes)
    known = require_link(link, options.solving)
    method = transfer_method(options.solving)
    strategies = [
        plain_training(profile.least_time, profile.peak_bytes, budget),
        solve_strategy(
            "offload", lambda: solve_offload(profile, budget, link=known, method=method)
        ),
    ]
    chosen = fastest_strategy(strategies)
    assert chosen.solution is not None, "chosen from those that were solved"
    return PlanResult(
        title=f"{title}: {len(profile)} stages to be offloaded",
        strategies=strategies,
        chosen=chosen,
        plan=Plan(solution=chosen.solution, profile=profile, model=title),
        plain_time=profile.least_time,
        plain_bytes=profile.peak_bytes,
    )


def _plan_join(
    profile: JoinProfile | HomogeneousJoin, title: str, options: PlanOptions
) -> PlanResult:
    if isinstance(profile, HomogeneousJoin):
        plain_bytes, branches = profile.enough_slots, len(profile.lengths)
    else:
        plain_bytes = simulate_join(profile, keep_all_join(profile)).peak_bytes
        branches = len(profile.branches)
    budget = parse_budget(options.budget, lambda: plain_bytes)
    method = transfer_method(options.solving)
    strategies = [
        plain_training(profile.least_time, plain_bytes, budget),
        solve_strategy("recompute", lambda: solve_join(profile, budget, method)),
    ]
    chosen = fastest_strategy(strategies)
    assert chosen.solution is not None, "chosen from those that were solved"
    return PlanResult(
        title=f"{title}: {branches} branches, {profile.stages} stages in all",
        strategies=strategies,
        chosen=chosen,
        plan=Plan(solution=chosen.solution, profile=profile, model=title),
        plain_time=profile.least_time,
        plain_bytes=plain_bytes,
    )
