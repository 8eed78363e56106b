"""Other libraries' training loops train bit for bit as without a plan."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.fitting.fitted import Fitted
from chainstay.integrations.first_call import FitSettings, fit_at_first_call, unfit_if_fitted
from training_conditions import (
    RECOMPUTING,
    SUBJECTS,
    Sample,
    ShareOf,
    differences,
    keeps_in_part,
    pair,
    recomputes,
    trained,
)
from zoo import loss_of

LEAST = FitSettings(budget=RECOMPUTING, method=ShareOf(Fraction(0)), repeats=1)
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
    pytest.mark.usefixtures("equal_times"),
]


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """With the precision that the test asks for; only one kind can be alive at a time."""
    accelerate = pytest.importorskip("accelerate")
    state = pytest.importorskip("accelerate.state").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True, mixed_precision=request.param)
    state._reset_state(reset_partial_state=True)


def plain_of(subject: str) -> nn.Module:
    return pair(subject, "all")[0]


def test_settings_are_the_arguments_of_fit() -> None:
    arguments = inspect.signature(chainstay.fit).parameters.values()
    by_name = [argument for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
    settings = inspect.signature(FitSettings).parameters.values()
    assert [(s.name, s.default) for s in settings] == [(a.name, a.default) for a in by_name]


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_first_call_with_gradients_fits(subject: str) -> None:
    plain, model, sample = plain_of(subject), plain_of(subject), SUBJECTS[subject][1]
    attributes = dict(vars(model))
    fit_at_first_call(model, LEAST)
    for module in (model, plain):
        torch.manual_seed(2)
        with torch.no_grad():
            sample.loss(module)
    assert model.chainstay.plans == (), "nothing is planned without gradients"  # type: ignore[union-attr]
    assert differences(trained(model, sample), trained(plain, sample)) == []
    assert isinstance(model.chainstay, Fitted)
    unfit_if_fitted(model)
    assert vars(model) == attributes


def test_it_may_never_be_called() -> None:
    model = plain_of("layered")
    attributes = dict(vars(model))
    fit_at_first_call(model, LEAST)
    with pytest.raises(UnsupportedModelError, match="is fitted already"):
        fit_at_first_call(model, LEAST)
    unfit_if_fitted(model)
    unfit_if_fitted(model)
    assert vars(model) == attributes


def test_a_failed_fit_is_tried_again() -> None:
    model, sample = plain_of("layered"), SUBJECTS["layered"][1]
    fit_at_first_call(model, FitSettings(budget=100, repeats=1))
    for _ in range(2):
        with pytest.raises(chainstay.InfeasibleBudgetError, match="least feasible budget"):
            sample.loss(model)
    with pytest.raises(UnsupportedModelError, match="fitted already"):
        fit_at_first_call(pair("layered", "all")[1], LEAST)


def language_model() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=3, n_head=2, n_embd=32, vocab_size=50, n_positions=16, use_cache=False
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


@pytest.mark.parametrize(
    "is_low",
    [pytest.param(False, id="float32"), pytest.param(True, id="bf16", marks=pytest.mark.long)],
)
def test_hugging_face_trainer(tmp_path: Path, *, is_low: bool) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = pytest.importorskip("chainstay.integrations.transformers").FitCallback(LEAST)
    tokens = torch.arange(8 * 16).reshape(8, 16) * 7 % 50
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    seen: list[str] = []

    class Watch(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
            seen.append(str(getattr(model, "chainstay", "plain")))

    def train(callbacks: list[Any]) -> nn.Module:
        model = language_model()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=2,
            bf16=is_low,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=3,
        )
        transformers.Trainer(
            model, arguments, train_dataset=rows, callbacks=[*callbacks, Watch()]
        ).train()
        return model

    plain, planned = train([]).state_dict(), train([callback])
    assert seen[:2] == ["plain", "plain"]
    assert all(" in " in text and "slower than plain" in text for text in seen[2:])
    assert len({text.split("\n")[0] for text in seen[2:]}) == 1, "one plan for all batches"
    assert not hasattr(planned, "chainstay")
    assert differences(planned.state_dict(), plain) == []


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning(tmp_path: Path, precision: str) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    callback = pytest.importorskip("chainstay.integrations.lightning").FitCallback("model", LEAST)
    rows: Any = [SUBJECTS["layered"][1].args[0]]  # a list will do, its type says otherwise
    batches = torch.utils.data.DataLoader(rows, batch_size=None)
    plans: list[object] = []

    class Task(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = plain_of("layered")

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss = loss_of(self.model(batch))
            plans.append(getattr(self.model, "chainstay", None))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(callbacks: list[Any]) -> dict[str, torch.Tensor]:
        task = Task()
        torch.manual_seed(3)
        lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            precision=precision,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        ).fit(task, batches)
        assert not hasattr(task.model, "chainstay")
        return dict(task.state_dict())

    expected = train([])
    assert differences(train([callback]), expected) == []
    assert plans[:3] == [None] * 3
    assert all(isinstance(plan, Fitted) for plan in plans[3:])


@pytest.mark.parametrize("accelerator", ["no", "bf16"], indirect=True)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_accelerate(subject: str, accelerator: Any) -> None:
    ours = pytest.importorskip("chainstay.integrations.accelerate")
    sample = SUBJECTS[subject][1]
    plain, planned = (accelerator.prepare(plain_of(subject)) for _ in range(2))
    ours.fit_prepared(accelerator, planned, LEAST)
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    assert isinstance(planned.chainstay, Fitted)
    ours.unfit_prepared(accelerator, planned)
    assert not hasattr(planned, "chainstay")


@pytest.mark.long
@pytest.mark.parametrize("accelerator", ["bf16"], indirect=True)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_accelerate_prepares_a_fitted_model(subject: str, accelerator: Any) -> None:
    """The other order: mixed precision is around the plan, which is made anew for it."""
    _, planned, sample = pair(subject, "least")
    planned, plain = accelerator.prepare(planned), accelerator.prepare(plain_of(subject))
    assert differences(trained(planned, sample), trained(plain, sample)) == []


@pytest.mark.long
@pytest.mark.parametrize("stage_options", [True, False], ids=["in part", "whole"])
def test_adapters_of_peft(*, stage_options: bool) -> None:
    """Most parameters are frozen; what is trained lies beside them, with dropout of its own."""
    peft = pytest.importorskip("peft")
    tokens = torch.arange(4 * 16).reshape(4, 16) * 7 % 50
    sample = Sample((), {"input_ids": tokens, "labels": tokens})

    def adapted() -> nn.Module:
        settings = peft.LoraConfig(
            r=4, target_modules=["c_attn"], lora_dropout=0.2, fan_in_fan_out=True
        )
        model: nn.Module = peft.get_peft_model(language_model(), settings)
        return model.train()

    plain, planned = adapted(), adapted()
    chainstay.fit(
        planned,
        (),
        dict(sample.kwargs),
        budget=RECOMPUTING,
        stage_options=stage_options,
        repeats=1,
    )
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    assert keeps_in_part(planned) if stage_options else recomputes(planned)
    assert "by blocks" not in str(planned.chainstay)
    trained_names = [
        name for name, parameter in planned.named_parameters() if parameter.grad is not None
    ]
    assert trained_names
    assert all("lora_" in name for name in trained_names)
