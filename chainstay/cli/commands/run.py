"""``chainstay run``: train by a plan, and compare it with its numbers and with plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chainstay.cli.exit_codes import CommandLineError, ExitCode
from chainstay.cli.options import (
    JsonOutput,
    ModelOptions,
    PlanOptions,
    SolveOptions,
    flatten_options,
    given_options,
)
from chainstay.cli.terminal import (
    new_table,
    print_document,
    print_result,
    print_table,
    short_bytes,
    spinner,
)
from chainstay.units import format_bytes, format_time

if TYPE_CHECKING:
    from chainstay.cli.training_run import RunResult

EXAMPLES: Final = """\b
Examples:
  chainstay run torchvision:resnet50 --input 8x3x64x64 --plan plan.json
  chainstay run "hf:gpt2?n_layer=4" --input 1x256 --budget 50% --steps 10
"""


_WITH_A_PLAN: Final = ("--input", "--device", "--dtype", "--host-budget")
"""Options of models and solvers that a run by a plan file takes."""


@flatten_options(omit=("time_limit", "discards"))
def run(  # noqa: PLR0913  # options of a command, all by name
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", "-p", help="Plan file, written by chainstay plan; or give --budget."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", "-b", metavar="SIZE", help="Memory, as for chainstay plan."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 3,
    compare: Annotated[
        bool, typer.Option(help="Also train by plain PyTorch, where that fits, and compare.")
    ] = True,
    options: ModelOptions,
    solving: SolveOptions,
    as_json: JsonOutput = False,
) -> None:
    """Train a few steps by a plan, and compare with plain PyTorch.

    Shows peak and time, planned and measured; numbers are compared bit for bit. Ends with exit
    code 1 if a step is not what plain PyTorch does, or needs more than its budget.
    """
    _require_one_plan(plan, budget, (*given_options(options), *given_options(solving)))
    options.require_runnable_device()
    with spinner("loading PyTorch"):
        # These need torch, which --help must not load.
        from chainstay.cli.model_plans import plan_model
        from chainstay.cli.models.model_costs import build_checked_workload, measure_costs
        from chainstay.cli.solver_methods import require_valid
        from chainstay.cli.training_run import train_by_plan
        from chainstay.plans import load_plan

    if budget is None:
        assert plan is not None, "one of the two is given"
        loaded, workload = load_plan(plan), build_checked_workload(options)
    else:
        wanted = PlanOptions(budget=budget, solving=solving)
        link = require_valid(wanted)
        costs = measure_costs(options, budget)
        loaded, workload = plan_model(costs, options, wanted, link).plan, costs.workload
    result = train_by_plan(
        workload, loaded, steps=steps, compare=compare, host_budget=solving.host_budget
    )
    if as_json:
        print_document(json.dumps(_document(result), indent=1))
    else:
        _print_comparison(result)
    if not result.is_as_planned:
        raise typer.Exit(ExitCode.FAILED)


def _require_one_plan(plan: Path | None, budget: str | None, given: Sequence[str]) -> None:
    """Require a plan file or a budget, not both, and no options that a plan file makes idle."""
    if (plan is None) == (budget is None):
        raise CommandLineError(
            "by which plan? Give --plan plan.json, or --budget 50% to make one now"
            if plan is None
            else "--plan and --budget are both given; the plan has its budget, leave one out"
        )
    for option in given:
        if plan is not None and option not in _WITH_A_PLAN:
            raise CommandLineError(
                f"{option} is for making a plan, and {plan} is one; leave it out"
            )


def _print_comparison(result: RunResult) -> None:
    solution = result.plan.solution
    print_result(result.title, style="bold")
    table = new_table()
    table.add_column("")
    for heading in ("peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    planned = solution.peak_bytes, solution.makespan
    rows = [("by the plan", planned, (result.measured_peak, result.measured_time))]
    if result.plain is not None:
        rows.insert(0, ("plain PyTorch", result.planned_plain, result.plain))
    for name, (planned_peak, planned_time), (peak, step_time) in rows:
        peaks = short_bytes(planned_peak), short_bytes(peak)
        table.add_row(name, *peaks, format_time(planned_time), format_time(step_time))
    print_table(table)
    print_result(
        f"\nbudget {format_bytes(solution.budget)}: "
        f"{'kept' if result.is_within_budget else 'EXCEEDED'}; "
        f"{len(result.plan.chain or result.plan.profile)} stages, "
        f"{len(solution.schedule)} operations"
    )
    print_result(
        f"loss, gradients, buffers, random state against plain PyTorch: {_comparison_text(result)}"
    )


def _comparison_text(result: RunResult) -> str:
    if result.differences is None:
        return f"not compared ({result.reason_not_compared})"
    if not result.differences:
        return "equal, bit for bit"
    shown = ", ".join(result.differences[:3]) + (" ..." if len(result.differences) > 3 else "")
    if not result.is_plain_steady:
        return f"plain PyTorch differs from itself when it is run twice ({shown})"
    return f"DIFFERENT in {len(result.differences)} tensors: {shown}"


def _document(result: RunResult) -> dict[str, Any]:
    solution = result.plan.solution
    return {
        "model": result.title,
        "budget": solution.budget,
        "planned_peak_bytes": solution.peak_bytes,
        "measured_peak_bytes": result.measured_peak,
        "planned_ns": float(solution.makespan),
        "measured_ns": result.measured_time,
        "plain_peak_bytes": result.plain[0] if result.plain else None,
        "plain_ns": result.plain[1] if result.plain else None,
        "equal": None if result.differences is None else not result.differences,
        "differences": list(result.differences or ()),
        "is_plain_steady": result.is_plain_steady,
        "within_budget": result.is_within_budget,
    }
