"""Lightning's Trainer with one callback more: the same weights, within the budget.

Run it: python examples/lightning_loop.py

Where it ends in `operator torchvision::nms does not exist`,
torchvision was built for another torch, as its wheel for CUDA beside a torch for CPUs: install the
one of your torch's index, for CPUs https://download.pytorch.org/whl/cpu.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from chainstay.integrations.first_call import FitSettings
from chainstay.integrations.lightning import FitCallback
from plain_loop import convolutional

SETTINGS = FitSettings(budget="50%")


class Classifier(LightningModule):  # type: ignore[misc]  # the library's own types are not read
    """As any other; the part to be fitted is called as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = convolutional()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Tell(Callback):  # type: ignore[misc]  # likewise
    """Prints the plan while there is one: afterwards the module is as it was."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """After the last batch."""
        print(getattr(pl_module.model, "chainstay", "plain"))


def trained(callbacks: list[Any]) -> Classifier:
    """A fresh model after some batches."""
    torch.manual_seed(0)
    classifier = Classifier()
    images = TensorDataset(torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[*callbacks, Tell()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(classifier, DataLoader(images, batch_size=8))
    return classifier


def main() -> None:
    """Train without and with a plan, and compare."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Lightning's advice on data loaders
    torch.set_num_threads(1)
    plain, planned = trained([]), trained([FitCallback("model", SETTINGS)])
    is_equal = all(map(torch.equal, plain.state_dict().values(), planned.state_dict().values()))
    print(f"weights and buffers equal: {'yes' if is_equal else 'NO'}")


if __name__ == "__main__":
    main()
