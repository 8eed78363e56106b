"""Plans that keep stages in part train as plain training does, within their budgets."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import chainstay
from chainstay import InfeasibleBudgetError, Schedule
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.options.replay import OptionRun
from chainstay.runtime.stage.staged_graph import PlannedGraph
from option_families import FAMILIES, TOKENS, Language
from torch_release import IS_TORCH_2_6
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from twins import peak_of
from zoo import loss_of

pytestmark = pytest.mark.usefixtures("equal_times")

each_way = pytest.mark.parametrize("by", ["graph", "blocks"])


@each_way
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [85, 65])
def test_families(family: str, share: int, by: Any) -> None:
    if (family, by) == ("CNN", "blocks"):
        pytest.skip("blocks of one operator each have nothing to drop")
    make, x = FAMILIES[family]
    torch.manual_seed(0)
    plain = make().train()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="100%", loss=loss_of, by=by, repeats=1)
    budget = shown(planned).solution.peak_bytes * share // 100
    chainstay.fit(chainstay.unfit(planned), (x,), budget=budget, loss=loss_of, by=by, repeats=1)
    # Of small convolutions, timing decides whether dropping a part beats dropping a whole stage.
    assert keeps_in_part(planned) or family in {"CNN", "ResNet"}
    sample = Sample((x,))
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    promised = shown(planned).solution.peak_bytes
    assert peak_of(planned, x) + x.nbytes <= promised <= budget


@pytest.mark.long
@each_way
def test_tensors_stand_for_parameters(by: Any) -> None:
    """Plans hold no parameters; these have to be held, and the next call has parameters again."""
    make, x = FAMILIES["GPT"]
    models = in_part(lambda: make().train(), x, by)
    for _ in range(2):
        found = []
        for model in models:
            torch.manual_seed(7)
            weights = {
                name: weight.detach().clone().requires_grad_()
                for name, weight in model.named_parameters()
            }
            loss = loss_of(torch.func.functional_call(model, weights, (x,)))
            gradients = torch.autograd.grad(loss, list(weights.values()))
            found.append(dict(zip(weights, gradients, strict=True)))
        assert differences(*found) == []
        assert differences(*[trained(model, Sample((x,))) for model in models]) == []


@pytest.mark.filterwarnings("ignore:TF32:UserWarning")
def test_parts_are_made_again_by_the_kernels_of_the_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever option each stage is kept under, where other kernels are chosen meanwhile."""
    monkeypatch.undo()  # with equal times, making GELU alone again would be no option

    def make() -> nn.Module:
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16)) for _ in range(4))
        )

    def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
        model.zero_grad()
        with torch.backends.mkldnn.flags(enabled=False):
            loss = loss_of(model(x))
        loss.backward()
        return {
            name: weight.grad
            for name, weight in model.named_parameters()
            if weight.grad is not None
        }

    x = torch.randn(64, 16)
    with torch.backends.mkldnn.flags(enabled=False):
        plain, planned = in_part(make, x)
    (made,) = shown(planned).planner.known.values()
    assert isinstance(made, PlannedGraph)
    staged, expected = made.staged, gradients(plain)
    assert any(option.name == "drops gelu" for option in staged.chain.options.values())
    for (first, number), option in staged.chain.options.items():
        kept = [n for n in range(len(staged.chain.stages)) if not first < n < first + option.stages]
        ops = [f"Fa{stage}.{number}" if stage == first else f"Fa{stage}" for stage in kept]
        loss = len(staged.chain.stages)
        backwards = [f"B{stage}" for stage in (loss, *reversed(kept))]
        schedule = Schedule.parse(" ".join([*ops, f"Fa{loss}", *backwards]))
        other = Executor(staged.chain, schedule)
        vars(made.executor).update(vars(other))  # TorchDynamo's code calls this one
        assert differences(gradients(planned), expected) == [], option.name


