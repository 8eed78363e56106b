"""Chains whose least budget is a sum worked out by hand, with what stages save to run again."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chainstay.profiles import ChainProfile, RunCost, Stage

_SMALL: Final = Stage(output_bytes=1, saved_bytes=1, environment_bytes=100)
_DEAR: Final = RunCost(overhead_bytes=1_000)
_LATE: Final = replace(_SMALL, first=RunCost(overhead_bytes=9_000))
"""A stage that is kept in a later run."""
_DRAWING: Final = replace(_LATE, random_bytes=100)


def _chain(*stages: Stage) -> ChainProfile:
    return ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(*stages, Stage()))


CHAINS_AND_LEAST_BUDGETS: Final = (
    # Fn1 has a0, a1, a2 and both environments; to keep stage 0 takes 500
    (_chain(replace(_SMALL, saved_bytes=500), replace(_LATE, dropped_first=_DEAR)), 1_203),
    # Fa1 has a0, what stages 0 and 1 save, its environment and the buffers of stage 0
    (_chain(_LATE, replace(_LATE, again=_DEAR)), 1_203),
    # of stage 0, it has only what that saved
    (_chain(_DRAWING, replace(_LATE, again=_DEAR)), 1_103),
    # Fa0 has a0, what it saves and its random states, once stage 1 is done with
    (_chain(replace(_DRAWING, again=_DEAR), _LATE), 1_102),
)
"""Each budget is one large overhead, activations of a byte, and environments of 100."""
