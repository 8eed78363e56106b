"""``chainstay run``: train by a plan, and see whether it keeps its word."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from chainstay.cli.options import (
    By,
    Cache,
    Device,
    Dtype,
    Granularity,
    HostBudget,
    Inputs,
    Json,
    Link,
    Method,
    Methods,
    Model,
    Offload,
    Repeats,
    Types,
    Ways,
)
from chainstay.cli.terminal import busy

__all__ = ["EXAMPLES", "run"]

EXAMPLES: Final = """\b
Examples:
  chainstay run torchvision:resnet50 --input 8x3x64x64 --plan plan.json
  chainstay run "hf:gpt2?n_layer=4" --input 1x256 --budget 50% --steps 10
"""


def run(  # noqa: PLR0913  # options of a command line, all by name
    model: Model,
    *,
    plan: Annotated[
        Path | None, typer.Option("--plan", "-p", help="By chainstay plan; or give --budget.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", "-b", metavar="SIZE", help="As for chainstay plan."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    compare: Annotated[
        bool, typer.Option(help="Train by plain PyTorch, too, where that fits.")
    ] = True,
    inputs: Inputs = None,
    device: Device = None,
    dtype: Dtype = Types.FLOAT32,
    offload: Offload = False,
    link: Link = None,
    host_budget: HostBudget = None,
    method: Method = Methods.AUTO,
    by: By = Ways.AUTO,
    granularity: Granularity = "fine",
    repeats: Repeats = 5,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Train a few steps by a plan: planned against measured, and bit for bit against PyTorch.

    Ends with status 1 if a step is not what plain PyTorch does, or needs more than its budget.
    """
    with busy("loading PyTorch"):
        from chainstay.cli.planning import Asked
        from chainstay.cli.profiling import Request
        from chainstay.cli.running import Run, run_made

    request = Request(
        model=model,
        inputs=inputs,
        device=device,
        dtype=dtype,
        by=by,
        granularity=granularity,
        repeats=repeats,
        cache=cache,
    )
    asked = None
    if budget is not None:
        asked = Asked(
            budget=budget, offload=offload, link=link, host_budget=host_budget, method=method
        )
    wanted = Run(plan=plan, asked=asked, steps=steps, compare=compare, host_budget=host_budget)
    ending = run_made(request, wanted, json=json)
    if ending:
        raise typer.Exit(ending)
