"""``chainstay plan``: the fastest plan within a budget."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.options import (
    JsonOutput,
    ModelOptions,
    PlanOptions,
    SolveOptions,
    flatten_options,
    given_options,
)
from chainstay.cli.output_files import output_path, write_output
from chainstay.cli.terminal import print_document, print_result, print_table, spinner

if TYPE_CHECKING:
    from chainstay.cli.strategies import PlanResult

EXAMPLES: Final = """\b
Examples:
  chainstay plan torchvision:resnet50 --input 8x3x64x64 --budget 50%
  chainstay plan profile.json --budget 2GiB
  chainstay plan "hf:llama?num_hidden_layers=32" --input 1x2048 --dtype bfloat16
      --device A100-80GB --budget 6GiB
  chainstay plan models/mine.py:build --budget 8GiB --offload --link 12GB/s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetOptions(ModelOptions):
    """A model or a profile file, and how stages are measured."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="A model, as for chainstay profile; or a profile file of a chain, a join or "
            "offloading.",
        ),
    ]


@flatten_options()
def plan(
    *,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            "-b",
            metavar="SIZE",
            help="Memory for one step, besides parameters: 8GiB, 500MB, or 50% of what plain "
            "training needs.",
        ),
    ],
    target: _TargetOptions,
    solving: SolveOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; plan.json by default.")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Find the fastest way to train a model within a memory budget.

    Compares it with other strategies, and writes a plan file: for chainstay run, chainstay
    report, and chainstay.apply_plan in your own program. A profile file will do for a model.
    """
    with spinner("loading PyTorch"):
        # These need torch, which --help must not load.
        from chainstay.cli.model_plans import plan_model
        from chainstay.cli.models.model_costs import measure_costs
        from chainstay.cli.profile_plans import plan_profile_file
        from chainstay.cli.solver_methods import require_valid

    file = output_path(output, "plan.json", as_json=as_json, source=target.model)
    options = PlanOptions(budget=budget, solving=solving)
    link = require_valid(options)
    is_profile = Path(target.model).suffix == ".json"
    if not is_profile and "--discards" in given_options(solving):
        raise CommandLineError(
            f"--discards is for profile files, and {target.model} is none; leave it out"
        )
    if is_profile:
        result = plan_profile_file(target, options, link)
    else:
        result = plan_model(measure_costs(target, budget), target, options, link)
    text = result.plan.to_json()
    if file is not None:
        write_output(file, text)
    if as_json:
        print_document(text)
        return
    _print_result(result)
    if file is not None:
        can_run = result.plan.fingerprint is not None
        run = ["chainstay", "run", *_model_arguments(target), "--plan", str(file)]
        first = f"{shlex.join(run)}\n  or: " if can_run else ""
        report = shlex.join(["chainstay", "report", str(file), "-o", "plan.html"])
        print_result(f"\nwrote {file}; next:\n      {first}{report}", wrap=False)


def _model_arguments(options: ModelOptions) -> Iterator[str]:
    """Yield the arguments that name the same model and batch again."""
    yield options.model
    for shape in options.inputs or ():
        yield from ("--input", shape)
    if options.device is not None:
        yield from ("--device", options.device)
    if options.dtype != "float32":
        yield from ("--dtype", options.dtype)


def _print_result(result: PlanResult) -> None:
    # These need numpy, which --help must not load.
    from chainstay.cli.strategies import strategy_table
    from chainstay.plans.kept_in_part import kept_in_part, table_of_parts

    solution = result.plan.solution
    share = solution.budget / result.plain_bytes if result.plain_bytes else 1.0
    problem = result.plan.problem
    budget = problem.format_size(solution.budget)
    print_result(result.title, style="bold")
    print_result(f"budget: {budget}, {share:.0%} of what plain training needs\n")
    print_table(strategy_table(result.strategies, result.chosen, result.plain_time, problem.unit))
    text = solution.describe()
    if problem.unit == "slots":  # whose sizes are no bytes, and whose times no nanoseconds
        text = f"{solution.makespan} time units in {problem.format_size(solution.peak_bytes)}"
    print_result(f"\n{result.chosen.name}: {text}")
    parts = kept_in_part(result.plan.profile, solution.schedule)
    if parts:
        table = table_of_parts(parts, len(result.plan.profile), int(result.plain_time))
        print_result(table, wrap=False)
