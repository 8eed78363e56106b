"""``chainstay plan``: the fastest way within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from chainstay.cli.options import (
    By,
    Cache,
    Device,
    Discard,
    Discards,
    Dtype,
    Granularity,
    HostBudget,
    Inputs,
    Json,
    Limit,
    Link,
    Method,
    Methods,
    Offload,
    Repeats,
    Types,
    Ways,
)
from chainstay.cli.terminal import busy

__all__ = ["EXAMPLES", "plan"]

EXAMPLES: Final = """\b
Examples:
  chainstay plan torchvision:resnet50 --input 8x3x64x64 --budget 50%
  chainstay plan profile.json --budget 2GiB
  chainstay plan "hf:llama?num_hidden_layers=32" --input 1x2048 --dtype bfloat16
      --device A100-80GB --budget 6GiB
  chainstay plan models/mine.py:build --budget 8GiB --offload --link 12GB/s
"""


def plan(  # noqa: PLR0913  # options of a command line, all by name
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="A model, as for chainstay profile; or a profile file of a chain, a join or "
            "offloading.",
        ),
    ],
    *,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            "-b",
            metavar="SIZE",
            help="Of memory for a step, besides parameters: 8GiB, 500MB, or 50% of what plain "
            "training needs.",
        ),
    ],
    inputs: Inputs = None,
    device: Device = None,
    dtype: Dtype = Types.FLOAT32,
    offload: Offload = False,
    link: Link = None,
    host_budget: HostBudget = None,
    method: Method = Methods.AUTO,
    time_limit: Limit = 60.0,
    discards: Discard = Discards.FREE,
    by: By = Ways.AUTO,
    granularity: Granularity = "fine",
    repeats: Repeats = 5,
    cache: Cache = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; plan.json by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Find the fastest way to train a model, or a profile, within a memory budget.

    Shows it beside the other ways, and writes a plan file: for chainstay run, chainstay report,
    and chainstay.apply_plan in your own program.
    """
    with busy("loading PyTorch"):
        from chainstay.cli.planning import Asked, plan_made
        from chainstay.cli.profiling import Request

    request = Request(
        model=target,
        inputs=inputs,
        device=device,
        dtype=dtype,
        by=by,
        granularity=granularity,
        repeats=repeats,
        cache=cache,
    )
    asked = Asked(
        budget=budget,
        offload=offload,
        link=link,
        host_budget=host_budget,
        method=method,
        time_limit_s=time_limit,
        discards=discards,
    )
    plan_made(request, asked, output=output, json=json)
