"""States of several tensors: what they share counts once, in memory and in gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chainstay import DP, least_budget
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.profiles import ChainProfile, Skip, Stage
from chainstay.runtime import trace_memory
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.boundary import Gradients, seeded, swallow
from chainstay.runtime.measures.probe import leaves_of
from chainstay.runtime.stage.lineage import Lineage, shared_skips
from chainstay.runtime.stage.loss_stage import loss_in
from chainstay.runtime.stage.states import (
    State,
    bytes_of,
    copied,
    detached,
    non_leaves,
    state_bytes,
)
from chainstay.schedule import Schedule
from strategies import chains

CPU = torch.device("cpu")


def test_copies_share_memory_where_the_originals_do() -> None:
    whole = torch.arange(12.0)
    state = (
        whole[2:8].view(2, 3).t(),
        whole,
        torch.ones(2, dtype=torch.int64),
        whole[:1].expand(4),
    )
    one, two, three, four = copied(state)
    assert all(map(torch.equal, (one, two, three, four), state))
    assert one.stride() == state[0].stride()
    two += 1
    assert torch.equal(one, state[0] + 1)
    assert torch.equal(four, state[3] + 1)
    assert trace_memory(lambda: copied(state), "cpu").peak_bytes == 12 * 4 + 2 * 8
    assert state_bytes(state) == 12 * 4 + 2 * 8


def test_copies_of_what_fills_its_memory_are_in_memory_that_later_ones_share() -> None:
    whole = torch.arange(12.0).view(3, 4)
    one, two = copied((whole, whole[1:, ::2]))
    one += 1
    assert torch.equal(two, whole[1:, ::2] + 1)
    for first in (whole[:1], whole[0, :1].expand(12)):
        one, two = copied((first, whole))
        one[0] += 1
        assert torch.equal(two[0, 0], whole[0, 0] + 1)
        assert torch.equal(two[1:], whole[1:])


@pytest.mark.parametrize("stride", [(7, 1), (1, 1), (3, 1)])
def test_copies_have_the_strides_of_dimensions_of_one(stride: tuple[int, int]) -> None:
    """By which kernels are chosen."""
    (copy,) = copied((torch.empty_strided((1, 3), stride).fill_(2.0),))
    assert (copy.stride(), copy.tolist()) == (stride, [[2.0] * 3])


def test_copies_want_gradients_and_read_as_the_originals() -> None:
    imaginary = torch.tensor([1 + 2j, 3j]).conj().imag
    state = (torch.ones(2, requires_grad=True), imaginary, torch.tensor([1 + 1j]).conj())
    for made in (copied(state), detached(state)):
        assert [tensor.requires_grad for tensor in made] == [True, False, False]
        assert all(tensor.is_leaf for tensor in made)
        assert all(map(torch.equal, made, state))
        assert [tensor.is_conj() for tensor in made] == [False, False, True]


def test_what_runs_again_gets_strides_as_the_first_run_did() -> None:
    """The batch of one, too: convolutions choose the layout of their result by its stride."""
    image = torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    (given,) = non_leaves((image,))
    assert given.stride() == image.stride()
    assert not given.is_leaf
    assert given.data_ptr() == image.data_ptr()


def run_alone(
    state: State, function: Callable[[State], State], gradients: Gradients | None = None
) -> list[tuple[torch.Tensor | None, ...]]:
    """What reaches the lower end of a stage."""
    received: list[tuple[torch.Tensor | None, ...]] = []
    output = function(swallow(state, received.append))
    torch.autograd.backward(seeded(output, gradients or Gradients.usual(output)))
    return received


def test_every_tensor_gets_its_gradient_at_once() -> None:
    state = (torch.ones(2, requires_grad=True), torch.ones(3), torch.ones(4, requires_grad=True))
    (received,) = run_alone(
        state, lambda tensors: (tensors[0] * 2, tensors[1], tensors[2], tensors[0] + 1)
    )
    first, second, third = received
    assert first is not None
    assert torch.equal(first, torch.full((2,), 3.0))
    assert second is None
    assert third is not None
    assert torch.equal(third, torch.ones(4))


def test_what_gets_no_gradient_gets_no_memory() -> None:
    state = (torch.ones(2, requires_grad=True), torch.ones(1000, requires_grad=True))
    (received,) = run_alone(state, lambda tensors: (tensors[0] * 2,))
    assert received[1] is None
    layout = Gradients.of(received)
    assert layout.sizes == (8, 0)
    assert len(layout.allocate()) == 1


def test_gradients_in_one_storage_are_made_in_one() -> None:
    whole = torch.ones(10)
    gradients = Gradients.of((whole[:4], None, whole[4:], torch.ones(3)))
    assert (gradients.sizes, gradients.allocated_bytes) == ((40, 0, 0, 12), 52)
    first, second, third = gradients.allocate()
    assert (first.shape, second.shape, third.shape) == ((4,), (6,), (3,))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.storage_offset() == 4
    assert trace_memory(gradients.allocate, "cpu").peak_bytes == 52


def test_lineage_tells_what_passes_through_from_what_is_new() -> None:
    held = torch.ones(5)
    lineage = Lineage.beside([held], CPU)
    one, two = torch.ones(2), torch.ones(3)
    lineage.add((one, two))
    lineage.add((one, two[:1], torch.ones(4), held), (one, two))
    first, second = lineage.states
    assert (first.bytes, second.bytes) == (20, 20 + 16)
    assert second.bytes_outside(first) == 16
    assert first.tensors[0] == second.tensors[0]
    assert len({*first.tensors, *second.tensors}) == 2 + 4 - 1


def test_skips_are_joined_and_counted_at_their_least() -> None:
    one, two, three = torch.ones(2), torch.ones(3), torch.ones(4)
    states = ((one,), (one, two, three), (two, three), (two, three, torch.ones(5)))
    lineage = Lineage.beside((), CPU)
    lineage.add(states[0])
    for before, state in pairwise(states):
        lineage.add(state, before)
    wide = torch.ones(9)
    gradients = [
        Gradients.of((torch.ones(2),)),
        Gradients.of((torch.ones(2), torch.ones(3), torch.ones(4))),
        Gradients.of((wide[:3], torch.ones(4))),
        Gradients.of((None, torch.ones(4), torch.ones(5))),
    ]
    assert shared_skips(lineage.states, gradients) == (
        Skip(first=0, last=1, bytes=8, gradient_bytes=8),
        Skip(first=1, last=3, bytes=12 + 16, gradient_bytes=16),
    )


class Bridge(nn.Module):
    """Its first activation is wanted again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.layers[0](x).tanh()
        for layer in self.layers[1:]:
            x = layer(x).tanh()
        total: torch.Tensor = x * first
        return total


