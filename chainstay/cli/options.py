"""Options that several commands have, and dataclasses of options that travel together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import typer

from chainstay.cli.exit_codes import CommandLineError
from chainstay.schedule import Discards

CutMethod = Literal["auto", "graph", "blocks", "export"]
"""Methods that cut a model into stages; see `chainstay.fit`."""
SolverName = Literal["auto", "dp", "weak", "mip", "cpsat"]
"""Solvers by name."""
DataType = Literal["float32", "bfloat16", "float16"]
"""Data types of a model's parameters and inputs."""

JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


ACCELERATORS: Final = ("cuda", "xpu")
"""Types of devices by which ``--device`` begins; ROCm's is cuda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """A model, its batch and device, and how its stages are measured; see the texts of help."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="torchvision:resnet50, timm:convnext_tiny, hf:gpt2?n_layer=24 (each with random "
            "weights, nothing is downloaded) or path/to/file.py:function.",
        ),
    ]
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="SHAPE",
            help="Shape of a batch, as in 32x3x224x224; of tokens, as in 4x512 or 4x512:int64. "
            "Repeat it for each argument of the model's forward.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cpu, cuda, cuda:1 or xpu; commands that run nothing also take a data sheet "
            "such as A100-80GB, for which costs are estimated. By default an accelerator if one is "
            "here, else the CPU.",
        ),
    ] = None
    dtype: Annotated[DataType, typer.Option(help="Data type of parameters and inputs.")] = "float32"
    by: Annotated[
        CutMethod,
        typer.Option(help="How the model is cut into stages; export is the old name of graph."),
    ] = "auto"
    granularity: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="Stages of a model's graph: fine, blocks, or the most stages."
        ),
    ] = "fine"
    stage_options: Annotated[
        bool,
        typer.Option(
            help="Whether a plan may keep stages in part, instead of whole or not at all."
        ),
    ] = True
    repeats: Annotated[int, typer.Option(min=1, help="Least number of timed runs of a stage.")] = 3
    cache: Annotated[
        Path | None, typer.Option(help="Folder in which measured costs are kept for later runs.")
    ] = None

    def require_runnable_device(self) -> None:
        """Refuse a device that is only a data sheet.

        Raises:
            CommandLineError: Nothing can run on the device.
        """
        if self.device not in (None, "cpu") and not str(self.device).startswith(ACCELERATORS):
            raise CommandLineError(
                f"--device {self.device} is a data sheet, on which nothing runs; use cpu or cuda"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """The techniques that a plan may use, and the solver; see the texts of help."""

    offload: Annotated[
        bool, typer.Option("--offload", help="Also try plans that use host memory.")
    ] = False
    link: Annotated[
        str | None,
        typer.Option(
            metavar="SPEED",
            help="Speed of the link to the host, as in 12GB/s; measured by default. Add a latency "
            "and full for both directions at once: 12GB/s,10us,full.",
        ),
    ] = None
    host_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Host memory that may be used, as in 64GiB; all by default."
        ),
    ] = None
    method: Annotated[
        SolverName,
        typer.Option(help="The solver; weak: dynamic program in which checkpoints may move."),
    ] = "auto"
    time_limit: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Time limit of --method mip and cpsat."),
    ] = 60.0
    discards: Annotated[
        Discards,
        typer.Option(
            help="For a profile file: the data that a plan may drop; free is what runs here."
        ),
    ] = Discards.FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """A budget as text, and how to solve within it."""

    budget: str
    solving: SolveOptions = SolveOptions()


_NAMES: Final = {
    "inputs": "--input",
    "stage_options": "--no-stage-options",
    "host_budget": "--host-budget",
    "time_limit": "--time-limit",
}
"""Options of the command line that are not called as their fields."""


def given_options(group: ModelOptions | SolveOptions) -> list[str]:
    """Return the options that have another value than by default."""
    return [
        _NAMES.get(field.name, f"--{field.name}")
        for field in fields(group)
        if field.default not in (MISSING, getattr(group, field.name))
    ]


def flatten_options(
    *, omit: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that shows typer the fields of dataclass parameters as options.

    Args:
        omit: Names of fields that the command does not have; they keep their defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Any, list[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if not is_dataclass(group := parameter.annotation):
                parameters.append(parameter)
                continue
            options = _option_parameters(group, omit)
            groups[parameter.name] = (group, [option.name for option in options])
            parameters += options

        @functools.wraps(command)
        def flat(**values: Any) -> None:
            for name, (group, options) in groups.items():
                values[name] = group(**{option: values.pop(option) for option in options})
            command(**values)

        flat.__dict__["__signature__"] = inspect.Signature(parameters)
        flat.__annotations__ = {option.name: option.annotation for option in parameters}
        return flat

    return decorate


def _option_parameters(group: Any, omit: Collection[str]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
        if field.name not in omit
    ]
