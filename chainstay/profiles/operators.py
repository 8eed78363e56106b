"""The operators inside of a stage: what each makes and saves, and what making it again takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a stage; views are part of those who read them.

    Attributes:
        time: Time to run it again, in ns.
        inputs: Positions of the operators in front of it whose results it reads.
        result_bytes: Bytes to keep its result; 0 where that is in memory anyway.
        is_saved: Whether autograd saves its result.
        extra_bytes: Bytes that it saves besides, which no operator gives.
        is_keepable: Whether its result can be kept: it has one, and nobody changes it later.
        is_replayable: Whether it can be run again.
        state_bytes: Bytes to keep to run it again: states of random generators.
        is_redrawable: Whether what it saves besides can be made again without its inputs, in the
            same time: dropout's noise.
    """

    time: int
    inputs: tuple[int, ...] = ()
    result_bytes: int = 0
    is_saved: bool = False
    extra_bytes: int = 0
    is_keepable: bool = True
    is_replayable: bool = True
    state_bytes: int = 0
    is_redrawable: bool = False