class Attending(nn.Module):
    """A block with torch's own attention, which gives its weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.padding: torch.Tensor
        self.register_buffer("padding", torch.arange(48).expand(4, 48) >= 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, _ = self.attention(x, x, x, key_padding_mask=self.padding)
        return x + torch.tanh(made)


@pytest.mark.long
def test_torch_s_attention_is_kept_operator_by_operator() -> None:
    x = torch.randn(4, 48, 32)
    plain, planned = in_part(lambda: nn.Sequential(*[Attending() for _ in range(3)]).train(), x)
    assert isinstance(shown(planned).plans[-1], PlannedGraph)
    dropped = " ".join(part.dropped for part in shown(planned).kept_in_part)
    assert "softmax" in dropped
    assert "multi_head_attention_forward" not in dropped
    assert differences(trained(planned, Sample((x,))), trained(plain, Sample((x,)))) == []


@pytest.mark.long
@pytest.mark.parametrize("family", ["GPT", "ResNet", "tied"])
def test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again(family: str) -> None:
    """By schedules of its own: dropout and statistics of several stages come from one first run."""
    make, x = FAMILIES[family]
    plain, planned = in_part(lambda: make().train(), x)
    (made,) = shown(planned).planner.known.values()
    assert isinstance(made, PlannedGraph)
    staged, executor = made.staged, made.executor
    spans = {
        key[0]: (key, option.stages)
        for key, option in staged.chain.options.items()
        if option.stages > 1
    }
    assert len(spans) > 1
    state = copy.deepcopy(plain.state_dict())
    expected = gradients_of(plain, x, 0) | dict(plain.named_buffers())
    for (first, number), length in spans.values():
        schedule = _dropped_first(len(staged.chain.stages), range(first, first + length), number)
        other = Executor(staged.chain, schedule)
        vars(executor).update(vars(other))  # TorchDynamo's code calls this one
        planned.load_state_dict(state)
        found = gradients_of(planned, x, 0) | dict(planned.named_buffers())
        assert differences(found, expected) == [], str(schedule)


def _dropped_first(loss: int, span: range, option: int) -> Schedule:
    forwards = [f"Fa{stage}" for stage in range(loss + 1)]
    forwards[span.start : span.stop] = [f"Fn{stage}" for stage in span]
    forwards[span.start] = f"Fc{span.start}"
    backwards = [f"B{stage}" for stage in range(loss + 1)]
    backwards[span.start : span.stop] = [f"B{span.start}", f"Fa{span.start}.{option}"]
    return Schedule.parse(" ".join([*forwards, *reversed(backwards)]))


class Numbers(nn.Module):
    """Reads numbers that may change: they decide what autograd saves, and where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.rate, self.scale, self.start = 0.1, 1.0, 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.wide(self.norm(x))) * self.scale
        part = wide[:, self.start : self.start + 64]
        total: torch.Tensor = x + part * part.sin()
        return total + functional.dropout(self.narrow(wide), self.rate, training=True)


def numbers() -> nn.Sequential:
    """Four of them, with an input whose parts are seldom equal."""
    return nn.Sequential(*(Numbers() for _ in range(4)))


def in_part(make: Callable[[], nn.Module], x: torch.Tensor, by: Any = "graph") -> list[nn.Module]:
    """A plain model, and an equal one that keeps stages in part."""
    torch.manual_seed(0)
    plain = make()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="60%", loss=loss_of, by=by, repeats=1)
    assert keeps_in_part(planned)
    return [plain, planned]


def gradients_of(model: nn.Module, x: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    loss = loss_of(model(x))
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach(), "random": torch.get_rng_state()}


@each_way
@pytest.mark.parametrize(
    ("name", "values", "plans"),
    [
        ("scale", (1.0, 0.5, 0.25, 3.0), 1),  # saves the same whatever it is
        ("rate", (0.1, 0.2, 0.3, 0.05), 1),
        ("rate", (0.1, 0.0, 0.2, 0.0), None),  # with 0, dropout saves nothing
        ("rate", (0.1, 0.2, 1.0, 0.0), None),
        ("start", (16, 0, 64, 32), None),  # a saved view lies elsewhere
    ],
)
def test_numbers_that_change(
    name: str,
    values: tuple[float, ...],
    plans: int | None,
    by: str,
) -> None:
    x = torch.randn(256, 64)
    models = in_part(numbers, x, by)
    for step, value in enumerate(values):
        for model in models:
            for layer in model.children():
                setattr(layer, name, value)
        plain, planned = (gradients_of(model, x, step) for model in models)
        assert differences(planned, plain) == [], step
    assert plans is None or len(shown(models[1]).plans) == plans
    if by == "blocks":
        assert peak_of(models[1], x) + x.nbytes <= shown(models[1]).solution.budget


