"""Runs of stages with options: what is refused, what is noticed, what has no options."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from captured_graphs import chain_of
from chainstay.errors import PlanMismatchError
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.execute.environment import Settings
from chainstay.runtime.measures import option_costs
from chainstay.runtime.measures.costs import observe_chain, timed, trace_chain
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.measures.option_costs import observe_options
from chainstay.runtime.options import option
from chainstay.runtime.options.front import pareto_front
from chainstay.runtime.options.generator import groups_of
from chainstay.runtime.options.graph import trace_stage
from chainstay.runtime.options.option import (
    Option,
    OptionPart,
    admitted,
    option_of,
    run_option,
    selections_of,
    stage_options,
)
from chainstay.runtime.options.replay import OptionRun
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.options.special_operators import is_graphless
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.staged_graph import subject_of
from chainstay.runtime.stage.states import State
from runtime_support import stages_of
from stage_options_support import traced

CPU = torch.device("cpu")


class Rectified(nn.Module):
    """Two linear layers; what is between them can be made again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(functional.gelu(self.first(x) * 2.0).tanh())
        return y


def leanest(
    model: nn.Module, *args: torch.Tensor
) -> tuple[Option, GraphChain, tuple[State, Sequence[Any]]]:
    """The option of the model's only stage that keeps least, the chain and what a call gives it."""
    chain, inputs, ((graph, _),) = traced(model, *args)
    assert graph is not None
    return option_of(graph, selections_of(graph)[-1]), chain, chain.begin(inputs)


def ran(option: Option, state: State, shared: Sequence[Any]) -> tuple[OptionRun, State]:
    names = ("the batch",) * len(shared)
    run = OptionRun(option.code, shared, names, Settings.now(CPU))
    return run, run_option(run, state, 0)


def observed_options(model: nn.Module, x: torch.Tensor, *, kept: int | None = None) -> list[Option]:
    """The options of the model as one stage, as if keeping it took so many ns."""
    chain, inputs = chain_of(model, x, granularity=1)
    with measuring(CPU):
        subject = subject_of(chain, inputs, None, CPU, merges=False)
        observed = timed(observe_chain(subject), subject, 1)
        assert all(seen.time.kept > 0 for seen in observed)
        memories = trace_chain(observed, subject)
        if kept is not None:
            observed = [replace(seen, time=replace(seen.time, kept=kept)) for seen in observed]
        return [option.option for option in observe_options(observed, memories, [subject])]


class Loop(nn.Module):
    """A recurrence, with as many operators as there are steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(4, 4), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x
        for _ in range(self.steps):
            state = (self.linear(state) + x).sigmoid() * state.tanh().exp()
        return state


def test_of_many_operators_fewer_options_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three, and steady ones that are others."""
    model, x = Loop(6), torch.ones(2, 4)
    usual = len(observed_options(model, x))
    monkeypatch.setattr(option_costs, "_MOST_OPERATORS", 40)
    assert usual > 6 >= len(observed_options(model, x)) > 1


