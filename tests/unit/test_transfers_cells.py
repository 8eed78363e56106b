"""Memory that moves, and what stands for tensors in it."""

from __future__ import annotations

import pytest
import torch

from chainstay import PlanMismatchError
from chainstay.runtime.transfer.cells import Cell, Parked, release, send
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from offload_support import FAST


@pytest.mark.parametrize("is_let_go", [False, True])
def test_a_change_after_sending_is_noticed(*, is_let_go: bool) -> None:
    engine = CopyingEngine(FAST)
    saved = torch.zeros(8)
    cell = Cell(3, engine, saved)
    parked = Parked(cell, lambda: None, saved)
    send([cell], engine)
    saved.add_(1)
    if is_let_go:
        release([cell], engine)
    with pytest.raises(PlanMismatchError, match="that stage 3 saved was changed in place"):
        parked.restored()
    engine.close()
