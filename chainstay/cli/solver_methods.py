"""Solvers and links from the options of a plan: ``--method``, ``--link 12GB/s,10us,full``."""

from __future__ import annotations

import re
from typing import Final

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.options import PlanOptions, SolveOptions
from chainstay.dp import DP
from chainstay.errors import InvalidBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import Link
from chainstay.schedule import Discards
from chainstay.solution import Method
from chainstay.solve.budgets import parse_budget
from chainstay.solve.chain import AutoChain
from chainstay.units import parse_bytes

_LATENCY: Final = re.compile(r"([0-9]{1,9})(ns|us|ms)")
_FACTORS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}


def chain_method(options: SolveOptions) -> Method:
    """Return the solver of chains."""
    match options.method:
        case "auto":
            return AutoChain(discards=options.discards)
        case "dp":
            return DP(discards=options.discards)
        case "weak":  # its schedules are valid where data may be dropped freely, too
            is_free = options.discards is Discards.FREE
            rules = Discards.TABLE1 if is_free else options.discards
            return DP(discards=rules, persistence="weak")
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
    if solving.time_limit != SolveOptions().time_limit and solving.method not in ("mip", "cpsat"):
        raise CommandLineError(
            f"--time-limit is for --method mip and cpsat, not {solving.method}; leave it out"
        )
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
            "offloading takes as long as the link does: give its speed, as in --offload "
            "--link 12GB/s"
        )
    return link.within(None if options.host_budget is None else parse_bytes(options.host_budget))


def parse_link(text: str) -> Link:
    """Return the link that `text` means.

    Raises:
        CommandLineError: The text is no link.

    Example:
        >>> parse_link("12GB/s,10us,full").latency
        Fraction(10000, 1)
    """
    speed, *rest = (part.strip() for part in text.split(","))
    amount = parse_bytes(speed[: -len("/s")]) if speed.endswith("/s") else None
    latency, duplex = 0, "half"
    for part in rest:
        if part in ("half", "full"):
            duplex = part
        elif match := _LATENCY.fullmatch(part):
            latency = int(match[1]) * _FACTORS[match[2]]
        else:
            amount = None
    if not amount or len(rest) > 2:
        raise CommandLineError(
            f"--link is {text!r}, must be a speed such as 12GB/s, and may go on with a latency and "
            "half or full: 12GB/s,10us,full"
        )
    return Link.from_bytes_per_second(amount, latency_ns=latency, duplex=duplex)
