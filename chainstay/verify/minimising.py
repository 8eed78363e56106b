"""From a contradiction to a small instance that shows it, written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from chainstay import evidence
from chainstay.errors import InvalidScheduleError
from chainstay.instances import ChainInstance, simpler
from chainstay.profiles import ChainProfile
from chainstay.solution import Claim
from chainstay.validation.simulate import simulate
from chainstay.verify.answers import Answer, ask, contradiction
from chainstay.verify.checking import Check
from chainstay.verify.contestants import Contestant

__all__ = ["counter_example", "minimised"]

_MINIMISING_SECONDS: Final = 60.0


def minimised(
    instance: ChainInstance,
    between: Sequence[Contestant],
    *,
    seconds: float = _MINIMISING_SECONDS,
) -> ChainInstance:
    """A smallest instance on which the contestants `between` still contradict each other.

    Nothing simpler, by `chainstay.instances.simpler`, makes them; unless time ran out.
    """
    deadline = time.monotonic() + seconds

    def fails(candidate: ChainInstance) -> bool:
        answers = [ask(contestant, candidate) for contestant in between]
        return time.monotonic() < deadline and contradiction(answers) is not None

    while (smaller := next(filter(fails, simpler(instance)), None)) is not None:
        instance = smaller
    return instance


def counter_example(check: Check, *, seed: int, instance: ChainInstance) -> str:
    """A JSON document of the contradiction in `check`, shown on a smaller `instance` of it."""
    assert check.contradiction is not None, "there is nothing to write about"
    answers = [ask(contestant, instance) for contestant in check.contradiction.between]
    found = contradiction(answers) or check.contradiction
    return evidence.counter_example(
        found.reason,
        instance.profile,
        instance.budget,
        [_answer_fields(answer, instance.profile) for answer in answers],
        seed=seed,
        number=check.number,
    )


def _answer_fields(answer: Answer, profile: ChainProfile) -> dict[str, object]:
    """An answer and its replay, for a document."""
    fields = {**evidence.statement_fields(answer.statement), "refusal": answer.refusal}
    if answer.statement.claim is not None:
        fields["replay"] = _replay_fields(answer.statement.claim, profile)
    return fields


def _replay_fields(claim: Claim, profile: ChainProfile) -> dict[str, object]:
    try:
        replay = simulate(profile, claim.schedule, discards=claim.discards)
    except InvalidScheduleError as error:
        return {"invalid": error.reason}
    return {"makespan": replay.makespan, "peak_bytes": replay.peak_bytes}
