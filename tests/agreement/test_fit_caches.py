"""Language models whose config keeps keys and values: they train without, if bits allow that."""

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


@pytest.mark.long
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_training_goes_with_caches_where_bits_depend_on_them(by: Any) -> None:
    """Attention with dropout has other last bits for keys that a cache has copied."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=60, n_positions=16)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).train()
    assert config.use_cache
    assert config.attn_pdrop > 0
    tokens = torch.randint(60, (2, 12))

    def trained(model: Any, *, use_cache: bool | None = None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        output = model(tokens, labels=tokens, use_cache=use_cache)
        output.loss.backward()
        found = [output.loss.detach(), output.logits.detach(), torch.get_rng_state()]
        return found + [parameter.grad.clone() for parameter in model.parameters()]

    expected = trained(model)
    if all(map(torch.equal, trained(model, use_cache=False), expected)):
        pytest.skip("these kernels give the same bits either way")
    planned = fit(copy.deepcopy(model), budget=0.7, by=by, repeats=1)
    for _ in range(2):
        assert all(map(torch.equal, trained(planned), expected))
    assert planned(tokens).past_key_values is not None


@pytest.mark.long
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("order", [(12, 7), (7, 12)])
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_positions_of_packed_sequences_count_as_in_the_model(
    by: Any, order: tuple[int, int], *, use_cache: bool
) -> None:
    """Without a cache, models look at positions: where they start anew, another sequence does."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=use_cache,
    )
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(config).train()
    planned = fit(copy.deepcopy(plain), budget=0.7, by=by, repeats=1)
    tokens = torch.randint(60, (2, 12))

    def trained(model: Any, length: int) -> list[torch.Tensor]:
        model.zero_grad()
        positions = torch.arange(12).remainder(length).expand(2, 12)
        loss = model(tokens, position_ids=positions, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    for length in (*order, *order):
        assert all(map(torch.equal, trained(planned, length), trained(plain, length)))