def test_a_bridge_is_one_skip_and_counts_where_it_is_made() -> None:
    batch = torch.ones(32, 16)
    settings = PlannerSettings(loss=torch.Tensor.mean, repeats=1, progress=False)
    profile = measure_model(Bridge(), (batch,), {}, settings).costs.profile
    row = batch.nbytes
    (skip,) = profile.skips
    assert (skip.bytes, skip.gradient_bytes) == (row, row)
    between = profile.stages[skip.first : skip.last - 1]
    assert between
    assert all(stage.output_bytes in (2 * row, row) for stage in between)
    assert all(stage.saved_bytes == row for stage in between)
    assert profile.input_bytes == 0, "an input without gradient stands through the whole step"
    assert all(stage.forward_overhead_bytes >= row for stage in profile.stages)


def test_what_is_made_again_while_it_is_held_is_counted_each_time() -> None:
    stage = Stage(output_bytes=9, saved_bytes=9)
    skips = (Skip(first=1, last=2, bytes=5), Skip(first=1, last=3, bytes=3))
    chain = ChainProfile(input_bytes=9, input_gradient_bytes=0, stages=(stage,) * 4, skips=skips)
    remade = {
        text: remade_bytes(chain, Schedule.parse(text))
        for text in (
            "Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0",
            "Fc0 Fn1 Fn2 Fa3 B3 Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0",
            "Fc0 Fn1 Fc0 Da1 Fc2 Fa3 B3 Fa2 B2 Fc0 Fa1 B1 Fa0 B0",
            "Fc0 Fn1 Fn2 Fc0 Fa3 B3 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0",
            "Fa0 Fa1 Fa2 Fa3 B3 B2 Fa0 B1 B0",
        )
    }
    assert list(remade.values()) == [0, 0, 8, 3, 8]


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(chains(max_stages=7, families=("skips",)), st.integers(0, 60))
def test_saved_data_without_their_input_hold_nothing_that_is_made_again(
    profile: ChainProfile, extra: int
) -> None:
    claim = DP(discards="free")(profile, least_budget(profile) + extra)
    assert remade_bytes(profile, claim.schedule) == 0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (torch.tensor(2.0), 2.0),
        (torch.tensor([2.0]), 2.0),
        ({"loss": torch.tensor(3.0)}, 3.0),
        (torch.tensor(2), None),
        (torch.ones(2), None),
        ({"loss": torch.ones(2)}, None),
        ({"scores": torch.tensor(2.0)}, None),
        ((torch.tensor(2.0), torch.ones(3)), None),
        (None, None),
    ],
)
def test_the_loss_in_an_output_is_a_real_number(output: object, expected: float | None) -> None:
    found = loss_in(output)
    assert (None if found is None else found.item()) == expected


def test_a_parameter_that_is_handed_out_gets_a_gradient() -> None:
    weight, other, fixed = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    fixed.requires_grad = False
    assert set(map(id, leaves_of((weight, other * 2, fixed)))) == {id(weight), id(other)}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(256).reshape(1, 256)[:, -1],  # one number, stride 256
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 4)[:, -1],
        torch.tensor(2.5),
        torch.complex(torch.ones(3), torch.ones(3)).conj(),
        torch.ones(3, dtype=torch.bool)[1:],
    ],
)
def test_bytes_of_a_tensor(tensor: torch.Tensor) -> None:
    found = bytes_of(tensor)
    assert found.numpy().tobytes() == tensor.resolve_conj().contiguous().numpy().tobytes()
