"""Calls that are traced one after the other, of which people are told: tracing takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MOST: Final = 4
"""Traces in a row that are told."""


class RepeatedTraces:
    """Counts traces in a row that lead to a plan which is known.

    Args:
        name: The model's name.
        say: Tells people a line.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._count = 0

    def reset(self) -> None:
        """Note a call that needed no trace."""
        self._count = 0

    def add(self) -> None:
        """Note a call that was traced and goes by a known plan, and tell if too many were."""
        self._count += 1
        if self._count == _MOST:
            self._say(
                f"the last {_MOST} calls of {self._name} were each traced again, which may take "
                "longer than the calls: something that its forward reads differs from call to "
                "call, a number in a global hook, say; TORCH_LOGS=recompiles tells what"
            )
