"""Which stages are offered to be kept as one."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from chainstay.runtime.stage.spans import (
    Span,
    spans_between,
    spans_over,
    spans_worth_keeping,
)
from runtime_support import stages_of


@pytest.mark.parametrize(
    ("joined", "shortest", "spans"),
    [
        ("---", 2, []),
        ("-#", 2, [(0, 1)]),
        ("-##", 2, [(0, 1), (0, 2)]),
        ("-##--#", 2, [(0, 1), (0, 2), (4, 5)]),
        ("-##--#", 4, [(0, 2), (4, 5)]),
        ("-#########", 4, [(0, 3), (0, 7), (4, 7), (8, 9)]),
    ],
)
def test_spans_are_over_joined_cuts(joined: str, shortest: int, spans: list[Span]) -> None:
    assert spans_over([cut == "#" for cut in joined], shortest, 8) == spans


@pytest.mark.parametrize(
    ("sizes", "spans"),
    [
        ([0], []),
        ([0, 3], []),
        ([0, 3, 3, 3], []),
        ([0, 3, 1, 3], [(0, 1), (2, 3), (0, 3)]),
        ([0, 3, 1, 1, 3], [(0, 2), (3, 4), (0, 4)]),
        ([0, 3, 2, 1], [(0, 2), (0, 3)]),
        ([0, 1, 5, 5, 1, 5], [(1, 3), (4, 5), (0, 3), (1, 5)]),
        ([0, *[5] * 16, 1, 5], [(17, 18)]),
    ],
    ids=str,
)
def test_spans_are_between_small_states(sizes: list[int], spans: list[Span]) -> None:
    """The last of equal states counts, and no span is of more than 16 stages."""
    assert spans_between(sizes) == spans


@pytest.mark.parametrize(
    ("blocks", "left_out"),
    [
        ([], []),
        ([(0, 1)], [(0, 1)]),  # is one of them, and all of it is in another
        ([(2, 3)], [(2, 3)]),  # all of it is in two others
        ([(3, 4)], [(2, 3), (4, 6), (0, 3)]),  # lies across
        ([(2, 6)], [(2, 3), (4, 6), (0, 3), (2, 6)]),  # what is inside of it, or lies across
    ],
)
def test_spans_between_small_states_spare_blocks(blocks: list[Span], left_out: list[Span]) -> None:
    widths = [8, 8, 2, 8, 2, 8, 8, 8]
    layers = (nn.Linear(*pair) for pair in pairwise(widths))
    sizes = [0, *(4 * 4 * width for width in widths[1:-1])]
    found = spans_worth_keeping(stages_of(*layers), (torch.rand(4, 8),), (), blocks, least=10**6)
    assert spans_between(sizes) == [(0, 1), (2, 3), (4, 6), (0, 3), (2, 6)]
    assert list(found) == [span for span in spans_between(sizes) if span not in left_out]
