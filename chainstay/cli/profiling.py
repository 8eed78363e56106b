"""The work behind ``chainstay profile``, and what other commands share with it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from chainstay.cli.costs import Costed, costs_of, granularity_of
from chainstay.cli.endings import CommandLineError
from chainstay.cli.tables import stage_tables
from chainstay.cli.terminal import say, show, tell
from chainstay.cli.workloads import Workload, made
from chainstay.files import write_text
from chainstay.units import format_bytes, format_time

__all__ = ["Request", "profiled", "writing_to", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which model, on what, where, and how it is measured: options as they were given."""

    model: str
    inputs: list[str] | None
    device: str | None
    dtype: str
    by: str = "auto"
    granularity: str = "fine"
    repeats: int = 5
    cache: Path | None = None

    def workload(self) -> Workload:
        """The model and a batch.

        Raises:
            CommandLineError: An option is wrong.
        """
        granularity_of(self.granularity)
        return made(self.model, self.inputs, self.device, self.dtype)

    def costs(self) -> Costed:
        """What it costs."""
        return costs_of(
            self.workload(),
            by=self.by,
            granularity=self.granularity,
            repeats=self.repeats,
            cache=self.cache,
        )


def profiled(request: Request, *, output: Path | None, json: bool) -> None:
    """Print the stages, and write the profile."""
    target = writing_to(output, "profile.json", json=json)
    costed = request.costs()
    text = costed.profile.to_json()
    if json:
        sys.stdout.write(text + "\n")
    else:
        _show(costed)
    if target is not None:
        written(target, text)
        if not json:
            following = shlex.join(["chainstay", "plan", str(target), "--budget", "50%"])
            say(f"\nwrote {target}; next: {following}", wrap=False)


def writing_to(output: Path | None, default: str, *, json: bool) -> Path | None:
    """Where to write: by default only if nothing else is printed.

    Raises:
        CommandLineError: The folder is not there; better said before all the work.
    """
    target = output or (None if json else Path(default))
    if target is not None and not target.absolute().parent.is_dir():
        raise CommandLineError(
            f"there is no folder {target.absolute().parent} for {target.name}; make it, or choose "
            "another --output"
        )
    if target is not None and target.is_dir():
        raise CommandLineError(f"--output {target} is a folder, must be a file")
    return target


def written(path: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        CommandLineError: It cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as cause:
        raise CommandLineError(
            f"{path} cannot be written: {cause.strerror}; choose another --output"
        ) from cause


def _show(costed: Costed) -> None:
    say(costed.workload.title, style="bold")
    if costed.cut is not None and costed.cut.by == "blocks":
        tell(f"cut by blocks{costed.cut.reason}")
    if costed.has_branches:
        tell("its branches meet: chainstay plan looks at them apart, too")
    for table in stage_tables(costed.profile):
        show(table)
    parameters = list(costed.workload.model.parameters())
    size = format_bytes(sum(each.nbytes for each in parameters))
    plain = costed.plain
    say(
        f"\nplain training: {format_time(plain.makespan)} a step at a peak of "
        f"{format_bytes(plain.peak_bytes)}, besides {size} of parameters and their gradients"
    )
