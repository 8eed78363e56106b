"""Random numbers that are not torch's: Python's own generator and NumPy's global one.

Models draw from them, too: to skip a layer, to mask some of the words.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OtherGenerators:
    """States of both generators; equal if nothing was drawn between.

    Attributes:
        python: The state as `random.getstate` has it.
        numpy: The state as ``numpy.random.get_state`` has it, the array as bytes; ``None`` where
            NumPy is not imported or has another generator than its own.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None

    @classmethod
    def now(cls) -> OtherGenerators:
        """The present states."""
        numpy = sys.modules.get("numpy")
        return cls(random.getstate(), None if numpy is None else _numpy_state(numpy.random))

    @classmethod
    def seeded(cls, seed: int) -> OtherGenerators:
        """The states behind a seed."""
        numpy = sys.modules.get("numpy")
        other = None if numpy is None else _numpy_state(numpy.random.RandomState(seed))
        return cls(random.Random(seed).getstate(), other)  # noqa: S311  # nothing secret

    def restore(self) -> None:
        """Put both back."""
        random.setstate(self.python)
        if self.numpy is not None:
            numpy = sys.modules["numpy"]
            name, words, *rest = self.numpy
            numpy.random.set_state((name, numpy.frombuffer(words, numpy.uint32), *rest))


def _numpy_state(source: Any) -> tuple[Any, ...] | None:
    state = source.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    inner = state["state"]
    words = inner["key"].tobytes()
    return (state["bit_generator"], words, inner["pos"], state["has_gauss"], state["gauss"])
