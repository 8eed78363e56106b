"""``chainstay profile``: the costs of the stages of a model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from chainstay.cli.options import JsonOutput, ModelOptions, flatten_options
from chainstay.cli.output_files import output_path, write_output
from chainstay.cli.terminal import (
    new_table,
    print_document,
    print_note,
    print_result,
    print_table,
    printable,
    short_bytes,
    spinner,
)
from chainstay.units import format_bytes, format_time

if TYPE_CHECKING:
    from chainstay.cli.models.model_costs import ModelCosts
    from chainstay.profiles import ChainProfile

EXAMPLES: Final = """\b
Examples:
  chainstay profile torchvision:resnet50 --input 8x3x224x224
  chainstay profile "hf:gpt2?n_layer=24" --input 1x512 -o gpt2.json
  chainstay profile timm:convnext_tiny --device A100-80GB
  chainstay profile models/mine.py:build --input 32x128 --json
"""


@flatten_options(omit=("stage_options",))
def profile(
    *,
    options: ModelOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; profile.json by default.")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Measure or estimate the costs of every stage of a model.

    Estimates are for a device that is not here, by its data sheet. Writes a profile file, from
    which chainstay plan makes plans quickly.
    """
    with spinner("loading PyTorch"):
        # Needs torch, which --help must not load.
        from chainstay.cli.models.model_costs import measure_costs

    target = output_path(output, "profile.json", as_json=as_json, source=options.model)
    costs = measure_costs(options)
    text = costs.profile.to_json()
    if target is not None:
        write_output(target, text)
    if as_json:
        print_document(text)
    else:
        _print_stages(costs)
        if target is not None:
            following = shlex.join(["chainstay", "plan", str(target), "--budget", "50%"])
            print_result(f"\nwrote {target}; next: {following}", wrap=False)


def _print_stages(costs: ModelCosts) -> None:
    print_result(costs.workload.title, style="bold")
    model = costs.model
    if model is not None and model.origin:
        print_note(f"cut {model.origin.rstrip()}")
    if model is not None and model.attempt is not None:
        print_note("its branches meet: chainstay plan also tries to plan each branch apart")
    print_table(stage_costs_table(costs.profile))
    print_note(
        "forward: one more run of the stage; backward: what keeping it takes besides, 0 where "
        "running it again takes as long as that"
    )
    size = sum(parameter.nbytes for parameter in costs.workload.model.parameters())
    plain = costs.plain
    print_result(
        f"\nplain training: {format_time(plain.makespan)} a step at a peak of "
        f"{format_bytes(plain.peak_bytes)}, besides {format_bytes(size)} of parameters and their "
        "gradients"
    )


def stage_costs_table(profile: ChainProfile) -> Table:
    """Return a table of the costs of every stage, no wider than 80 columns."""
    table = new_table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("stage", overflow="fold", ratio=1)
    for heading in ("forward", "backward", "passes on", "saves", "needs more"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(profile.stages):
        table.add_row(
            str(index),
            Text(printable(stage.name)),
            format_time(stage.forward_time),
            format_time(stage.backward_time),
            short_bytes(stage.output_bytes),
            short_bytes(stage.saved_bytes),
            short_bytes(max(stage.forward_overhead_bytes, stage.backward_overhead_bytes)),
        )
    return table
