"""What `fit` promises besides equal bits: one object, honest errors, nothing left half-changed."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.dp import jit
from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidBudgetError,
    PlanMismatchError,
    UnknownMethodError,
    UnsupportedModelError,
)
from chainstay.fitting.fitted import Fitted
from chainstay.fitting.planner import Planner
from chainstay.profiles import ChainProfile, Stage
from chainstay.runtime import trace_memory
from chainstay.runtime.execute.planned import Planned

fit: Callable[..., Any] = partial(
    chainstay.fit, repeats=1, method="dp"
)  # also called with wrong types
unfit: Callable[[Any], Any] = chainstay.unfit


class Branches(nn.Module):
    """Skips, dropout, BatchNorm and keyword arguments; what it returns is up to the test."""

    def __init__(self, returns: str = "tensor", width: int = 16) -> None:
        super().__init__()
        self.returns = returns
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout())
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> Any:
        first = x = self.enter(x).tanh()
        for block in self.blocks:
            x = x + block(x)
        scores = self.leave(x * first if scale is None else x * first * scale)
        match self.returns:
            case "dict":
                return {"scores": scores, "first": first}
            case "tuple":
                return scores, [first, None, 3]
            case "loss":
                return {"loss": scores.square().mean(), "scores": scores}
        return scores


def make_model(returns: str = "tensor") -> Branches:
    torch.manual_seed(1)
    return Branches(returns)


def batch(rows: int = 128) -> torch.Tensor:
    return torch.linspace(-9, 9, rows * 16).reshape(rows, 16).sin()


def square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def fitted(returns: str = "tensor", **settings: Any) -> Branches:
    model = make_model(returns)
    fit(model, (batch(),), **{"budget": "70%", **settings})
    return model


def shown(model: nn.Module) -> Fitted:
    """What is behind ``model.chainstay``."""
    there = model.chainstay
    assert isinstance(there, Fitted)
    return there


def stages_of(planned: Planned) -> tuple[Stage, ...]:
    """Of a plan for a chain."""
    assert isinstance(planned.profile, ChainProfile)
    return planned.profile.stages


def step(model: nn.Module, x: torch.Tensor | None = None) -> list[torch.Tensor]:
    """All that a step from a fixed seed leaves behind."""
    torch.manual_seed(5)
    model.zero_grad()
    output = model(batch() if x is None else x)
    output.square().mean().backward()
    gradients = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    buffers = [buffer.clone() for buffer in model.buffers()]
    return [output.detach(), *gradients, *buffers, torch.get_rng_state()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def everything(model: nn.Module) -> dict[str, object]:
    """The model's attributes by identity, its tensors by value, and the random state."""
    found: dict[str, object] = {"random state": torch.get_rng_state().tolist()}
    for path, module in model.named_modules():
        found |= {f"{path} {name}": id(value) for name, value in vars(module).items()}
    for name, tensor in model.state_dict().items():
        found[name] = tensor.tolist()
    found |= {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
    return found


def test_it_is_the_same_object_with_the_same_state() -> None:
    model = make_model()
    parameters, keys = list(model.parameters()), list(model.state_dict())
    returned = fit(model, (batch(),), budget="70%")
    assert returned is model
    assert type(model) is Branches
    assert all(map(lambda one, other: one is other, model.parameters(), parameters))
    assert list(model.state_dict()) == keys
    assert same(step(model), step(make_model()))
    assert shown(model).solution.peak_bytes <= shown(model).solution.budget


def test_the_plan_is_shown() -> None:
    model = fitted()
    text = str(model.chainstay)
    assert text.startswith("Branches in ")
    assert shown(model).solution.describe() in " ".join(text.split())
    assert [line[0] for line in text.splitlines()[:3]] == ["B", " ", " "], "a clause a line"
    assert "proved optimal" in str(fitted(budget="100%").chainstay)
    assert "slower than plain training at a peak of " in text
    assert text.rsplit(maxsplit=1)[-1] == "B0"


@pytest.mark.parametrize("returns", ["dict", "tuple", "loss"])
def test_outputs_keep_their_type(returns: str) -> None:
    torch.manual_seed(5)
    output = fitted(returns)(batch())
    torch.manual_seed(5)
    expected = make_model(returns)(batch())
    assert type(output) is type(expected)
    match returns:
        case "tuple":
            assert torch.equal(output[1][0], expected[1][0])
            assert output[1][1:] == [None, 3]
        case _:
            assert list(output) == list(expected)
            assert all(torch.equal(output[name], expected[name]) for name in expected)


def test_a_loss_in_the_output_is_the_loss() -> None:
    """Only its gradient enters the backward, so no gradient of the scores is counted."""
    with_loss, without = fitted("loss"), fitted("dict")
    last, other = (stages_of(shown(model).plans[0]) for model in (with_loss, without))
    assert last[-2].gradient_bytes == 4
    assert other[-2].gradient_bytes == 128 * (4 + 16) * 4


def test_unfit_restores_the_model() -> None:
    model = make_model()
    before = everything(model)
    fit(model, (batch(),), budget="70%")
    assert chainstay.unfit(model) is model
    assert everything(model) == before
    with pytest.raises(UnsupportedModelError, match="this Branches is not fitted; call"):
        chainstay.unfit(model)


def test_unfit_does_not_take_away_what_others_put_around_the_plan() -> None:
    model = fit(make_model(), (batch(),), budget="70%")
    plan = model.forward

    def wrapped(x: torch.Tensor) -> object:
        return plan(x)

    model.forward = wrapped
    with pytest.raises(UnsupportedModelError, match="forward of this Branches was replaced or"):
        chainstay.unfit(model)
    assert model.forward is wrapped
    model.forward = plan
    assert "forward" not in vars(chainstay.unfit(model))


def test_a_forward_of_the_objects_own_comes_back() -> None:
    model = make_model()
    own = partial(Branches.forward, model, scale=torch.ones(16))
    model.forward = own  # type: ignore[method-assign]  # as some libraries do
    fit(model, (batch(),), budget="70%")
    expected = make_model()
    expected.forward = partial(Branches.forward, expected, scale=torch.ones(16))  # type: ignore[method-assign]
    assert same(step(model), step(expected))
    chainstay.unfit(model)
    assert model.forward is own


def test_copies_are_independent_and_planned() -> None:
    model = fitted()
    copied = copy.deepcopy(model)
    assert same(step(copied), step(make_model()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert shown(copied) is not shown(model)
    chainstay.unfit(model)
    copied.load_state_dict(make_model().state_dict())
    assert same(step(copied), step(make_model()))
    assert shown(copied).plans
    assert "forward" not in vars(chainstay.unfit(copied))


def test_states_are_saved_as_ever_and_plans_are_not() -> None:
    model, file = fitted(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    make_model().load_state_dict(torch.load(file))
    loaded = pickle.loads(pickle.dumps(model))
    assert same(step(loaded), step(make_model()))
    loaded.load_state_dict(make_model().state_dict())
    fit(loaded, (batch(),), budget="70%")
    assert same(step(loaded), step(make_model()))


def test_without_gradients_it_runs_plainly() -> None:
    model, plain = fitted(on_new_shape="refuse"), make_model()
    for module in (model, plain):
        module.eval()
    with torch.no_grad():
        assert torch.equal(model(batch(3)), plain(batch(3)))
    for parameter in model.parameters():
        parameter.requires_grad = False
    assert torch.equal(model(batch(3)), plain(batch(3)))


def test_a_new_shape_is_planned_and_known_from_then_on() -> None:
    model, plain = fitted(), make_model()
    assert same(step(model, batch(100)), step(plain, batch(100)))
    assert same(step(model), step(plain))
    assert same(step(model, batch(100)), step(plain, batch(100)))
    assert len(shown(model).plans) == 2


@pytest.mark.long
def test_training_flags_autocast_and_frozen_parameters_make_new_plans() -> None:
    model, plain = fitted(budget="90%"), make_model()
    for module in (model, plain):
        module.blocks[1].eval()
    assert same(step(model), step(plain))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(step(model), step(plain))
    for module in (model, plain):
        module.enter.requires_grad_(requires_grad=False)
    assert same(step(model), step(plain))
    assert len(shown(model).plans) == 4


def test_known_shapes_are_not_planned_again() -> None:
    model = fitted(granularity=2, budget="100%")
    for rows in (2, 3, 2, 3, 128):
        model(batch(rows))
    sizes = [stages_of(planned)[-2].output_bytes for planned in shown(model).plans]
    assert sizes == [rows * 16 for rows in (128, 2, 3)]


@pytest.mark.long
@pytest.mark.parametrize("source", ["graph", "blocks"])
def test_a_share_of_a_small_call_that_no_larger_one_fits_in_is_explained(source: str) -> None:
    model = make_model()
    fit(model, (batch(),), budget="70%", by=source)
    with pytest.raises(InfeasibleBudgetError, match=r"'70%' is a share .* sample of the largest"):
        model(batch(4096))


def test_a_new_shape_is_refused_or_runs_plainly_on_request() -> None:
    model = fitted(on_new_shape="refuse")
    with pytest.raises(PlanMismatchError, match=r"for a call with \(100, 16\); call it like the"):
        model(batch(100))
    model.blocks[1].eval()
    with pytest.raises(PlanMismatchError, match=r"\(128, 16\), but as .* \(training flags,"):
        model(batch())
    model, plain = fitted(on_new_shape="run plainly"), make_model()
    assert same(step(model, batch(100)), step(plain, batch(100)))
    assert len(shown(model).plans) == 1


def test_keywords_come_in_any_order() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

        def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                left = layer(left).tanh() + right
            return left

    model = Two()
    sample = {"left": batch(), "right": batch().cos()}
    fit(model, (), sample, budget="100%", on_new_shape="refuse")
    model(right=sample["right"], left=sample["left"]).sum().backward()


def test_a_fitted_model_may_be_part_of_another() -> None:
    def whole(inner: nn.Module, first: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(5)
        inner(first(batch())).square().mean().backward()
        gradients = [parameter.grad for part in (first, inner) for parameter in part.parameters()]
        return [gradient for gradient in gradients if gradient is not None]

    torch.manual_seed(2)
    first = nn.Linear(16, 16)
    model = fit(make_model(), (first(batch()),), budget="70%", on_new_shape="refuse")
    assert all(parameter.grad is None for parameter in first.parameters())
    found, expected = whole(model, first), whole(make_model(), copy.deepcopy(first))
    assert same(found, expected)


def test_hooks_of_the_model_itself_run_around_the_plan() -> None:
    model, seen = make_model(), list[str]()
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("after"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    x = batch().requires_grad_()
    fit(model, (x,), budget="100%", on_new_shape="refuse")
    assert seen == []
    assert same(step(model, x), step(make_model(), x))
    assert seen == ["before", "after", "backward"]


@pytest.mark.parametrize("hooks", [0, 1])
def test_a_sequential_of_large_stages_is_cut_inside_them(hooks: int) -> None:
    """Its modules' hooks run all the same."""
    model = nn.Sequential(*(_perceptron() for _ in range(3)))
    called: list[object] = []
    if hooks:
        model[1].register_forward_hook(lambda *_: called.append(1))
    fit(model, (batch(),), budget="100%", loss=torch.Tensor.mean)
    called.clear()
    model(batch()).mean().backward()
    assert len(called) == hooks
    assert len(stages_of(shown(model).plans[0])) > 4


@pytest.mark.parametrize("stage_options", [True, False])
def test_a_sample_of_zeros_is_as_good_as_any(*, stage_options: bool) -> None:
    """Zeros leave a running mean as it was; what comes later does not."""
    blocks = (
        nn.Sequential(
            nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 16, bias=False)
        )
        for _ in range(5)
    )
    model = nn.Sequential(*blocks)
    plain = copy.deepcopy(model)
    zeros = torch.zeros_like(batch())
    fit(model, (zeros,), budget="60%", loss=square, stage_options=stage_options)
    runs = Counter(op.stage for op in shown(model).solution.schedule if op.kind.is_forward)
    is_again = max(runs.values()) > 1
    assert is_again or (stage_options and shown(model).kept_in_part), "something is made again"
    assert same(step(model), step(plain))


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit(3, (batch(),), budget="50%"), UnsupportedModelError, "the model is an int"),
        (
            lambda: fit([nn.Tanh()], (batch(),), budget="50%"),
            UnsupportedModelError,
            "the model is a list, .* put the stages into a torch.nn.Sequential",
        ),
        (
            lambda: fit(make_model(), batch(), budget="50%"),
            UnsupportedModelError,
            r"sample_args is a Tensor, .* for one argument write \(x,\)",
        ),
        (
            lambda: fit(make_model(), (batch().to("meta"),), budget="50%"),
            UnsupportedModelError,
            "on meta, but the model is on cpu; move both",
        ),
        (lambda: fitted(budget=0), InvalidBudgetError, "budget is 0; it must be at least 1"),
        (lambda: fitted(budget=-5), InvalidBudgetError, "budget is -5; it must be at least"),
        (lambda: fitted(budget=1.5), InvalidBudgetError, "budget is 1.5; .* up to 1"),
        (lambda: fitted(budget="8 apples"), InvalidBudgetError, "'8 apples'; write bytes, '8GiB'"),
        (lambda: fitted(budget=None), InvalidBudgetError, "the model is on cpu, where nobody"),
        (lambda: fitted(reserve="much"), InvalidBudgetError, "reserve is 'much'; write whole"),
        (
            lambda: fitted(budget="50%", reserve="1GiB"),
            InvalidBudgetError,
            "reserve is '1GiB', but .* the budget is '50%'",
        ),
        (lambda: fitted(budget=100), InfeasibleBudgetError, "the least feasible budget known is"),
        (lambda: fitted(method="magic"), UnknownMethodError, "method is 'magic'; choose"),
        (lambda: fitted(offload="x"), ValueError, "offload is 'x', must be True, False or None"),
        (lambda: fitted(stage_options=3), ValueError, "stage_options is 3, must be True or False"),
        (lambda: fitted(bit_for_bit="no"), ValueError, "bit_for_bit is 'no', must be True or"),
        (lambda: fitted(progress="x"), ValueError, "progress is 'x', must be True or False"),
        (lambda: fitted(cache=__file__), ValueError, "must be a directory that can be w"),
        (lambda: fitted(on_new_shape="ask"), ValueError, "on_new_shape is 'ask', must be 'plan'"),
        (lambda: fitted(repeats=0), ValueError, "repeats is 0, must be a whole number"),
        (lambda: fitted(granularity="dust"), ValueError, "granularity is 'dust'"),
        (lambda: fitted(loss=nn.MSELoss), UnsupportedModelError, "the loss is the class MSELoss"),
        (lambda: fitted(loss=lambda x: x), UnsupportedModelError, r"shape \(128, 4\) .* one real"),
        (
            lambda: fitted(loss=lambda _: 3.0),
            UnsupportedModelError,
            r"the loss .* \(it returned a float\)",
        ),
        (
            lambda: fitted(loss=nn.MSELoss()),
            UnsupportedModelError,
            r"the loss MSELoss\(\) is called with the model's output alone \(missing .* 'target'",
        ),
        (
            lambda: fitted(loss=lambda x: x.detach().sum()),
            UnsupportedModelError,
            "the loss has no gradient, .* look for detach",
        ),
        (
            lambda: fit(make_model().to("meta"), (batch(),), budget="50%"),
            UnsupportedModelError,
            "is on the meta device, .* chainstay.estimate",
        ),
        (lambda: chainstay.unfit(make_model()), UnsupportedModelError, "is not fitted; call"),
        (lambda: unfit(3), UnsupportedModelError, "this int is not fitted"),
    ],
)
def test_wrong_calls_get_named_errors(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_it_is_told_while_a_model_is_planned_that_solvers_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Planner.plan_graph

    def compiling(*args: Any) -> Any:
        jit._TELL.get()("the solvers are compiled")
        return plan(*args)

    monkeypatch.setattr(Planner, "plan_graph", compiling)
    fitted(progress=True)
    assert "chainstay: the solvers are compiled\n" in capsys.readouterr().err


def test_a_sample_in_eval_mode_is_remarked_on(capsys: pytest.CaptureFixture[str]) -> None:
    fit(make_model().eval(), (batch(),), budget="100%", loss=square)
    assert "is in eval mode, and planned as it is" in capsys.readouterr().err
    fit(make_model(), (batch(),), budget="100%", loss=square)
    assert "eval mode" not in capsys.readouterr().err


def test_what_a_sample_raises_says_that_it_is_the_sample() -> None:
    with pytest.raises(RuntimeError, match="must have the same dtype") as caught:
        fit(make_model(), (batch().to(torch.bfloat16),), budget="50%")
    assert "was planned for the sample of fit" in "".join(caught.value.__notes__)


class Differentiating(nn.Module):
    """Its forward takes gradients by torch.func, which admits no hooks on what is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.func.grad(lambda y: y.sin().sum())(layer(x))
        return x


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_gradients_that_torch_func_takes_inside_the_forward_are_refused(by: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"torch\.func takes gradients inside"):
        fit(Differentiating(), (batch(),), budget="50%", by=by)


class Yielding(nn.Module):
    """What the loop does with one tensor comes before what the model does next with it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            x = x + layer(x)
            yield x


def test_a_forward_that_is_a_generator_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"is a generator: .* let it return a list"):
        fit(Yielding(), budget="50%")


class Deciding(nn.Module):
    """Its forward depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x.tanh() if bool(x.sum() > 0) else x.sin()


def test_a_forward_that_depends_on_values_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Deciding .* by the value of a tensor"):
        fit(Deciding(), (batch(),), budget="50%")


def test_measuring_runs_no_hooks_of_parameters_and_planned_steps_run_them() -> None:
    model, seen = fitted(on_new_shape="plan"), list[torch.Tensor]()
    model.enter.weight.register_post_accumulate_grad_hook(seen.append)
    model(batch(100))
    assert seen == []
    model.load_state_dict(make_model().state_dict())
    assert same(step(model), step(make_model()))
    assert seen == [model.enter.weight]


def fail(_output: object) -> torch.Tensor:
    raise KeyError("on purpose")


@pytest.mark.parametrize("settings", [{"budget": 100}, {"loss": fail}, {"method": "magic"}])
def test_a_failed_fit_leaves_everything_as_it_was(settings: dict[str, Any]) -> None:
    model = make_model()
    model.blocks[2].eval()
    before = everything(model)
    with pytest.raises(ChainstayError):
        fit(model, (batch(),), **{"budget": "70%", **settings})
    assert everything(model) == before


def test_a_new_shape_that_does_not_fit_leaves_everything_as_it_was() -> None:
    least = fitted(budget="100%")
    model = fit(make_model(), (batch(),), budget=shown(least).solution.peak_bytes)
    before = everything(model)
    with pytest.raises(InfeasibleBudgetError):
        model(batch(2000))
    assert everything(model) == before
    assert same(step(model), step(make_model()))


@pytest.mark.long
@pytest.mark.parametrize("error", [KeyError, torch.OutOfMemoryError])
def test_an_exception_in_the_backward_leaves_nothing(error: type[Exception]) -> None:
    model = fitted()

    def interrupt(_gradient: torch.Tensor) -> None:
        raise error("on purpose")

    hook = model.get_parameter("blocks.1.0.weight").register_hook(interrupt)

    def interrupted_step() -> None:
        with suppress(error):  # pytest.raises would hold the error, and the error its frames
            model(batch()).square().mean().backward()
            pytest.fail("the hook raises")

    def step_and_collect() -> None:
        interrupted_step()
        gc.collect()  # in plain torch, too, an error and its frames hold each other

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trace_memory(step_and_collect, "cpu")  # torch itself holds on to the last step that failed
    assert trace_memory(step_and_collect, "cpu").end_bytes == 0
    hook.remove()
    model.load_state_dict(make_model().state_dict())
    assert same(step(model), step(make_model()))


class Interrupted(nn.Module):
    """Fails when it is told to."""

    is_armed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_armed:
            raise torch.OutOfMemoryError("on purpose")
        return x.tanh()


def test_an_exception_in_the_forward_leaves_nothing() -> None:
    torch.manual_seed(0)
    middle = Interrupted()
    front = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 16)]
    model = nn.Sequential(*front, middle, nn.Linear(16, 16), nn.Tanh())
    plain = copy.deepcopy(model)
    fit(model, (batch(),), budget="95%")
    middle.is_armed = True
    with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
        model(batch())
    middle.is_armed = False
    model.load_state_dict(plain.state_dict())
    assert same(step(model), step(plain))


def test_a_forward_without_backward_leaves_nothing() -> None:
    model, x = fitted(), batch()
    assert trace_memory(partial(model, x), "cpu").end_bytes > 0

    def run_twice() -> None:
        held = [model(x), model(x)]
        assert len(held) == 2

    assert trace_memory(run_twice, "cpu").end_bytes == 0


def test_a_changed_argument_is_noticed() -> None:
    with pytest.raises(InfeasibleBudgetError) as refusal:
        fitted(budget=100)
    model, x = fitted(budget=refusal.value.required), batch()
    value = model(x, scale=None).square().mean()
    x.zero_()
    # by the plan, where it is needed to run a stage again, or else by autograd itself
    words = "was changed in place between forward and back|modified by an inplace operation"
    with pytest.raises((PlanMismatchError, RuntimeError), match=words):
        value.backward()


def test_compiling_around_it_changes_nothing() -> None:
    model, plain = fitted(), make_model()
    assert same(step(torch.compile(model, backend="eager")), step(plain))  # type: ignore[arg-type]


def switched_off() -> Any:
    """What TORCHDYNAMO_DISABLE=1 sets."""
    return torch._dynamo.config.patch(disable=True)


def only_eager() -> Any:
    return torch.compiler.set_stance("force_eager")


@pytest.mark.parametrize("off", [switched_off, only_eager])
@pytest.mark.parametrize("has_sample", [True, False])
def test_where_torchdynamo_is_switched_off_nothing_trains_unplanned(
    off: Callable[[], Any], *, has_sample: bool
) -> None:
    model, plain = make_model(), make_model()
    refused = pytest.raises(UnsupportedModelError, match=r"is switched off .*TORCHDYNAMO_DISABLE")
    with off():
        if has_sample:
            with refused:
                fit(model, (batch(),), budget="70%")
            assert not hasattr(model, "chainstay")
        else:
            fit(model, budget="70%")
            with refused:
                step(model)
            unfit(model)
        assert same(step(model), step(plain))


def test_a_planned_model_never_runs_unplanned_once_torchdynamo_is_switched_off() -> None:
    model, plain = fitted(budget="60%"), make_model()
    step(model), step(plain)
    least = trace_memory(lambda: step(plain), "cpu").peak_bytes
    with switched_off():  # what is compiled already runs on
        assert trace_memory(lambda: step(model), "cpu").peak_bytes < least
    with only_eager(), pytest.raises(UnsupportedModelError, match="is switched off"):
        step(model)
