"""``chainstay bench``: what else there is, on your model."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from chainstay.cli.options import (
    By,
    Cache,
    Device,
    Dtype,
    Granularity,
    Inputs,
    Json,
    Model,
    Repeats,
    Types,
    Ways,
)
from chainstay.cli.terminal import busy

__all__ = ["EXAMPLES", "bench"]

EXAMPLES: Final = """\b
Examples:
  chainstay bench torchvision:resnet50 --input 8x3x64x64
  chainstay bench "hf:gpt2?n_layer=4" --input 1x256 --budgets 80%,60%,40% --json
"""


def bench(  # noqa: PLR0913  # options of a command line, all by name
    model: Model,
    *,
    budgets: Annotated[
        str, typer.Option(metavar="SIZES", help="Of chainstay's plans, with commas between.")
    ] = "80%,60%,40%",
    segments: Annotated[
        int, typer.Option(min=0, help="Of torch's checkpoint_sequential: how many counts to run.")
    ] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each.")] = 5,
    inputs: Inputs = None,
    device: Device = None,
    dtype: Dtype = Types.FLOAT32,
    by: By = Ways.AUTO,
    granularity: Granularity = "fine",
    repeats: Repeats = 5,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Train a model plainly, by torch's checkpoint_sequential, and by plans: time and peak.

    Of the segment counts of checkpoint_sequential, those are run that no other one beats in both
    time and peak.
    """
    with busy("loading PyTorch"):
        from chainstay.cli.benching import benched
        from chainstay.cli.profiling import Request

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
    benched(request, budgets=budgets, segments=segments, steps=steps, json=json)
