"""``chainstay run``: not there yet."""

from __future__ import annotations

from chainstay.cli.endings import CommandLineError

__all__ = ["EXAMPLES", "run"]

EXAMPLES = ""


def run() -> None:
    """Not there yet."""
    raise CommandLineError("not there yet")
