"""Memory that moves, and what stands for tensors in it."""

from __future__ import annotations

import pytest
import torch

from chainstay import PlanMismatchError
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from chainstay.runtime.transfer.movable_storage import (
    MovableStorage,
    OffloadedTensor,
    release,
    send,
)
from offload_support import FAST


@pytest.mark.parametrize("is_let_go", [False, True])
def test_a_change_after_sending_is_noticed(*, is_let_go: bool) -> None:
    engine = CopyingEngine(FAST)
    saved = torch.zeros(8)
    storage = MovableStorage(3, engine, saved)
    stand_in = OffloadedTensor(storage, lambda: None, saved)
    send([storage], engine)
    saved.add_(1)
    if is_let_go:
        release([storage], engine)
    with pytest.raises(PlanMismatchError, match="that stage 3 saved was changed in place"):
        stand_in.restored()
    engine.close()
