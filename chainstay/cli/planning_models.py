"""Ways for a model: measured here, or estimated for another device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from chainstay.applying import fingerprint_of, moved_profile, planned_as_plan
from chainstay.cli.costs import Costed, granularity_of
from chainstay.cli.planning import Asked, Outcome
from chainstay.cli.planning_files import chain_outcome, keep_everything, segmented
from chainstay.cli.profiling import Request
from chainstay.cli.terminal import busy
from chainstay.cli.ways import Way, best_of, checkpointed, solved
from chainstay.fitting.cut_models import CutModel
from chainstay.fitting.joins import JoinAttempt
from chainstay.fitting.means import Means
from chainstay.fitting.ways import WAYS, Ways
from chainstay.offloading import OffloadSolution
from chainstay.planning import solve_measured
from chainstay.plans import Cut, Plan
from chainstay.profiles import Link
from chainstay.runtime.block_calls import strays
from chainstay.runtime.joining.executor import PlannedJoin
from chainstay.runtime.situation import Situation, modules_of
from chainstay.runtime.transfers import program_of
from chainstay.schedule import Schedule
from chainstay.solution import Method, Solution
from chainstay.solve.budgets import size_of

__all__ = ["plan_of_model", "recomputing"]

_NAMES: Final[Mapping[str, str]] = {
    "keep all": "keep everything, as planned",
    "join": "branches apart",
    "combined": "both",
}


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

    found, join = _solved(costed, request, budget, asked, link)
    ways = [
        keep_everything(plain.makespan, plain.peak_bytes, budget),
        checkpointed(segmented(len(costed.profile)), judge, budget),
        *found,
    ]
    chosen = best_of(ways, plain.makespan)
    assert chosen.solution is not None, "chosen from those that were solved"
    is_join = join is not None and chosen.solution is join.solution
    return Outcome(
        title=_title(costed),
        ways=ways,
        chosen=chosen,
        plan=plan_of(costed, request, chosen.solution, join if is_join else None),
        plain_time=plain.makespan,
        plain_bytes=plain.peak_bytes,
    )


def _solved(
    costed: Costed, request: Request, budget: int, asked: Asked, link: Link | None
) -> tuple[list[Way], PlannedJoin | None]:
    """What `chainstay.fit` would choose from; the plan of branches, if there is one."""
    measured, cut = costed.measured, costed.cut
    assert measured is not None
    assert cut is not None
    if cut.blocks is not None:
        return [solved("recompute", lambda: recomputing(costed, budget, asked))], None
    means = Means.of(
        recompute=True,
        offload=asked.offload,
        link=link,
        host_budget=asked.host_budget,
        device=cut.chain.device,
    )
    attempt = _attempt(costed, cut, request)
    ways = Ways(measured, budget, _method(asked), means, attempt)
    with busy("solving"):
        ways.try_all()
    found = []
    for name in WAYS:
        if name in ways.found or name in ways.refused:
            way = solved(_NAMES.get(name, name), partial(_answer, ways, name))
            own = ways.plain_time(name) if name == "join" else None
            found.append(replace(way, plain_time=own))
    return found, ways.join


def _attempt(costed: Costed, cut: CutModel, request: Request) -> JoinAttempt:
    """What it takes to plan branches apart, if the model has any."""
    workload = costed.workload
    return JoinAttempt(
        model=workload.model,
        ends=cut.ends,
        call=(workload.args, workload.kwargs),
        loss=workload.loss,
        granularity=granularity_of(request.granularity),
        settings={"repeats": request.repeats, "cache": request.cache},
    )


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


def plan_of(
    costed: Costed, request: Request, solution: Solution, join: PlannedJoin | None = None
) -> Plan:
    """The solution with all that it takes to apply it to the same model again.

    Args:
        costed: The model.
        request: As it was named.
        solution: The plan.
        join: The model by it, if it is one of branches.
    """
    measured, cut, workload = costed.measured, costed.cut, costed.workload
    assert measured is not None
    assert cut is not None
    situation = Situation.now(
        workload.args, dict(sorted(workload.kwargs.items())), modules_of(workload.model)
    )
    granularity = granularity_of(request.granularity)
    if join is not None:
        fingerprint = fingerprint_of(workload.model, situation, join.executor.stages)
        by_branches = Cut(by="join", granularity=granularity)
        return planned_as_plan(join, request.model, by_branches, fingerprint)
    about: dict[str, Any] = {
        "solution": solution,
        "model": request.model,
        "cut": Cut(by=cut.by, granularity=granularity),
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
