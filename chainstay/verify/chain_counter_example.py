"""Make the instance of a contradiction small, and write it down as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from chainstay.errors import InvalidScheduleError
from chainstay.instances import ChainInstance, simpler_chains
from chainstay.problems import consistency
from chainstay.profiles import ChainProfile
from chainstay.solution import Claim
from chainstay.validation.simulate import simulate
from chainstay.verify.batches import ChainCheck
from chainstay.verify.chain_answers import CheckedAnswer, check_method, find_contradiction
from chainstay.verify.chain_methods import MethodUnderTest

__all__ = ["chain_counter_example", "minimised_chain"]

_MINIMISING_SECONDS: Final = 60.0


def minimised_chain(
    instance: ChainInstance,
    between: Sequence[MethodUnderTest],
    *,
    seconds: float = _MINIMISING_SECONDS,
) -> ChainInstance:
    """Return a smallest instance on which the methods `between` still contradict each other.

    Nothing simpler, by `chainstay.instances.simpler_chains`, makes them; unless time ran out.
    """
    deadline = time.monotonic() + seconds

    def fails(candidate: ChainInstance) -> bool:
        answers = [check_method(tested, candidate) for tested in between]
        return time.monotonic() < deadline and find_contradiction(answers) is not None

    while (smaller := next(filter(fails, simpler_chains(instance)), None)) is not None:
        instance = smaller
    return instance


def chain_counter_example(check: ChainCheck, *, seed: int, instance: ChainInstance) -> str:
    """Return a JSON document of the contradiction in `check`, on a smaller `instance` of it."""
    assert check.contradiction is not None, "there is nothing to write about"
    answers = [check_method(tested, instance) for tested in check.contradiction.between]
    found = find_contradiction(answers) or check.contradiction
    return consistency.counter_example_json(
        found.reason,
        instance.profile,
        instance.budget,
        [_answer_fields(answer, instance.profile) for answer in answers],
        seed=seed,
        number=check.number,
    )


def _answer_fields(answer: CheckedAnswer, profile: ChainProfile) -> dict[str, object]:
    """Return an answer and its replay as JSON fields."""
    fields = {**consistency.result_fields(answer.result), "refusal": answer.refusal}
    if answer.result.claim is not None:
        fields["replay"] = _replay_fields(answer.result.claim, profile)
    return fields


def _replay_fields(claim: Claim, profile: ChainProfile) -> dict[str, object]:
    try:
        replay = simulate(profile, claim.schedule, discards=claim.discards)
    except InvalidScheduleError as error:
        return {"invalid": error.reason}
    return {"makespan": replay.makespan, "peak_bytes": replay.peak_bytes}
