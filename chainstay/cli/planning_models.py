"""Ways for a model: measured here, or estimated for another device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chainstay.applying import fingerprint_of, moved_profile
from chainstay.cli.costs import Costed, granularity_of
from chainstay.cli.planning import Asked, Outcome
from chainstay.cli.planning_files import chain_outcome, keep_everything, segmented
from chainstay.cli.profiling import Request
from chainstay.cli.ways import best_of, checkpointed, solved
from chainstay.hybrid import HybridSolution
from chainstay.offloading import OffloadSolution
from chainstay.planning import solve_measured
from chainstay.plans import Costs, Cut, Plan
from chainstay.profiles import ChainProfile, Link
from chainstay.runtime.block_calls import strays
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.situation import Situation
from chainstay.runtime.transfers import Transport, engine_for, measure_link, program_of
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.solve.budgets import size_of
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload

__all__ = ["plan_of_model", "recomputing"]


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
        solved("recompute", lambda: recomputing(costed, budget, asked)),
    ]
    if asked.offload and costed.cut.blocks is None:
        ways += [
            solved("offload", lambda: _moving(costed, budget, asked, link)),
            solved("both", lambda: _moving(costed, budget, asked, link, recompute=True)),
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


def recomputing(costed: Costed, budget: int, asked: Asked) -> Solution:
    """The fastest schedule without transfers."""
    assert costed.measured is not None, "estimates are planned as profiles"
    blocks = costed.cut.blocks if costed.cut else None
    method = "auto" if asked.method == "auto" else asked.chain_method()
    if blocks is None:
        return solve_measured(costed.measured, budget, method)
    return solve_measured(
        costed.measured, budget, method, can_run=lambda schedule: not strays(blocks, schedule)
    )


def _moving(
    costed: Costed, budget: int, asked: Asked, link: Link | None, *, recompute: bool = False
) -> Solution:
    """The best plan with transfers, its peak that of the runtime."""
    measured, cut = costed.measured, costed.cut
    assert measured is not None
    assert cut is not None
    device = cut.chain.device
    known = link or measure_link(device)
    solution: OffloadSolution
    if recompute:
        solution = solve_hybrid(measured.movable_profile, budget, link=known)
    else:
        costs, method = measured.offload_profile, asked.other_method()
        solution = solve_offload(costs, budget, link=known, method=method)
    engine = engine_for(device, link=solution.link)
    try:
        overheads = measured.overheads_for(program_of(solution))
        plan = Transport.of(solution, _chain_of(measured, solution), overheads, engine).plan
    finally:
        engine.close()
    return replace(solution, peak_bytes=plan.peak_bytes)


def _chain_of(measured: Measurement, solution: OffloadSolution) -> ChainProfile:
    """The chain whose movable part was solved for."""
    if isinstance(solution, HybridSolution):
        return measured.profile
    return measured.profile_for(Schedule.keep_all(len(measured.profile)))


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
    if isinstance(solution, OffloadSolution):
        chain = _chain_of(measured, solution)
        overheads = measured.overheads_for(program_of(solution))
        profile: Costs = moved_profile(solution, chain)
        return Plan(profile=profile, chain=chain, overheads=overheads, **about)
    schedule = solution.schedule
    overheads = measured.overheads_for(schedule)
    return Plan(profile=measured.profile_for(schedule), overheads=overheads, **about)


def _title(costed: Costed) -> str:
    return f"{costed.workload.title}: {len(costed.profile)} stages"