def test_of_spans_that_save_a_large_part_one_option_is_steady(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the one that saves least, so that no budget is lost."""
    model = nn.Sequential(*(nn.Sequential(Rectified(), nn.ReLU()) for _ in range(3)))
    chain, inputs = chain_of(model, torch.ones(2, 4))
    with measuring(CPU):
        subject = subject_of(chain, inputs, None, CPU, merges=False)
        observed = timed(observe_chain(subject), subject, 1)
        memories = trace_chain(observed, subject)

        def steady_spans() -> dict[tuple[int, int], list[int]]:
            found: dict[tuple[int, int], list[int]] = {}
            for seen in observe_options(observed, memories, [subject]):
                if seen.option.is_steady and seen.option.stages > 1:
                    sizes = found.setdefault((seen.first, seen.option.stages), [])
                    sizes.append(seen.memory.kept_bytes)
            return found

        few = steady_spans()
        monkeypatch.setattr(option_costs, "_LARGE", 1)  # no span saves more than everything
        many = steady_spans()
    assert few == {span: [min(sizes)] for span, sizes in many.items()}
    assert any(len(sizes) > 1 for sizes in many.values())


def test_operators_are_made_again_in_groups_that_read_each_other() -> None:
    _, _, ((graph, _),) = traced(Loop(5), torch.ones(2, 4, requires_grad=True))
    assert graph is not None
    for selection in selections_of(graph):
        groups = groups_of(graph, selection)
        assert sorted(operator for group in groups for operator in group) == sorted(
            selection.replayed
        )
        number = {operator: index for index, group in enumerate(groups) for operator in group}
        joined = {
            frozenset((number[operator], number[source]))
            for operator in selection.replayed
            for source in graph.operators[operator].inputs
            if source in selection.replayed
        }
        assert all(len(pair) == 1 for pair in joined)


def test_a_stage_without_a_graph_has_no_options() -> None:
    (stage,) = stages_of(torch.tanh)
    state = (torch.ones(2, requires_grad=True),)
    assert trace_stage(stage, (state, ()), CPU) is None


def test_operators_together_take_what_the_forward_takes_in_a_step() -> None:
    _, _, ((graph, given),) = traced(Rectified(), torch.ones(2, 4, requires_grad=True))
    assert graph is not None
    twice, second = graph.taking(2 * graph.time), graph.taking(10**9)
    assert [operator.time for operator in twice.operators] == [
        2 * operator.time for operator in graph.operators
    ]
    assert sum(operator.time for operator in second.operators) == pytest.approx(10**9)
    leanest_option = stage_options(second, given)[-1]
    replayed = leanest_option.selection.replayed
    assert (
        leanest_option.replay_time
        > sum(second.operators[operator].time for operator in replayed)
        > 0
    )


def test_options_are_priced_by_what_their_stages_take_in_a_step() -> None:
    hour = 3600 * 10**9
    options = observed_options(Rectified(), torch.ones(64, 4, requires_grad=True), kept=hour)
    assert options
    assert all(0.01 * hour < option.replay_time < 2 * hour for option in options)


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))
        return y


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.exp())
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (saved,) = ctx.saved_tensors
        gradient: torch.Tensor = gradients[0] * 2 + saved
        return gradient


class WithOwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Doubled.apply(self.linear(x).sigmoid())  # type: ignore[no-untyped-call]  # torch does not annotate it
        return y.sin()


class WithRegion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x).sin()
        with torch.no_grad():
            scale = y.abs().max()
        z: torch.Tensor = (y / scale).exp()
        return z


def test_operators_of_higher_order_have_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not refused by name; torch may have more of them."""
    monkeypatch.setattr("chainstay.runtime.capture.graph._REFUSED", {})
    _, _, graphs = traced(Conditional(), torch.ones(3, 4))
    assert [graph for graph, _ in graphs] == [None]


@pytest.mark.parametrize("model", [WithOwnFunction, WithRegion, Rectified])
def test_the_leanest_option_is_the_stage(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    made = model()
    option, chain, (state, shared) = leanest(made, torch.randn(3, 4))
    assert option.code.replays
    parameters = list(made.parameters())
    expected = torch.autograd.grad(chain.stages[0](state, shared)[0].sum(), parameters)
    _, (output,) = ran(option, state, shared)
    found = torch.autograd.grad(output.sum(), parameters)
    assert all(map(torch.equal, expected, found))


_calls = itertools.count()


def drifting(x: torch.Tensor) -> torch.Tensor:
    return x * next(_calls)


torch._dynamo.allow_in_graph(drifting)


class Drifting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = drifting(self.linear(x)).sin().cos()
        return y


def test_what_replays_make_otherwise_is_no_option() -> None:
    _, _, ((graph, given),) = traced(Drifting(), torch.randn(3, 4))
    assert graph is not None
    options = [option_of(graph, selection) for selection in selections_of(graph)]
    drops = ["drifting" in option.name for option in options]
    assert True in drops
    assert [admitted(option, given) for option in options] == [
        not is_dropped for is_dropped in drops
    ]
    again = trace_stage(ChainStage("drifting", tuple(graph.stage.parts)), given, CPU)
    assert again is not None
    assert all("drifting" not in option.name for option in stage_options(again, given))


def test_a_changed_input_or_parameter_is_noticed() -> None:
    option, _, (state, shared) = leanest(Rectified(), torch.randn(3, 4))
    _, (output,) = ran(option, state, shared)
    with torch.no_grad():
        next(value for value in shared if isinstance(value, nn.Parameter)).mul_(2.0)
    with pytest.raises(PlanMismatchError, match="the batch was changed in place"):
        output.sum().backward()


class Curves(nn.Module):
    """What is dropped of it is saved by some of its operators only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).sigmoid()
        z: torch.Tensor = self.linear(y.sin().exp()).tanh() * y.mean()
        return z


def hooked(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], None]) -> OptionRun:
    """Run the option of `Curves` that drops least, `outcome` in each call of its hook."""
    packed = OptionRun.packed

    def observed(run: OptionRun, tensor: torch.Tensor) -> object:
        outcome()
        return packed(run, tensor)

    chain, inputs, ((graph, _),) = traced(Curves(), torch.ones(8, 64, requires_grad=True))
    assert graph is not None
    option = next(option_of(graph, choice) for choice in selections_of(graph) if choice.drops)
    monkeypatch.setattr(OptionRun, "packed", observed)
    return ran(option, *chain.begin(inputs))[0]


def test_hooks_are_around_those_operators_alone_that_save_what_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[None] = []
    run = hooked(monkeypatch, lambda: calls.append(None))
    savers = {
        pack.saver
        for pack, place in zip(run.code.graph.packs, run.code.packs, strict=True)
        if place
    }
    expected = [pack for pack in run.code.graph.packs if pack.saver in savers]
    assert 0 < len(calls) == len(expected) < len(run.code.packs)


def test_an_operator_that_fails_leaves_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []

    def fail() -> None:
        calls.append(None)
        raise MemoryError

    with pytest.raises(MemoryError):
        hooked(monkeypatch, fail)
    torch.ones(2, requires_grad=True).exp().sum().backward()
    assert len(calls) == 1


def test_a_function_of_the_users_is_replayed_with_gradients_on() -> None:
    """It may be named as one of torch's, and multiply matrices."""

    def mul(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    assert not is_graphless(graph.call_function(mul, (x,)))
    assert all(
        is_graphless(node)
        for node in (
            graph.call_function(torch.mul, (x, x)),
            graph.call_function(operator.mul, (x, x)),
            graph.call_function(functional.gelu, (x,)),
            graph.call_function(functional.layer_norm, (x, (4,))),
            graph.call_method("mul", (x, x)),
        )
    )


def test_products_are_replayed_with_gradients_on() -> None:
    """Without, they may choose other kernels."""
    _, _, ((graph, _),) = traced(Curves(), torch.ones(8, 64, requires_grad=True))
    assert graph is not None
    names = {step.name: is_graphless(step.node) for step in graph.steps}
    assert names == {
        "linear": False,
        "sigmoid": True,
        "sin": True,
        "exp": True,
        "tanh": True,
        "mean": True,
        "mul": True,
    }
    for selection in selections_of(graph):
        for replay in option_of(graph, selection).code.replays:
            assert replay.needs_graph == ("linear" in replay.function.__code__.co_names)


def test_another_shape_is_noticed() -> None:
    option, _, (state, shared) = leanest(Rectified(), torch.randn(3, 4))
    other = [
        torch.randn(5, 4) if getattr(value, "shape", None) == (3, 4) else value for value in shared
    ]
    with pytest.raises(PlanMismatchError, match=r"saves a tensor \(5, "):
        ran(option, state, other)


def test_a_part_says_what_the_stage_says() -> None:
    option, _, _ = leanest(Rectified(), torch.randn(3, 4))
    part, stage = OptionPart(option), option.code.graph.stage
    assert part.effects == stage.effects == Effects(reads=stage.effects.reads)
    assert part.text.startswith("drops ")


def test_under_autocast_an_activation_is_made_again_without_a_graph() -> None:
    seen = []

    def noted(*args: Any) -> tuple[torch.Tensor, ...]:
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        return replay.function(*args)

    layers = (nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        chain, inputs, ((graph, _),) = traced(nn.Sequential(*layers), torch.randn(4, 8))
        assert graph is not None
        again = frozenset(n for n, step in enumerate(graph.steps) if step.name == "silu")
        option = option_of(graph, Selection(kept_bytes=0, replay_time=0, replayed=again))
        (replay,) = option.code.replays
        code = replace(option.code, replays=(replace(replay, function=noted),))
        _, (output,) = ran(replace(option, code=code), *chain.begin(inputs))
    output.sum().backward()
    assert seen == [(True, False)]


def test_a_replay_that_autograd_records_is_known_to_take_longer() -> None:
    layers = (nn.Linear(8, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1))
    _, _, ((graph, _), *_) = traced(nn.Sequential(*layers), torch.randn(4, 8))
    assert graph is not None
    recorded = []
    times = [1 if step.name == "silu" else 9 for step in graph.steps]
    operators = [replace(op, time=t) for op, t in zip(graph.operators, times, strict=True)]
    for choice in pareto_front(operators):
        if not choice.drops:
            continue
        known = option._with_hooks(graph, choice)  # what the runtime takes itself
        replays = option_of(graph, choice).code.replays
        recorded.append(sum(replay.needs_graph for replay in replays))
        own = known.replay_time - choice.replay_time
        assert own > 50_000 * (len(replays) + recorded[-1])
    assert {0, 1} <= {*recorded}
