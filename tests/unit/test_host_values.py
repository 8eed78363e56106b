"""Values on the host of an accelerator, for which "meta" stands in here."""

from __future__ import annotations

import pytest
import torch

from chainstay.runtime.capture.graph import NoStagesError
from chainstay.runtime.capture.operators import require_one_thread


def values(kinds: str) -> list[torch.Tensor | None]:
    """Return a value with gradients for each letter, without for a small one."""
    devices = {"h": "cpu", "d": "meta"}
    return [
        torch.ones(1, device=devices[kind.lower()], requires_grad=kind.isupper())
        if kind.isalpha()
        else None
        for kind in kinds
    ]


@pytest.mark.parametrize("kinds", ["", "HHH", "DDD", "HHDD", "DDHH", "HDDH", "DhDhD", "hDh", "D-D"])
def test_one_thread_after_the_other_is_taken(kinds: str) -> None:
    require_one_thread(values(kinds))


@pytest.mark.parametrize("kinds", ["DHD", "HDHD", "DHDH", "DhHD"])
def test_two_threads_at_once_are_refused(kinds: str) -> None:
    with pytest.raises(NoStagesError, match="two threads run the backward at once"):
        require_one_thread(values(kinds))
