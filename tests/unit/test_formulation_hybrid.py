"""Every sentence of the hybrid Pyomo model is needed."""

from __future__ import annotations

import pytest

from chainstay.formulations import highs_backend as backends
from chainstay.formulations.hybrid import formulation as hybrid
from chainstay.formulations.hybrid.truncation import ModelSize
from chainstay.formulations.pyomo_types import pyo
from chainstay.formulations.settings import Limits
from chainstay.problems.hybrid import HybridProblem
from hybrid_support import tiny

NEEDED = [
    ("computations_in_order", 0, 65),
    ("one_source_each", 1, 30),
    ("read_while_there", 1, 30),
    ("back_after_it_left", 1, 30),
    ("past_is_gone_and_not_read_again", 1, 30),
    ("memory_of_computations", 1, 30),
    ("memory_behind_links", 1, 30),
    ("gone_after_it_is_made", 16, 59),
    ("prefetches_have_their_place", 16, 59),
    ("there_unless_later_or_past", 16, 59),
    ("memory_of_prefetches", 16, 59),
    ("sent_once_from_a_copy", 18, 20),
    ("one_transfer_at_a_time", 18, 20),
]
"""Names, seeds of instances, and their optima in units: without the sentence, there is less."""
OTHERS = {
    "one_kind_each",  # what runs twice takes twice as long
    "back_for_a_reader",  # moving in vain gains nothing, but is no program list
    "one_copy_at_a_time",  # a second copy takes memory, and gains nothing here
    "plain_input_before_saved",  # where a program list waits for the plain form
    "held_until_returned",  # takes two items that share a limited place
}


def optimum(problem: HybridProblem) -> int:
    of = hybrid.build(problem, ModelSize())
    outcome = backends.solve(of.model, Limits(time_s=60), gap=0.5)
    assert outcome.has_values
    units: int = round(pyo.value(of.model.makespan))
    return units


@pytest.mark.parametrize(("name", "seed", "expected"), NEEDED)
def test_without_a_sentence_the_answer_is_too_fast(
    name: str, seed: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optimum(tiny(seed)) == expected
    rest = tuple(group for group in hybrid.CONSTRAINTS if group.__name__ != name)
    assert len(rest) == len(hybrid.CONSTRAINTS) - 1
    monkeypatch.setattr(hybrid, "CONSTRAINTS", rest)
    assert optimum(tiny(seed)) < expected


def test_every_sentence_is_accounted_for() -> None:
    assert {name for name, *_ in NEEDED} | OTHERS == {
        group.__name__ for group in hybrid.CONSTRAINTS
    }
