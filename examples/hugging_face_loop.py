"""The Hugging Face Trainer with one callback more, in place of `gradient_checkpointing`.

Nothing is downloaded: the model is a small GPT-2 with random weights.

    python examples/hugging_face_loop.py

Where it ends in `operator torchvision::nms does not exist`, or GPT2LMHeadModel cannot be imported,
torchvision was built for another torch, as its wheel for CUDA beside a torch for CPUs: install the
one of your torch's index, for CPUs https://download.pytorch.org/whl/cpu.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from chainstay.integrations.first_call import FitSettings
from chainstay.integrations.transformers import FitCallback

TOKENS = torch.arange(16 * 64).reshape(16, 64) * 7 % 500
ROWS = [{"input_ids": row, "labels": row} for row in TOKENS]
SETTINGS = FitSettings(budget="60%")


class Tell(TrainerCallback):  # type: ignore[misc]  # the library's own types are not read
    """Keeps the plan while there is one: when training ends, the model is as it was."""

    said = "plain"

    def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
        """After every step."""
        self.said = str(getattr(model, "chainstay", "plain"))


def trained(callbacks: list[Any], folder: str) -> tuple[nn.Module, str]:
    """A fresh model after four steps, and its plan."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=4, n_head=4, n_embd=64, vocab_size=500, n_positions=64)
    )
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    tell = Tell()
    trainer = Trainer(model, arguments, train_dataset=ROWS, callbacks=[*callbacks, tell])
    trainer.train()
    return model, tell.said


def main() -> None:
    """Train without and with a plan, and compare."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, _ = trained([], folder)
        planned, plan = trained([FitCallback(SETTINGS)], folder)
    is_equal = all(map(torch.equal, plain.state_dict().values(), planned.state_dict().values()))
    print(plan)
    print(f"weights equal: {'yes' if is_equal else 'NO'}")


if __name__ == "__main__":
    main()
