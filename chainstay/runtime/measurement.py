"""Measuring a chain of stages: the same for every kind of model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.profiles import ChainProfile
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import Subject, assemble_profile, observe_chain, trace_chain
from chainstay.runtime.environment import Traits
from chainstay.runtime.mode import Mode, Titled
from chainstay.runtime.preserve import undisturbed

__all__ = ["Measurement", "measure_subject", "measuring", "require_loss", "require_repeats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A chain and what it costs.

    Attributes:
        chain: The stages, the loss excluded.
        profile: Costs of ``len(chain.stages) + 1`` stages; the last one is the loss.
        traits: How each stage's forward touches the world, one per stage of the chain.
    """

    chain: Chain
    profile: ChainProfile
    traits: tuple[Traits, ...]


@contextmanager
def measuring(modules: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Run stages for real inside; `modules` and the world are afterwards as they were."""
    with undisturbed(modules, device), torch.enable_grad():
        if device.type != "cuda":
            yield
            return
        with torch.cuda.device(device):  # its current stream is timed
            yield


def measure_subject(subject: Subject, modules: tuple[Titled, ...], repeats: int) -> Measurement:
    """Time and memory of every stage; call it inside `measuring`.

    Args:
        subject: What to measure.
        modules: Those whose mode matters.
        repeats: Timed runs of each stage.

    Raises:
        UnsupportedModelError: A stage fails, or cannot be run again; the text names it.
    """
    mode = Mode.now(modules, subject.device)
    observed = observe_chain(subject, repeats)
    memories = trace_chain(observed, subject)
    chain = Chain(
        stages=tuple(stage for stage in subject.stages if not stage.is_loss),
        layouts=tuple(map(TensorLayout.of, subject.source)),
        device=subject.device,
        mode=mode,
        modules=modules,
    )
    return Measurement(
        chain=chain,
        profile=assemble_profile(observed, memories, subject, mode.autocast),
        traits=tuple(each.traits for each in observed if not each.stage.is_loss),
    )


def require_repeats(repeats: object) -> None:
    """Refuse anything but a positive number of timed runs."""
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is {repeats!r}, must be a whole number, at least 1")


def require_loss(loss: object) -> None:
    """Refuse a loss that cannot be called.

    Raises:
        UnsupportedModelError: It is a class, or not callable.
    """
    if isinstance(loss, type):
        raise UnsupportedModelError(
            f"the loss is the class {loss.__name__}, must be a function or an instance; write "
            f"lambda output: {loss.__name__}()(output, targets)"
        )
    if loss is not None and not callable(loss):
        raise UnsupportedModelError(
            f"the loss is a {type(loss).__name__}, must be callable: from the model's output "
            "to one number"
        )
