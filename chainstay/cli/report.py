"""``chainstay report``: not there yet."""

from __future__ import annotations

from chainstay.cli.endings import CommandLineError

__all__ = ["EXAMPLES", "report"]

EXAMPLES = ""


def report() -> None:
    """Not there yet."""
    raise CommandLineError("not there yet")