@pytest.mark.long
def test_what_was_seen_holds_for_some_numbers() -> None:
    graphs = []
    for name, value in (("scale", 1.0), ("scale", 2.0), ("rate", 0.0)):
        model = numbers()
        for layer in model:
            setattr(layer, name, value)
        _, planned = in_part(partial(copy.deepcopy, model), torch.randn(256, 64))
        (made,) = shown(planned).planner.known.values()
        assert isinstance(made, PlannedGraph)
        options = [option for key, option in made.staged.chain.options.items() if key[0] == 0]
        graphs.append(max(options, key=lambda option: option.stages).code.graph)
    first, scaled, without_dropout = graphs
    assert first.saves_like(scaled)
    assert not first.saves_like(without_dropout)
    graph = replace(first, rates=(0,))
    shared = max(graph.composition.shared) + 1
    rates = (0.0, 0.5, 1.0)
    found = [graph.is_for([rate] * shared, graph.backends) for rate in rates]
    assert found == [False, True, False]


@each_way
def test_a_number_between_forward_and_backward(by: str) -> None:
    """A replay is of the forward as it was."""
    x = torch.randn(256, 64)
    models = in_part(numbers, x, by)
    found = []
    for model in models:
        torch.manual_seed(0)
        loss = loss_of(model(x))
        for layer in model.children():
            layer.scale, layer.rate = 7.0, 0.5  # type: ignore[assignment]  # of a Numbers
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert differences(found[1], found[0]) == []


@pytest.mark.long
@each_way
def test_parameters_frozen_after_fit(by: str) -> None:
    x = torch.randn(256, 64)
    models = in_part(numbers, x, by)
    for step in range(3):
        for model in models:
            for layer in list(model.children())[:step]:
                layer.requires_grad_(requires_grad=False)
        plain, planned = (gradients_of(model, x, step) for model in models)
        assert differences(planned, plain) == [], step


@pytest.mark.long
@each_way
def test_kernels_chosen_after_fit(by: str) -> None:
    """Attention saves other tensors then: calls by such kernels are planned anew."""
    models = in_part(lambda: Language(is_gated=True).train(), TOKENS, by)
    for step, kernel in enumerate((SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)):
        with sdpa_kernel(kernel):
            plain, planned = (gradients_of(model, TOKENS, step) for model in models)
        assert differences(planned, plain) == [], kernel


@pytest.mark.long
def test_a_second_backward_after_a_failed_recomputation_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, x = FAMILIES["GPT"]
    _, planned = in_part(lambda: make().train(), x)
    (made,) = shown(planned).planner.known.values()
    assert isinstance(made, PlannedGraph)
    chain = made.staged.chain
    spans = {key for key, one in chain.options.items() if one.stages > 1 and one.selection.drops}
    first, number = min(spans)
    span = range(first, first + chain.options[first, number].stages)
    schedule = _dropped_first(len(chain.stages), span, number)
    vars(made.executor).update(vars(Executor(chain, schedule)))
    loss = loss_of(planned(x))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(OptionRun, "close", fail)
        with pytest.raises(MemoryError):
            loss.backward(retain_graph=True)
    with pytest.raises(chainstay.PlanMismatchError, match="an earlier recomputation failed"):
        loss.backward()


