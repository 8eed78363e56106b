"""Models of transformers and torchvision on a GPU, planned by `fit`, beside gradient checkpointing.

Everything runs with deterministic kernels, so that bits can be compared. For each budget a row
says how much longer a step takes than plain training, predicted and executed; the requested peak;
in how many gradients, buffers and random states one step differs from plain training, by
``torch.equal``; and how many plain steps `fit` took. Models of transformers have a row of their own
``gradient_checkpointing_enable()``, and a plan is made for the memory that it needs, too.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any, Final

import torch
from torch import nn

from benchmarks.runtime.gpu_plans import Record, Row, let_go
from benchmarks.training import mebibytes
from chainstay import InfeasibleBudgetError, fit
from chainstay.runtime import trace_memory
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.stopwatch import run_timed
from zoo import FAMILIES  # torchvision and what imports it can be imported only after this

__all__ = ["model_rows"]

SHARES: Final = (70, 50, 35)


@dataclass(frozen=True)
class Subject:
    """A model and a call of it.

    Attributes:
        name: For people.
        model: In training mode, on the device.
        given: Arguments by keyword.
        is_mixed: Whether it trains under autocast to bfloat16.
    """

    name: str
    model: nn.Module
    given: dict[str, torch.Tensor]
    is_mixed: bool = True

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return next(self.model.parameters()).device

    def surroundings(self) -> AbstractContextManager[Any]:
        """Of its forward."""
        is_mixed = self.is_mixed
        return torch.autocast(self.device.type, torch.bfloat16) if is_mixed else nullcontext()

    def step(self, model: nn.Module) -> None:
        """One training step without the optimizer; gradients add up."""
        with self.surroundings():
            loss = _loss_of(model(**self.given))
        loss.backward()

    def fit(self, budget: str | int) -> Any:
        """Plan the model, or for the least budget if that is more; its plan."""
        with self.surroundings():
            try:
                fit(self.model, (), self.given, budget=budget, loss=_loss_of, progress=False)
            except InfeasibleBudgetError as error:
                required = error.required
                fit(self.model, (), self.given, budget=required, loss=_loss_of, progress=False)
        return self.model.chainstay

    def peak_bytes(self, model: nn.Module) -> int:
        """Of a step, as budgets count it: with its arguments."""
        given = sum(tensor.nbytes for tensor in self.given.values())
        self.step(model)
        return trace_memory(lambda: self.step(model), self.device).peak_bytes + given

    def ratio(self, model: nn.Module, plain: nn.Module, rounds: int) -> float:
        """Of the steps' times, both in turns; the first two warm up."""
        ratios = []
        for _ in range(rounds + 2):
            mine, other = (self.time(each) for each in (model, plain))
            ratios.append(mine / other)
        return median(ratios[2:])

    def time(self, model: nn.Module) -> int:
        """Of a step by the device's clock, in ns."""
        return run_timed(lambda: self.step(model), device_at(self.device))[1]

    def record(self, model: nn.Module) -> Record:
        """What a step leaves behind; the model's buffers are put back."""
        buffers = [buffer.clone() for buffer in model.buffers()]
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        torch.manual_seed(1)
        self.step(model)
        left = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        left += [buffer.clone() for buffer in model.buffers()]
        left.append(torch.get_rng_state())
        if self.device.type == "cuda":
            left.append(torch.cuda.get_rng_state(self.device))
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.data.copy_(value)
        return left


def model_rows(device: torch.device, deadline: float, rounds: int) -> Iterator[Row]:
    """Rows of all models; none is begun when the monotonic clock is beyond `deadline`."""
    for subject in _subjects(device):
        if time.monotonic() > deadline:
            yield {
                "model": subject.name,
                "verdict": "and those after it: not run, for lack of time",
            }
            return
        yield from _rows(subject, deadline, rounds)
        del subject
        let_go(device)


