"""Solvers and links from the options of a plan."""

from __future__ import annotations

from dataclasses import replace

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.link_option import parse_link
from chainstay.cli.options import PlanOptions, SolveOptions
from chainstay.dp import DP
from chainstay.errors import InvalidBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import Link
from chainstay.solution import Method
from chainstay.solve.budgets import parse_budget
from chainstay.solve.chain import AutoChain
from chainstay.units import parse_bytes

__all__ = ["chain_method", "require_link", "require_valid", "transfer_method"]


def chain_method(options: SolveOptions) -> Method:
    """Return the solver of chains."""
    match options.method:
        case "auto":
            return AutoChain(discards=options.discards)
        case "dp":
            return DP(discards=options.discards)
        case "weak":
            return DP(discards=options.discards, persistence="weak")
        case "mip":
            return MIP(discards=options.discards, time_limit_s=options.time_limit)
    return CPSAT(discards=options.discards, time_limit_s=options.time_limit)


def transfer_method(options: SolveOptions) -> str | MIP | CPSAT:
    """Return the solver of joins and of offloading."""
    if options.method == "mip":
        return MIP(time_limit_s=options.time_limit)
    if options.method == "cpsat":
        return CPSAT(time_limit_s=options.time_limit)
    return "dp" if options.method == "dp" else "auto"


def require_valid(options: PlanOptions) -> Link | None:
    """Check options before anything is measured, and return the link, if one is given.

    Raises:
        InvalidBudgetError: The budget is no size.
        CommandLineError: Options do not go together.
    """
    solving = options.solving
    try:
        parse_budget(options.budget, lambda: 2**40)
    except InvalidBudgetError as error:
        raise InvalidBudgetError(f"--{error}") from None
    for option, value in (("--link", solving.link), ("--host-budget", solving.host_budget)):
        if value is not None and not solving.offload:
            raise CommandLineError(f"{option} {value} is of use with --offload only; add that")
    if solving.host_budget is not None and parse_bytes(solving.host_budget) is None:
        raise CommandLineError(f"--host-budget is {solving.host_budget!r}, must be as in 64GiB")
    return None if solving.link is None else parse_link(solving.link)


def require_link(link: Link | None, options: SolveOptions) -> Link:
    """Return the link within the host budget; without a link, no transfer can be timed.

    Raises:
        CommandLineError: There is no link.
    """
    if link is None:
        raise CommandLineError(
            "offloading takes as long as the link does: give its speed, as in --link 12GB/s"
        )
    capacity = None if options.host_budget is None else parse_bytes(options.host_budget)
    return link if capacity is None else replace(link, capacity=capacity)
