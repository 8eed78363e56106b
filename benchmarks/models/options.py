"""What keeping stages in part saves: predicted and executed steps, with options and without.

Six networks at five budgets. Each is fitted twice at each budget, with options of stages and
with ``stage_options=False``. A row says how much longer than a plain step the plan was predicted
to take and took (steps of both in turns, time of this thread, median of the ratios), the peak by
the allocator's own account, whether the gradients had plain training's bits, and how many plain
steps `fit` took. Rows are written as they come.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn

import chainstay
from benchmarks.training import cells, heading, machine
from chainstay.fitting.fitted import Fitted
from chainstay.runtime import trace_memory
from models import resnet50
from zoo import FAMILIES  # torchvision and what imports it can be imported only after this

__all__ = ["NETWORKS", "OTHERS", "Case", "case_of", "main"]

NETWORKS: Final = ("GPT-2", "LLaMA-like", "ViT-B/16", "ResNet-50", "ConvNeXt-T", "MobileNetV2")
OTHERS: Final = ("BERT", "Swin-T", "DenseNet-121")
BUDGETS: Final = (85, 70, 50, 35, 25)
_COLUMNS: Final = (
    "network",
    "budget",
    "options",
    "predicted",
    "executed",
    "peak of budget, MiB",
    "kept in part",
    "bits",
    "fit, steps",
)


@dataclass(frozen=True)
class Case:
    """A model and a call of it."""

    model: nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    loss: Callable[[Any], torch.Tensor] | None = None

    def step(self, model: nn.Module) -> None:
        """One training step without the optimizer; gradients add up."""
        output = model(*self.args, **self.kwargs)
        (output.loss if self.loss is None else self.loss(output)).backward()

    @property
    def given_bytes(self) -> int:
        """Bytes of the call's arguments; budgets count them."""
        return sum(tensor.nbytes for tensor in (*self.args, *self.kwargs.values()))


def case_of(name: str) -> Case:
    """Return the network of that name, with random weights and a batch."""
    torch.manual_seed(0)
    assert FAMILIES, "its import has made torchvision importable"
    if name in ("GPT-2", "LLaMA-like", "BERT"):
        hf = import_module("transformers")
        if name == "BERT":
            ids = torch.randint(0, 5000, (2, 128))
            model: nn.Module = hf.BertForMaskedLM(hf.BertConfig(vocab_size=5000))
        elif name == "GPT-2":
            ids = torch.randint(0, 5000, (1, 320))
            config = hf.GPT2Config(n_layer=12, n_embd=768, n_head=12, vocab_size=5000)
            model = hf.GPT2LMHeadModel(config)
        else:
            ids = torch.randint(0, 2000, (2, 512))
            llama = hf.LlamaConfig(
                hidden_size=512,
                num_hidden_layers=8,
                num_attention_heads=8,
                intermediate_size=1376,
                vocab_size=2000,
            )
            model = hf.LlamaForCausalLM(llama)
        return Case(model, (), {"input_ids": ids, "labels": ids})
    vision = import_module("torchvision.models")
    images: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
        "ViT-B/16": lambda: (vision.vit_b_16(), torch.randn(4, 3, 224, 224)),
        "ResNet-50": lambda: (resnet50(), torch.randn(16, 3, 96, 96)),
        "ConvNeXt-T": lambda: (vision.convnext_tiny(), torch.randn(4, 3, 128, 128)),
        "MobileNetV2": lambda: (vision.mobilenet_v2(), torch.randn(8, 3, 96, 96)),
        "Swin-T": lambda: (vision.swin_t(), torch.randn(4, 3, 128, 128)),
        "DenseNet-121": lambda: (vision.densenet121(), torch.randn(8, 3, 96, 96)),
    }
    model, image = images[name]()
    return Case(model, (image,), {}, loss=lambda output: output.square().mean())


def rows_of(name: str, budgets: tuple[int, ...], rounds: int) -> Iterator[str]:
    """Yield the rows of a network."""
    case = case_of(name)
    plain, model = case.model, copy.deepcopy(case.model)
    for parameter in (*plain.parameters(), *model.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    case.step(plain)
    step_time = min(_timed(lambda: case.step(plain)) for _ in range(3))
    for budget in budgets:
        for options in (True, False):
            start = time.thread_time_ns()
            try:
                chainstay.fit(
                    model,
                    case.args,
                    case.kwargs,
                    budget=f"{budget}%",
                    loss=case.loss,
                    stage_options=options,
                    progress=False,
                )
            except chainstay.InfeasibleBudgetError as refusal:
                needed = f"needs {refusal.required / 2**20:.1f}"
                yield cells(name, f"{budget} %", _word(options), "", "", needed, "", "", "")
                continue
            took = (time.thread_time_ns() - start) / step_time
            fitted: Fitted = model.chainstay  # type: ignore[assignment]  # what fit has put there
            planned, solution = fitted.plans[-1], fitted.solution
            equal = _equal(case, plain, model)
            peak = trace_memory(lambda: case.step(model), "cpu").peak_bytes + case.given_bytes
            ratios = [
                _timed(lambda: case.step(model)) / _timed(lambda: case.step(plain))
                for _ in range(rounds)
            ]
            yield cells(
                name,
                f"{budget} %",
                _word(options),
                f"{solution.makespan / (planned.plain_time or 1) - 1:+.1%}",
                f"{median(ratios) - 1:+.1%}",
                f"{peak / 2**20:.1f} of {solution.budget / 2**20:.1f}",
                str(sum(op.option > 0 for op in solution.schedule)),
                "equal" if equal else "DIFFER",
                f"{took:.0f}",
            )


def _word(options: bool) -> str:  # noqa: FBT001  # a cell
    return "yes" if options else "no"


def _timed(step: Callable[[], None]) -> int:
    start = time.thread_time_ns()
    step()
    return time.thread_time_ns() - start


def _equal(case: Case, plain: nn.Module, model: nn.Module) -> bool:
    """Whether one step leaves the same gradients, buffers and random state, bit for bit."""
    model.load_state_dict(plain.state_dict())
    states = []
    for module in (plain, model):
        module.zero_grad()
        torch.manual_seed(1)
        case.step(module)
        states.append(torch.get_rng_state())
    pairs = [*zip(plain.parameters(), model.parameters(), strict=True)]
    gradients = [(one.grad, other.grad) for one, other in pairs]
    buffers = [*zip(plain.buffers(), model.buffers(), strict=True), tuple(states)]
    return all(
        one is other or torch.equal(one, other)  # type: ignore[arg-type]  # both None, or neither
        for one, other in (*gradients, *buffers)
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", choices=(*NETWORKS, *OTHERS), default=NETWORKS)
    parser.add_argument("--budgets", nargs="*", type=int, default=BUDGETS, help="per cent of plain")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps of each")
    parser.add_argument("--output", type=Path, help="a file for the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [machine(torch.device("cpu")), "", *heading(*_COLUMNS)]
    print(*lines, sep="\n", flush=True)
    for name in given.networks:
        for row in rows_of(name, tuple(given.budgets), given.rounds):
            print(row, flush=True)
            lines.append(row)
            if given.output is not None:
                given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
