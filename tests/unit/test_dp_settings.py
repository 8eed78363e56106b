"""The settings of the method `DP` that are refused."""

from __future__ import annotations

import re

import pytest

from chainstay.dp import DP
from chainstay.errors import UnknownMethodError


@pytest.mark.parametrize("slots", [0, -1, 1.5, True, "5", [5]])
def test_slots_that_are_no_positive_integer_are_refused(slots: object) -> None:
    text = re.escape(f"slots is {slots!r}, must be a positive integer or None")
    with pytest.raises(UnknownMethodError, match=text):
        DP(slots=slots)  # type: ignore[arg-type]


def test_slots_may_be_left_out_or_counted() -> None:
    assert str(DP(slots=None)) == "dp"
    assert str(DP(slots=5)) == "dp, 5 slots"
