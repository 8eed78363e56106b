"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "By",
    "Cache",
    "Device",
    "Discard",
    "Discards",
    "Dtype",
    "Granularity",
    "HostBudget",
    "Inputs",
    "Json",
    "Limit",
    "Link",
    "Method",
    "Methods",
    "Model",
    "Offload",
    "Repeats",
    "Types",
    "Ways",
]


class Ways(StrEnum):
    """How a model is cut into stages; see `chainstay.fit`."""

    AUTO = "auto"
    EXPORT = "export"
    BLOCKS = "blocks"


class Methods(StrEnum):
    """Solvers by name."""

    AUTO = "auto"
    DP = "dp"
    WEAK = "weak"
    MIP = "mip"
    CPSAT = "cpsat"


class Discards(StrEnum):
    """Rules for discards by name; see `chainstay.Discards`."""

    FREE = "free"
    TAPE = "tape"
    TABLE1 = "table1"


class Types(StrEnum):
    """Of a model's parameters and inputs."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="torchvision:resnet50, timm:convnext_tiny, hf:gpt2?n_layer=24 (each with random "
        "weights, nothing is downloaded) or path/to/file.py:function.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SHAPE",
        help="Of a batch, as in 32x3x224x224; tokens as in 4x512 or 4x512:int64. Once for each "
        "argument of the model's forward.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="cpu, cuda, cuda:1; or a data sheet such as A100-80GB, for which costs are "
        "estimated and nothing is run. By default CUDA if there is any, else the CPU.",
    ),
]
Dtype = Annotated[Types, typer.Option(help="Of parameters and inputs.")]
By = Annotated[Ways, typer.Option(help="How the model is cut into stages.")]
Granularity = Annotated[
    str, typer.Option(metavar="TEXT", help="Of an export: fine, blocks, or the most stages.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs of each stage, at least.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for what was measured, to be used again.")]
Method = Annotated[Methods, typer.Option(help="The solver; weak: checkpoints may move on.")]
Limit = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="For --method mip and cpsat.")
]
Discard = Annotated[
    Discards,
    typer.Option(help="Of a profile file: what a plan may drop; what runs here can do free."),
]
Offload = Annotated[bool, typer.Option("--offload", help="Also try to use the host's memory.")]
Link = Annotated[
    str | None,
    typer.Option(
        metavar="SPEED",
        help="To the host, as in 12GB/s; by default it is measured. 12GB/s,10us,full: with a "
        "latency, and both directions at once.",
    ),
]
HostBudget = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Of host memory, as in 64GiB; by default all.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
