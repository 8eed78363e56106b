"""The page of the command line: what every command's ``--help`` says, word for word."""

from __future__ import annotations

from typing import Final

import typer
from typer.testing import CliRunner

from chainstay.cli import app

__all__ = ["command_line_page"]

_WIDTH: Final = 92
"""Columns that a page has room for."""


def command_line_page() -> str:
    """All commands, in the order in which ``chainstay --help`` lists them."""
    group = typer.main.get_group(app)
    parts = [
        "# Command line",
        "",
        "As `chainstay --help` and `chainstay COMMAND --help` say it.",
        "`chainstay --install-completion` teaches your shell the commands and options.",
        "",
        *_help([]),
    ]
    for name in group.commands:
        parts += [f"## chainstay {name}", "", *_help([name])]
    return "\n".join(parts)


def _help(command: list[str]) -> list[str]:
    result = CliRunner().invoke(
        app,
        [*command, "--help"],
        prog_name="chainstay",
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        catch_exceptions=False,
    )
    if result.exit_code:
        raise RuntimeError(f"chainstay {' '.join(command)} --help ended with {result.exit_code}")
    return ["```text", result.stdout.replace("\b", "").rstrip(), "```", ""]
