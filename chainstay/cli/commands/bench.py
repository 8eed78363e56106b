"""``chainstay bench``: plain PyTorch, torch's checkpointing and plans, each run on your model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chainstay.cli.options import JsonOutput, ModelOptions, PlanOptions, flatten_options
from chainstay.cli.terminal import (
    new_table,
    print_document,
    print_result,
    print_table,
    short_bytes,
    spinner,
)
from chainstay.units import format_time

if TYPE_CHECKING:
    from chainstay.cli.benchmark import BenchmarkRow

EXAMPLES: Final = """\b
Examples:
  chainstay bench torchvision:resnet50 --input 8x3x64x64
  chainstay bench "hf:gpt2?n_layer=4" --input 1x256 --budgets 80%,60%,40% --json
"""


@flatten_options()
def bench(
    *,
    budgets: Annotated[
        str,
        typer.Option(
            "--budgets",
            "--budget",
            "-b",
            metavar="SIZES",
            help="Budgets of plans, separated by commas.",
        ),
    ] = "80%,60%,40%",
    segments: Annotated[
        int, typer.Option(min=0, help="Number of segment counts of checkpoint_sequential to run.")
    ] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each strategy.")] = 5,
    options: ModelOptions,
    as_json: JsonOutput = False,
) -> None:
    """Compare plans with plain training and checkpoint_sequential.

    Measures time and peak of each. Of the segment counts of checkpoint_sequential, those are run
    that no other one beats in both.
    """
    options.require_runnable_device()
    with spinner("loading PyTorch"):
        # These need torch, which --help must not load.
        from chainstay.cli.benchmark import measure_strategies
        from chainstay.cli.models.model_costs import measure_costs
        from chainstay.cli.solver_methods import require_valid

    plans = [PlanOptions(budget=budget.strip()) for budget in budgets.split(",")]
    for plan in plans:
        require_valid(plan)
    costs = measure_costs(options, budget="1B")  # a small one may be among them
    rows = measure_strategies(costs, plans, segments=segments, steps=steps)
    if as_json:
        document = [{"way": row.pop("name"), **row} for row in map(asdict, rows)]
        print_document(json.dumps(document, indent=1))
        return
    _print_rows(costs.workload.title, rows)


def _print_rows(title: str, rows: Sequence[BenchmarkRow]) -> None:
    print_result(title, style="bold")
    table = new_table()
    table.add_column("", overflow="fold")
    measures = ("peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured")
    for heading in ("budget\n", *measures, "\nslower"):
        table.add_column(heading, justify="right", no_wrap=True)
    plain = rows[0].measured_ns
    for row in rows:
        slower = "" if not plain or not row.measured_ns else f"{row.measured_ns / plain - 1:.1%}"
        table.add_row(
            row.name,
            "" if row.budget is None else short_bytes(row.budget),
            "" if row.planned_peak is None else short_bytes(row.planned_peak),
            row.note if row.measured_peak is None else short_bytes(row.measured_peak),
            "" if row.planned_ns is None else format_time(row.planned_ns),
            "" if row.measured_ns is None else format_time(row.measured_ns),
            slower,
        )
    print_table(table)
    print_result("\ntimes: the least of several steps; peaks: a whole step, inputs included")
