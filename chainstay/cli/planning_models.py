"""Ways for a model: measured here, or estimated for another device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from chainstay.applying import fingerprint_of, moved_profile
from chainstay.cli.costs import Costed, granularity_of
from chainstay.cli.planning import Asked, Outcome
from chainstay.cli.planning_files import chain_outcome, keep_everything, segmented
from chainstay.cli.profiling import Request
from chainstay.cli.terminal import busy
from chainstay.cli.ways import Way, best_of, checkpointed, solved
from chainstay.fitting.means import Means
from chainstay.fitting.ways import WAYS, Ways
from chainstay.offloading import OffloadSolution
from chainstay.planning import solve_measured
from chainstay.plans import Cut, Plan
from chainstay.profiles import Link
from chainstay.runtime.block_calls import strays
from chainstay.runtime.situation import Situation
from chainstay.runtime.transfers import program_of
from chainstay.schedule import Schedule
from chainstay.solution import Method, Solution
from chainstay.solve.budgets import size_of

__all__ = ["plan_of_model", "recomputing"]

_NAMES: Final[Mapping[str, str]] = {"keep all": "keep everything, as planned", "combined": "both"}


def plan_of_model(costed: Costed, request: Request, asked: Asked, link: Link | None) -> Outcome:
    """The fastest way for a model, with all others beside it."""
    if costed.cut is None or costed.measured is None:
        outcome = chain_outcome(costed.profile, request.model, asked, link)
        return replace(outcome, title=_title(costed))
    plain = costed.plain
    budget = size_of(asked.budget, lambda: plain.peak_bytes)

    def judge(schedule: Schedule) -> tuple[int, int]:
        replay = costed.replay(schedule)
        return replay.makespan, replay.peak_bytes

    ways = [
        keep_everything(plain.makespan, plain.peak_bytes, budget),
        checkpointed(segmented(len(costed.profile)), judge, budget),
        *_solved(costed, budget, asked, link),
    ]
    chosen = best_of(ways)
    assert chosen.solution is not None, "chosen from those that were solved"
    return Outcome(
        title=_title(costed),
        ways=ways,
        chosen=chosen,
        plan=plan_of(costed, request, chosen.solution),
        plain_time=plain.makespan,
        plain_bytes=plain.peak_bytes,
    )


def _solved(costed: Costed, budget: int, asked: Asked, link: Link | None) -> Iterator[Way]:
    """What `chainstay.fit` would choose from."""
    measured, cut = costed.measured, costed.cut
    assert measured is not None
    assert cut is not None
    if cut.blocks is not None:
        yield solved("recompute", lambda: recomputing(costed, budget, asked))
        return
    means = Means.of(
        recompute=True,
        offload=asked.offload,
        link=link,
        host_budget=asked.host_budget,
        device=cut.chain.device,
    )
    ways = Ways(measured, budget, _method(asked), means)
    with busy("solving"):
        ways.try_all()
    for name in WAYS:
        if name in ways.found or name in ways.refused:
            yield solved(_NAMES.get(name, name), partial(_answer, ways, name))


def _answer(ways: Ways, name: str) -> Solution:
    """What a way found.

    Raises:
        ChainstayError: Why it found nothing.
    """
    if name in ways.refused:
        raise ways.refused[name]
    return ways.found[name]


def recomputing(costed: Costed, budget: int, asked: Asked) -> Solution:
    """The fastest schedule without transfers."""
    assert costed.measured is not None, "estimates are planned as profiles"
    blocks = costed.cut.blocks if costed.cut else None
    if blocks is None:
        return solve_measured(costed.measured, budget, _method(asked))
    return solve_measured(
        costed.measured,
        budget,
        _method(asked),
        can_run=lambda schedule: not strays(blocks, schedule),
    )


def _method(asked: Asked) -> Method | str:
    """``"auto"`` means something else where stages were measured."""
    return "auto" if asked.method == "auto" else asked.chain_method()


def plan_of(costed: Costed, request: Request, solution: Solution) -> Plan:
    """The solution with all that it takes to apply it to the same model again."""
    measured, cut, workload = costed.measured, costed.cut, costed.workload
    assert measured is not None
    assert cut is not None
    situation = Situation.now(workload.model, workload.args, dict(sorted(workload.kwargs.items())))
    about: dict[str, Any] = {
        "solution": solution,
        "model": request.model,
        "cut": Cut(by=cut.by, granularity=granularity_of(request.granularity)),
        "fingerprint": fingerprint_of(workload.model, situation, cut.chain.stages),
    }
    schedule = solution.schedule
    if isinstance(solution, OffloadSolution):
        schedule = program_of(solution)
        chain = measured.profile_for(schedule)
        about |= {"profile": moved_profile(solution, chain), "chain": chain}
    else:
        about |= {"profile": measured.profile_for(schedule)}
    return Plan(overheads=measured.overheads_for(schedule), **about)


def _title(costed: Costed) -> str:
    return f"{costed.workload.title}: {len(costed.profile)} stages"
