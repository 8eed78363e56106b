"""Links as text on the command line: ``12GB/s``, ``12GB/s,10us,full``."""

from __future__ import annotations

import re
from typing import Final

from chainstay.cli.exit_codes import CommandLineError
from chainstay.profiles import Link
from chainstay.units import parse_bytes

__all__ = ["parse_link"]

_LATENCY: Final = re.compile(r"([0-9]{1,9})(ns|us|ms)")
_FACTORS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}


def parse_link(text: str) -> Link:
    """Return the link that `text` means.

    Raises:
        CommandLineError: The text is no link.

    Example:
        >>> parse_link("12GB/s,10us,full").latency
        Fraction(10000, 1)
    """
    speed, *rest = (part.strip() for part in text.split(","))
    amount = parse_bytes(speed[: -len("/s")]) if speed.endswith("/s") else None
    latency, duplex = 0, "half"
    for part in rest:
        if part in ("half", "full"):
            duplex = part
        elif match := _LATENCY.fullmatch(part):
            latency = int(match[1]) * _FACTORS[match[2]]
        else:
            amount = None
    if not amount or len(rest) > 2:
        raise CommandLineError(
            f"--link is {text!r}, must be a speed such as 12GB/s, and may go on with a latency and "
            "half or full: 12GB/s,10us,full"
        )
    return Link.from_bytes_per_second(amount, latency_ns=latency, duplex=duplex)