def _rows(subject: Subject, deadline: float, rounds: int) -> Iterator[Row]:
    plain: Any = copy.deepcopy(subject.model)
    expected, again = subject.record(plain), subject.record(plain)
    plain_peak = subject.peak_bytes(plain)
    step = median(subject.time(plain) for _ in range(rounds))
    yield {
        "model": subject.name,
        "way": "plain training",
        "peak": mebibytes(plain_peak),
        "bits": f"{_differing(expected, again)} differ",
        "step": f"{step / 1e6:.1f} ms",
    }
    budgets: dict[str, str | int] = {f"{share} %": f"{share}%" for share in SHARES}
    if hasattr(plain, "gradient_checkpointing_enable"):
        plain.gradient_checkpointing_enable({"use_reentrant": False})
        peak = subject.peak_bytes(plain)
        unchecked = subject.model
        yield {
            "model": subject.name,
            "way": "gradient checkpointing",
            "peak": mebibytes(peak),
            "executed": f"{subject.ratio(plain, unchecked, rounds) - 1:+.1%}",
            "bits": f"{_differing(expected, subject.record(plain))} differ",
        }
        plain.gradient_checkpointing_disable()
        budgets["checkpointing's"] = peak
    for parameter in subject.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for title, budget in budgets.items():
        if time.monotonic() > deadline:
            yield {"model": subject.name, "way": title, "verdict": "not run, for lack of time"}
            continue
        begin = time.perf_counter_ns()
        fitted = subject.fit(budget)
        took = time.perf_counter_ns() - begin
        solution = fitted.solution
        differing = _differing(expected, subject.record(subject.model))
        peak = subject.peak_bytes(subject.model)
        chosen = [way.name for way in fitted.alternatives if way.is_chosen]
        right = peak <= solution.budget and not (differing and not _differing(expected, again))
        yield {
            "model": subject.name,
            "way": f"{title}: {', '.join(chosen)}",
            "peak": f"{mebibytes(peak)} of {mebibytes(solution.budget)}",
            "share": f"{solution.budget / plain_peak:.0%}",
            "predicted": f"{solution.makespan / (fitted.plans[-1].plain_time or 1) - 1:+.1%}",
            "executed": f"{subject.ratio(subject.model, plain, rounds) - 1:+.1%}",
            "bits": f"{differing} differ",
            "fit": f"{took / 1e9:.1f} s, {took / step:.0f} steps",
            "verdict": "ok" if right else "FAILED",
        }


def _differing(one: Record, other: Record) -> int:
    return sum(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _loss_of(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output.square().mean() if torch.is_tensor(output) else output.loss
    return loss


def _subjects(device: torch.device) -> Iterator[Subject]:
    assert FAMILIES, "its import has made torchvision importable"
    is_small = device.type == "cpu"
    torch.manual_seed(0)
    yield _llama(device, is_small=is_small)
    yield _images("ViT-L/16", "vit_l_16", 2 if is_small else 64, device)
    yield _gpt2(device, is_small=is_small)
    yield _images("ConvNeXt-B", "convnext_base", 2 if is_small else 64, device)
    yield _t5(device, is_small=is_small)
    yield _images("ResNet-50", "resnet50", 2 if is_small else 128, device, is_mixed=False)


def _text(batch: int, length: int, words: int, device: torch.device) -> dict[str, torch.Tensor]:
    tokens = torch.randint(words, (batch, length), device=device)
    return {"input_ids": tokens, "labels": tokens}


def _gpt2(device: torch.device, *, is_small: bool) -> Subject:
    library = import_module("transformers")
    small = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 500}
    model = library.GPT2LMHeadModel(library.GPT2Config(**small if is_small else {})).to(device)
    batch, length = (2, 32) if is_small else (16, 1024)
    return Subject("GPT-2", model, _text(batch, length, model.config.vocab_size, device))


def _llama(device: torch.device, *, is_small: bool) -> Subject:
    library = import_module("transformers")
    sizes = (64, 4, 4, 172, 500) if is_small else (2048, 16, 32, 5632, 32000)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = library.LlamaConfig(**dict(zip((*names, "vocab_size"), sizes, strict=True)))
    model = library.LlamaForCausalLM(config).to(device)
    batch, length = (2, 32) if is_small else (4, 2048)
    return Subject("Llama, 1.0e9 parameters", model, _text(batch, length, sizes[-1], device))


def _t5(device: torch.device, *, is_small: bool) -> Subject:
    library = import_module("transformers")
    small = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    base = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    config = library.T5Config(**(small if is_small else base), decoder_start_token_id=0)
    model = library.T5ForConditionalGeneration(config).to(device)
    batch, length = (2, 32) if is_small else (16, 512)
    return Subject("T5-base", model, _text(batch, length, 32000, device))


def _images(
    title: str, name: str, batch: int, device: torch.device, *, is_mixed: bool = True
) -> Subject:
    model = import_module("torchvision.models").get_model(name, weights=None).to(device)
    side = 64 if device.type == "cpu" and "vit" not in name else 224
    return Subject(title, model, {"x": torch.randn(batch, 3, side, side, device=device)}, is_mixed)
