"""The work behind ``chainstay report``: pages, pictures and traces of plan files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from chainstay.cli.endings import CommandLineError
from chainstay.cli.profiling import writing_to, written
from chainstay.cli.terminal import busy, say
from chainstay.files import write_bytes
from chainstay.plans import Plan, load_plan

__all__ = ["reported"]

_PAGES: Final = (".html", ".htm")


def reported(
    path: Path,
    *,
    output: Path | None,
    pictures: tuple[Path | None, Path | None],
    trace_file: Path | None,
    title: str | None,
) -> None:
    """Write what was asked for, or a page beside the plan."""
    png, svg = pictures
    if not (output or png or svg or trace_file):
        output = path.with_suffix(".html")
    wanted: list[tuple[Path | None, tuple[str, ...], Callable[[Plan, str, Path], None]]] = [
        (output, _PAGES, _page),
        (png, (".png",), _picture),
        (svg, (".svg",), _picture),
        (trace_file, (".json", ".gz"), _trace),
    ]
    for file, suffixes, _ in wanted:
        _require_writable(file, suffixes, path)
    plan = load_plan(path)
    heading = title or plan.model or path.name
    for file, _, make in wanted:
        if file is not None:
            with busy(f"writing {file}"):
                make(plan, heading, file)
            say(f"wrote {file}")


def _require_writable(file: Path | None, suffixes: tuple[str, ...], source: Path) -> None:
    if file is None:
        return
    writing_to(file, file.name, json=True)
    if file.suffix.lower() not in suffixes:
        raise CommandLineError(
            f"{file} is to be written, and its name does not end with {' or '.join(suffixes)}; "
            "choose another name"
        )
    if file.absolute() == source.absolute():
        raise CommandLineError(f"{file} is the plan itself; choose another name for what it shows")


def _page(plan: Plan, title: str, file: Path) -> None:
    from chainstay.report import page

    text = page(plan.solution, plan.profile, title=title, **_about(plan))
    written(file, text)


def _about(plan: Plan) -> dict[str, Any]:
    """What a replay needs besides; with transfers, the referee takes the profile's overheads."""
    return {
        "keep": plan.keep or None,
        "overheads": plan.overheads if plan.chain is None else None,
    }


def _trace(plan: Plan, title: str, file: Path) -> None:  # noqa: ARG001  # traces have none
    from chainstay.report import trace

    events = trace(plan.solution, plan.profile, **_about(plan))
    written(file, json.dumps(events))


def _picture(plan: Plan, title: str, file: Path) -> None:
    from chainstay.report.pictures import picture

    content, kind = io.BytesIO(), file.suffix[1:].lower()
    picture(plan.solution, plan.profile, content, kind=kind, title=title, **_about(plan))
    try:
        write_bytes(file, content.getvalue())
    except OSError as cause:
        raise CommandLineError(f"{file} cannot be written: {cause.strerror}") from cause
