"""``chainstay profile``: what the stages of a model cost."""

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
    Inputs,
    Json,
    Model,
    Repeats,
    Types,
    Ways,
)
from chainstay.cli.terminal import busy

__all__ = ["EXAMPLES", "profile"]

EXAMPLES: Final = """\b
Examples:
  chainstay profile torchvision:resnet50 --input 8x3x224x224
  chainstay profile "hf:gpt2?n_layer=24" --input 1x512 -o gpt2.json
  chainstay profile timm:convnext_tiny --device A100-80GB
  chainstay profile models/mine.py:build --input 32x128 --json
"""


def profile(  # noqa: PLR0913  # options of a command line, all by name
    model: Model,
    *,
    inputs: Inputs = None,
    device: Device = None,
    dtype: Dtype = Types.FLOAT32,
    by: By = Ways.AUTO,
    granularity: Granularity = "fine",
    repeats: Repeats = 5,
    cache: Cache = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; profile.json by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what every stage of a model costs, or estimate it for a device.

    Writes a profile file, from which `chainstay plan` makes plans in no time.
    """
    with busy("loading PyTorch"):
        from chainstay.cli.profiling import Request, profiled

    profiled(
        Request(
            model=model,
            inputs=inputs,
            device=device,
            dtype=dtype,
            by=by,
            granularity=granularity,
            repeats=repeats,
            cache=cache,
        ),
        output=output,
        json=json,
    )
