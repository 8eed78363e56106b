"""``chainstay bench``: not there yet."""

from __future__ import annotations

from chainstay.cli.endings import CommandLineError

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = ""


def bench() -> None:
    """Not there yet."""
    raise CommandLineError("not there yet")
