"""Plans for a model: measured here, or estimated for another device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chainstay.applying import planned_as_plan
from chainstay.cli.models.model_costs import ModelCosts, parse_granularity
from chainstay.cli.options import ModelOptions, PlanOptions, SolveOptions
from chainstay.cli.profile_plans import plan_profile
from chainstay.cli.solver_methods import chain_method
from chainstay.cli.strategies import (
    PlanResult,
    Strategy,
    best_checkpointing,
    fastest_strategy,
    plain_training,
    refused_strategy,
    solve_strategy,
    solved_strategy,
)
from chainstay.cli.terminal import spinner
from chainstay.fitting.measured import MeasuredModel
from chainstay.fitting.strategies.fastest import STRATEGIES, Strategies
from chainstay.fitting.strategies.memory_options import MemoryOptions
from chainstay.profiles import Link
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.solution import Method
from chainstay.solve.budgets import parse_budget

_NAMES: Final[Mapping[str, str]] = {
    "keep all": "keep everything, as planned",
    "join": "branches apart",
    "combined": "both",
}


def plan_model(
    costs: ModelCosts, model_options: ModelOptions, options: PlanOptions, link: Link | None
) -> PlanResult:
    """Return the fastest plan for a model, with all other strategies."""
    if costs.model is None:
        name, movable = model_options.model, costs.movable
        result = plan_profile(costs.profile, name, options, link, movable)
        return replace(result, title=_title(costs))
    plain = costs.plain
    budget = parse_budget(options.budget, lambda: plain.peak_bytes)
    device = costs.model.costs.chain.device
    memory = MemoryOptions.of(
        recompute=True,
        offload=options.solving.offload,
        link=link,
        host_budget=options.solving.host_budget,
        device=device,
    )
    found, join = _solved(costs.model, budget, options.solving, memory)
    strategies = [
        plain_training(plain.makespan, plain.peak_bytes, budget),
        best_checkpointing(len(costs.profile), costs.replay, budget),
        *found,
    ]
    chosen = fastest_strategy(strategies, plain.makespan)
    assert chosen.solution is not None, "chosen from those that were solved"
    if join is not None and chosen.solution is join.solution:
        planned: Planned = join
    else:
        engine = memory.engine_for(chosen.solution, device)
        planned = costs.model.planned(chosen.solution, engine)
    planned.close()  # the plan goes to a file
    granularity = parse_granularity(model_options.granularity)
    fingerprint = costs.model.fingerprint(planned)
    return PlanResult(
        title=_title(costs),
        strategies=strategies,
        chosen=chosen,
        plan=planned_as_plan(planned, model_options.model, granularity, fingerprint),
        plain_time=plain.makespan,
        plain_bytes=plain.peak_bytes,
    )


def _solved(
    model: MeasuredModel, budget: int, options: SolveOptions, memory: MemoryOptions
) -> tuple[list[Strategy], PlannedGraph | None]:
    """Return the strategies that `chainstay.fit` would try, and a plan of branches, if any."""
    method = measured_method(options)
    if model.staged is None:
        return [solve_strategy("recompute", lambda: model.solve(budget, method))], None
    search = Strategies(model.costs, budget, method, memory, model.attempt)
    with spinner("solving"):
        search.try_all()
    found = []
    for name in STRATEGIES:
        title = _NAMES.get(name, name)
        if name in search.refused:
            found.append(refused_strategy(title, search.refused[name]))
        elif name in search.found:
            own = search.plain_time(name) if name == "join" else None
            found.append(replace(solved_strategy(title, search.found[name]), plain_time=own))
    return found, search.join


def measured_method(options: SolveOptions) -> Method | str:
    """Return the solver of measured chains, for which ``"auto"`` has another meaning."""
    return "auto" if options.method == "auto" else chain_method(options)


def _title(costs: ModelCosts) -> str:
    return f"{costs.workload.title}: {len(costs.profile)} stages"
