"""Plans for what a profile file holds: a chain, a join or offloading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.options import ModelOptions, PlanOptions, given_options
from chainstay.cli.solver_methods import chain_method, require_link, transfer_method
from chainstay.cli.strategies import (
    PlanResult,
    Strategy,
    best_checkpointing,
    fastest_strategy,
    plain_training,
    solve_strategy,
)
from chainstay.files import read_document
from chainstay.plans import Plan
from chainstay.plans.parser import parse_profile
from chainstay.profiles import AnyProfile, ChainProfile, HomogeneousJoin, Link, OffloadProfile
from chainstay.schedule import Discards
from chainstay.solve import budget_bytes, solve_chain, solve_join
from chainstay.solve.budgets import plain_peak
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.validation.simulate import simulate

_MOST_BYTES: Final = 64 * 1024**2
"""Largest profile file, in bytes."""


def plan_profile_file(target: ModelOptions, options: PlanOptions, link: Link | None) -> PlanResult:
    """Return the fastest plan for a profile file, with all other strategies.

    Raises:
        CommandLineError: There is no such file, or an option is for models.
        InvalidProfileError: It is malformed.
    """
    path = target.model
    for option in given_options(target):
        raise CommandLineError(
            f"{option} is for models, and {path} is a profile file, whose costs are known; "
            "leave it out"
        )
    profile = read_document(
        path,
        lambda text: parse_profile(text, CommandLineError),
        most=_MOST_BYTES,
        error=CommandLineError,
    )
    return plan_profile(profile, path, options, link)


def plan_profile(
    profile: AnyProfile,
    name: str,
    options: PlanOptions,
    link: Link | None,
    movable: ChainProfile | None = None,
) -> PlanResult:
    """Return the fastest plan for a network of which only the profile is known.

    Args:
        profile: The profile.
        name: What messages and the plan call it.
        options: The budget, and how to solve.
        link: The link to the host, if one is known.
        movable: Profile of a chain for plans with transfers, where it is another one.

    Raises:
        CommandLineError: The options do not go together.
        InfeasibleBudgetError: Nothing fits.
    """
    plain_bytes, budget = plain_peak(profile), budget_bytes(profile, options.budget)
    solving = options.solving
    for option, is_given in (
        ("--method weak", solving.method == "weak"),
        (f"--discards {solving.discards}", solving.discards is not Discards.FREE),
    ):
        if is_given and not isinstance(profile, ChainProfile):
            raise CommandLineError(f"{option} is for chains, and {name} holds none; leave it out")
    plain = plain_training(profile.least_time, plain_bytes, budget)
    match profile:
        case ChainProfile():
            size = f"{len(profile)} stages"
            movable = movable or profile
            others = _chain_strategies(profile, movable, budget, options, link)
        case OffloadProfile():
            size = f"{len(profile)} stages to be offloaded"
            whole, known = profile, require_link(link, options.solving)
            others = iter([_offloading(lambda: whole, budget, options, known)])
        case _:
            if options.solving.offload:
                raise CommandLineError(
                    "--offload is for chains; joins are not offloaded yet, leave it out"
                )
            join, method = profile, transfer_method(options.solving)
            branches = join.lengths if isinstance(join, HomogeneousJoin) else join.branches
            size = f"{len(branches)} branches, {len(join)} stages in all"
            others = iter([solve_strategy("recompute", lambda: solve_join(join, budget, method))])
    strategies = [plain, *others]
    chosen = fastest_strategy(strategies)
    assert chosen.solution is not None, "chosen from those that were solved"
    solved = profile
    if movable is not None and chosen.name in ("offload", "both"):
        solved = OffloadProfile.from_chain(movable) if chosen.name == "offload" else movable
    return PlanResult(
        title=f"{name}: {size}",
        strategies=strategies,
        chosen=chosen,
        plan=Plan(solution=chosen.solution, profile=solved, model=name),
        plain_time=profile.least_time,
        plain_bytes=plain_bytes,
    )


def _chain_strategies(
    profile: ChainProfile,
    movable: ChainProfile,
    budget: int,
    options: PlanOptions,
    link: Link | None,
) -> Iterator[Strategy]:
    method = chain_method(options.solving)
    yield best_checkpointing(len(profile), partial(simulate, profile), budget)
    yield solve_strategy("recompute", lambda: solve_chain(profile, budget, method))
    if options.solving.offload:
        known = require_link(link, options.solving)
        yield _offloading(lambda: OffloadProfile.from_chain(movable), budget, options, known)
        yield solve_strategy("both", lambda: solve_hybrid(movable, budget, link=known))


def _offloading(
    movable: Callable[[], OffloadProfile], budget: int, options: PlanOptions, link: Link
) -> Strategy:
    method = transfer_method(options.solving)
    return solve_strategy(
        "offload", lambda: solve_offload(movable(), budget, link=link, method=method)
    )
