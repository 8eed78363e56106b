"""What a trial of a model runs on, and what tracing leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.runtime.capture.trials.isolation import StandIns, copies_kept, shadow_of


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


def test_noise_that_is_saved_before_it_is_drawn_is_what_was_drawn() -> None:
    x = torch.randn(64, 64).requires_grad_()
    with copies_kept(StandIns()):
        output = nn.functional.rrelu(x, training=True)
    output.sum().backward()
    drawn = (output / x).detach()
    torch.testing.assert_close(x.grad, drawn)


def test_what_is_saved_and_then_changed_is_what_it_was() -> None:
    buffer, x = torch.full((4,), 2.0), torch.ones(2, requires_grad=True)
    stand_ins = StandIns(written={id(buffer)})
    changing = stand_ins.of(buffer)
    with copies_kept(stand_ins):
        output = x * changing[2:]
        changing.add_(1)
    output.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