@each_way
def test_a_setting_of_kernels_that_is_changed_after_fit_keeps_the_budget(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(256, 64)
    models = in_part(numbers, x, by)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    plain, planned = (gradients_of(model, x, 0) for model in models)
    assert differences(planned, plain) == []
    assert peak_of(models[1], x) + x.nbytes <= shown(models[1]).solution.budget


@pytest.mark.long
@each_way
def test_copies_and_files_of_a_model_whose_stages_are_kept_in_part(by: str) -> None:
    x = torch.randn(256, 64)
    plain, planned = in_part(numbers, x, by)
    expected = gradients_of(plain, x, 0)
    for twin in (copy.deepcopy(planned), copy.deepcopy(chainstay.unfit(copy.deepcopy(planned)))):
        assert differences(gradients_of(twin, x, 0), expected) == []
    assert pickle.loads(pickle.dumps(plain.state_dict())).keys() == planned.state_dict().keys()


@each_way
def test_without_options_stages_run_again(by: Any) -> None:
    x = torch.randn(256, 64)
    model = chainstay.fit(numbers(), (x,), budget="70%", by=by, stage_options=False, repeats=1)
    assert recomputes(model)
    assert not keeps_in_part(model)


def test_a_measured_chain_goes_by_options() -> None:
    x = torch.randn(256, 64)
    torch.manual_seed(0)
    plain = numbers()
    measured = chainstay.measure(copy.deepcopy(plain), x, loss=loss_of, repeats=1)
    solution = chainstay.solve_measured(measured, "60%")
    assert any(op.option for op in solution.schedule)
    chain = measured.planned(solution)
    expected, found = (gradients_of(model, x, 0) for model in (plain, chain))
    assert list(map(torch.equal, found.values(), expected.values())) == [True] * len(expected)


@pytest.mark.long
def test_a_measured_chain_goes_by_its_plan_under_other_kernels() -> None:
    """What stages save then was not seen when their options were measured: all of it is kept."""
    torch.manual_seed(0)
    language, x = Language(is_gated=True).train(), torch.randn(2, 16, 64)
    plain = nn.Sequential(*language.layers)
    measured = chainstay.measure(copy.deepcopy(plain), x, loss=loss_of, repeats=1)
    solution = chainstay.solve_measured(measured, "60%")
    assert any(op.option for op in solution.schedule)
    chain = measured.planned(solution)
    with sdpa_kernel(SDPBackend.MATH):
        expected, found = (gradients_of(model, x, 0) for model in (plain, chain))
    assert list(map(torch.equal, found.values(), expected.values())) == [True] * len(expected)


@pytest.mark.skipif(IS_TORCH_2_6, reason="torch 2.6 gives no graph without operators")
def test_a_loss_that_is_the_output() -> None:
    """It has no operators at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0))
    chainstay.fit(model, (torch.randn(1, 8),), budget="100%", loss=lambda y: y, repeats=1)
    model(torch.randn(1, 8)).sum().backward()


@pytest.mark.long
@each_way
def test_costs_of_options_on_file_are_for_those_who_want_options(tmp_path: Path, by: Any) -> None:
    """A fit without options, or one that needs none, has no use for those on file."""
    x, model = torch.randn(256, 64), numbers()

    def fitted(model: nn.Module, budget: str, *, stage_options: bool = True) -> nn.Module:
        settings: Any = {"budget": budget, "by": by, "stage_options": stage_options}
        return chainstay.fit(model, (x,), loss=loss_of, repeats=1, cache=tmp_path, **settings)

    assert keeps_in_part(fitted(numbers(), "60%"))
    assert not keeps_in_part(fitted(numbers(), "70%", stage_options=False))
    assert keeps_in_part(fitted(numbers(), "60%")), "read from the file again"
    assert not keeps_in_part(fitted(model, "100%"))
    assert keeps_in_part(fitted(model, "60%"))


class Midpoints(nn.Module):
    """Steps through one field, each of which is several layers' input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 32), nn.Linear(32, 4)
        self.field = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x)
        for _ in range(4):
            first = self.field(y)
            second = self.field(y + first / 2)
            third = self.field(y + second / 2)
            y = y + first / 6 + second / 3 + third / 3 + self.field(y + third) / 6
        left: torch.Tensor = self.leave(y)
        return left


@pytest.mark.long
def test_the_least_budget_that_an_error_names_holds_when_times_are_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other times make other options, and those that it needs have to be among them."""
    x = torch.randn(128, 8)

    def least_of(seed: int, budget: int = 1) -> int | None:
        """At another's least, ``None`` says that it fits; times are random."""
        times = random.Random(seed)

        def run_timed(function: Callable[[], Any], _device: object) -> tuple[Any, int]:
            return function(), times.choice((1_000, 100_000, 10_000_000))

        monkeypatch.setattr("chainstay.runtime.options.instruments.run_timed", run_timed)
        torch.manual_seed(0)
        try:
            chainstay.fit(Midpoints(), (x,), budget=budget, loss=loss_of, repeats=1)
        except InfeasibleBudgetError as refusal:
            return refusal.required
        return None

    named = {least_of(seed) for seed in range(3)}
    assert len(named) == 1
    (least,) = named
    assert least is not None
    assert least_of(3, least) is None
