"""What a trial of a model runs on, and what tracing leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.runtime.capture.trials.isolation import StandIns, shadow_of


def test_a_shadow_shares_no_dictionary_with_its_model() -> None:
    model: Any = nn.Linear(2, 2)
    model.seen = model.also_seen = {}
    model.counts = {"calls": [0]}
    shadow: Any = shadow_of(model, StandIns())
    shadow.seen["new"] = 1
    shadow.counts["calls"].append(1)
    shadow.register_forward_hook(lambda *_: None)
    assert shadow.also_seen is shadow.seen
    assert (model.seen, model.counts) == ({}, {"calls": [0]})
    assert not model._forward_hooks


def test_no_processor_cache_is_flushed_to_time_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", fail, raising=False)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    model = chainstay.fit(nn.Sequential(*layers), (torch.ones(4, 8),), budget="100%", repeats=1)
    assert model(torch.ones(4, 8)).requires_grad
