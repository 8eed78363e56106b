"""The CTC loss, whose saved tensors have sizes by values, in a forward and behind one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay import fit
from chainstay.runtime.devices.memory import trace_memory

FRAMES, WIDTH, SYMBOLS, LONGEST = 40, 32, 12, 9


class Recognizer(nn.Module):
    """Layers over frames, and scores for symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU())
            for _ in range(4)
        )
        self.back = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def scores(self, frames: torch.Tensor) -> torch.Tensor:
        for layer, back in zip(self.layers, self.back, strict=True):
            frames = frames + back(layer(frames))
        scores: torch.Tensor = self.head(frames).log_softmax(-1)
        return scores

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.scores(frames)


class WithItsLoss(Recognizer):
    """The mean of the losses."""

    def forward(self, frames: torch.Tensor, *alignment: torch.Tensor) -> torch.Tensor:
        targets, lengths, wanted = alignment
        return functional.ctc_loss(self.scores(frames), targets, lengths, wanted).reshape(())


class WithALossEach(Recognizer):
    """The sum of all losses, each squared."""

    def forward(self, frames: torch.Tensor, *alignment: torch.Tensor) -> torch.Tensor:
        criterion = nn.CTCLoss(reduction="none", zero_infinity=True)
        losses: torch.Tensor = criterion(self.scores(frames), *alignment)
        return losses.reshape(6).square().sum()


class OfOneSequence(Recognizer):
    """Arguments by position, and a sequence that is in no batch, of a known length."""

    def forward(self, frames: torch.Tensor, *alignment: torch.Tensor) -> torch.Tensor:
        scores, (targets, lengths, wanted) = self.scores(frames), alignment
        losses = functional.ctc_loss(scores, targets, lengths, wanted, 0, "none", True)  # noqa: FBT003  # as people write it
        return losses[3] + functional.ctc_loss(
            scores[:, 0], targets[0], lengths[0], torch.tensor(LONGEST)
        )


def drawn(seed: int, longest: int = LONGEST) -> tuple[torch.Tensor, ...]:
    """Return frames, targets, and the lengths of both, the targets' at most so long."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(FRAMES, 6, WIDTH, generator=generator)
    targets = torch.randint(1, SYMBOLS, (6, LONGEST), generator=generator)
    lengths = torch.randint(30, FRAMES + 1, (6,), generator=generator)
    wanted = torch.randint(1, longest + 1, (6,), generator=generator)
    wanted[0] = longest
    return frames, targets, lengths, wanted


def trained(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the loss and all gradients, which are left at ``None``."""
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    model.zero_grad()
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", [WithItsLoss, WithALossEach, OfOneSequence])
def test_a_loss_in_the_forward_is_part_of_the_graph(kind: type[Recognizer]) -> None:
    """One plan serves targets of all lengths."""
    torch.manual_seed(0)
    plain = kind()
    model = fit(copy.deepcopy(plain), drawn(0), budget=0.5, progress=False)
    for number in range(LONGEST):
        call = drawn(number, LONGEST - number)
        found, expected = trained(model, model(*call)), trained(plain, plain(*call))
        assert all(map(torch.equal, found, expected)), number
    shown: Any = model.chainstay
    assert len(shown.plans) == 1
    assert "by blocks" not in str(shown)


def test_a_loss_behind_the_model_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """It takes more memory here than a cross-entropy, which counts where none is given."""
    torch.manual_seed(0)
    plain = Recognizer()
    frames, targets, lengths, wanted = drawn(0)

    def loss_of(scores: torch.Tensor) -> torch.Tensor:
        return functional.ctc_loss(scores, targets, lengths, wanted)

    model = fit(copy.deepcopy(plain), (frames,), budget="60%", loss=loss_of)
    assert "without loss=" not in capsys.readouterr().err

    def step() -> None:
        loss_of(model(frames)).backward()

    step()
    shown: Any = model.chainstay
    assert trace_memory(step, "cpu").peak_bytes <= shown.solution.peak_bytes
    model.zero_grad()
    expected = trained(plain, loss_of(plain(frames)))
    assert all(map(torch.equal, trained(model, loss_of(model(frames))), expected))
