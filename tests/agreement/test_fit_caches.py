"""Language models whose config keeps keys and values: they train without, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from chainstay import fit, unfit
from zoo import build


@pytest.mark.parametrize("family", ["GPT-2", "Llama", "T5"])
def test_training_goes_without_caches(family: str) -> None:
    sample = build(family)
    model: Any = sample.model
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is False and family != "T5":
            config.use_cache = True
    model.config.use_cache = True

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        output = sample()
        output.loss.backward()
        found = [output.loss.detach(), output.logits.detach(), torch.get_rng_state()]
        return found + [each.grad.clone() for each in model.parameters()]

    assert sample().past_key_values is not None
    initial = copy.deepcopy(model.state_dict())
    expected = trained()
    model.load_state_dict(initial)
    fit(model, sample.args, sample.kwargs, budget=0.8, repeats=1)
    assert all(map(torch.equal, trained(), expected))
    assert sample().past_key_values is None, "as under gradient checkpointing"
    assert model.config.use_cache
    with torch.no_grad():
        assert sample().past_key_values is not None, "without gradients the model is as ever"
    unfit(model)
    assert sample().past_key_values is not None
