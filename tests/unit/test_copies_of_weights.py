"""Autocast's copies of weights, served in place of its cache while a stage is run alone."""

from __future__ import annotations

from contextlib import suppress

import torch

from chainstay.runtime.devices.autocast import CopiesOfWeights


def test_a_copy_is_made_once_and_has_a_node_of_its_own_in_each_run() -> None:
    weight, batch = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)
    copies = CopiesOfWeights(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        before = batch @ weight
        with copies:
            one, other = batch @ weight, batch @ weight
        with copies:
            later = batch @ weight
    outputs = [before, one, other, later]
    assert all(torch.equal(output, before) for output in outputs)
    nodes = [output.grad_fn.next_functions[1][0] for output in outputs]  # type: ignore[union-attr]
    assert len(set(nodes)) == len(nodes)
    assert copies.bytes == weight.numel() * 2


def test_other_casts_are_made_as_they_are_asked_for() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    copies = CopiesOfWeights(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), copies:
        product = weight @ weight
        wide, elsewhere = weight.to(torch.float64), weight.to("meta", torch.bfloat16)
        activation = product.float().to(torch.bfloat16)
    assert (wide.dtype, elsewhere.device.type) == (torch.float64, "meta")
    assert torch.equal(wide, weight.double())
    assert torch.equal(activation, product)
    assert copies.bytes == weight.numel() * 2


def test_the_cache_is_on_again_afterwards() -> None:
    copies = CopiesOfWeights(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        with suppress(KeyError), copies:
            assert not torch.is_autocast_cache_enabled()
            raise KeyError
        assert torch.is_autocast_cache_enabled()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        with copies:
            pass
        assert not torch.is_autocast_cache_enabled()
