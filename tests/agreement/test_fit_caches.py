"""Language models whose config keeps keys and values: they train without, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from chainstay import fit, unfit
from zoo import build


@pytest.mark.long
@pytest.mark.parametrize("family", ["GPT-2", "Llama", "T5"])
def test_training_goes_without_caches(family: str) -> None:
    sample = build(family)
    model: Any = sample.model
    config: Any = model.decoder.config if family == "T5" else model.config
    config.use_cache = True

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        output = sample()
        output.loss.backward()
        found = [output.loss.detach(), output.logits.detach(), torch.get_rng_state()]
        return found + [parameter.grad.clone() for parameter in model.parameters()]

    assert sample().past_key_values is not None
    initial = copy.deepcopy(model.state_dict())
    expected = trained()
    model.load_state_dict(initial)
    fit(model, sample.args, sample.kwargs, budget=0.8, repeats=1)
    assert all(map(torch.equal, trained(), expected))
    assert sample().past_key_values is None, "as under gradient checkpointing"
    assert config.use_cache
    with torch.no_grad():
        assert sample().past_key_values is not None, "without gradients the model is as ever"
    unfit(model)
    assert sample().past_key_values is not None
