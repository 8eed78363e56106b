"""The work behind ``chainstay plan``: costs, ways, a plan file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chainstay.cli.endings import CommandLineError
from chainstay.cli.links import parse_link
from chainstay.cli.profiling import Request, writing_to, written
from chainstay.cli.terminal import say, show
from chainstay.cli.ways import Way, ways_table
from chainstay.dp import DP
from chainstay.errors import InvalidBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.plans import Plan
from chainstay.profiles import HomogeneousJoin, Link
from chainstay.solution import Method
from chainstay.solve.budgets import size_of
from chainstay.solve.chain import Auto
from chainstay.timetable import Time
from chainstay.units import format_bytes, parse_bytes

__all__ = ["Asked", "Outcome", "plan_made"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted of a plan: options as they were given.

    Attributes:
        discards: Of profile files.
    """

    budget: str
    offload: bool = False
    link: str | None = None
    host_budget: str | None = None
    method: str = "auto"
    time_limit_s: float = 60.0
    discards: str = "free"

    def chain_method(self) -> Method:
        """The solver of chains."""
        match self.method:
            case "auto":
                return Auto(discards=self.discards)
            case "dp":
                return DP(discards=self.discards)
            case "weak":
                return DP(discards=self.discards, persistence="weak")
            case "mip":
                return MIP(discards=self.discards, time_limit_s=self.time_limit_s)
        return CPSAT(discards=self.discards, time_limit_s=self.time_limit_s)

    def other_method(self) -> str | MIP | CPSAT:
        """The solver of joins and of offloading."""
        if self.method == "mip":
            return MIP(time_limit_s=self.time_limit_s)
        if self.method == "cpsat":
            return CPSAT(time_limit_s=self.time_limit_s)
        return "dp" if self.method == "dp" else "auto"

    def require_sound(self) -> Link | None:
        """Refuse what cannot be meant, before anything is measured; the link, if there is one.

        Raises:
            InvalidBudgetError: The budget is none.
            CommandLineError: Options do not go together.
        """
        try:
            size_of(self.budget, lambda: 2**40)
        except InvalidBudgetError as error:
            raise InvalidBudgetError(f"--{error}") from None
        for option, value in (("--link", self.link), ("--host-budget", self.host_budget)):
            if value is not None and not self.offload:
                raise CommandLineError(f"{option} {value} is of use with --offload only; add that")
        if self.host_budget is not None and parse_bytes(self.host_budget) is None:
            raise CommandLineError(f"--host-budget is {self.host_budget!r}, must be as in 64GiB")
        return None if self.link is None else parse_link(self.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found.

    Attributes:
        title: What was planned, for people.
        ways: All of them.
        chosen: The plan's.
        plan: To be written.
        plain_time: A step without a budget.
        plain_bytes: Its peak.
    """

    title: str
    ways: Sequence[Way]
    chosen: Way
    plan: Plan
    plain_time: Time
    plain_bytes: int


def plan_made(request: Request, asked: Asked, *, output: Path | None, json: bool) -> None:
    """Print the ways, and write the plan."""
    target = writing_to(output, "plan.json", json=json)
    link = asked.require_sound()
    is_file = Path(request.model).suffix == ".json"
    if is_file:
        from chainstay.cli.planning_files import plan_of_file

        outcome = plan_of_file(request, asked, link)
    else:
        from chainstay.cli.planning_models import plan_of_model

        outcome = plan_of_model(request.costs(), request, asked, link)
    text = outcome.plan.to_json()
    if target is not None:
        written(target, text)
    if json:
        sys.stdout.write(text + "\n")
        return
    _show(outcome)
    if target is not None:
        runs = outcome.plan.fingerprint is not None
        run = ["chainstay", "run", *_named(request), "--plan", str(target)]
        rest = f"{shlex.join(run)}\n  or: " if runs else ""
        report = shlex.join(["chainstay", "report", str(target), "-o", "plan.html"])
        say(f"\nwrote {target}; next:\n      {rest}{report}", wrap=False)


def _named(request: Request) -> Iterator[str]:
    """What names the same model and batch again."""
    yield request.model
    for each in request.inputs or ():
        yield from ("--input", each)
    if request.device is not None:
        yield from ("--device", request.device)
    if request.dtype != "float32":
        yield from ("--dtype", request.dtype)


def _show(outcome: Outcome) -> None:
    solution = outcome.plan.solution
    is_slots = isinstance(outcome.plan.profile, HomogeneousJoin)
    share = solution.budget / outcome.plain_bytes if outcome.plain_bytes else 1.0
    budget = f"{solution.budget} slots" if is_slots else format_bytes(solution.budget)
    say(outcome.title, style="bold")
    say(f"budget: {budget}, {share:.0%} of what plain training needs\n")
    show(ways_table(outcome.ways, outcome.chosen, outcome.plain_time))
    text = solution.describe()
    if is_slots:  # whose sizes are no bytes, and whose times no nanoseconds
        text = f"{solution.makespan} time units in {solution.peak_bytes} slots"
    say(f"\n{outcome.chosen.name}: {text}")
