"""What happens to a model between planning and training: edited, switched, shared by threads.

Each condition does the same to a plain model and to its planned twin. The planned one must give
the same bits, or refuse by name, or fail as plain PyTorch fails; and once the change is undone,
its next step must be right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from chainstay.errors import ChainstayError
from fault_edits import EDITS, Edit, NotHereError, with_weight
from fault_subjects import Subject
from faults import restart, unlike, wrong_after
from training_conditions import Sample

__all__ = ["CONDITIONS", "EDITS", "condition_trial"]

Record = dict[str, torch.Tensor]
_SEED: Final = 5


@dataclass(frozen=True)
class Condition:
    """A condition.

    Attributes:
        name: For people.
        run: Takes a model, planned or plain, through it; what it leaves behind.
    """

    name: str
    run: Callable[[nn.Module, Sample], Record]


def condition_trial(subject: Subject, condition: Condition) -> list[str] | None:
    """What is wrong, in words; ``None`` where the condition does not apply."""
    restart(subject)
    found: list[Record | Exception] = []
    for model in (subject.plain, subject.planned):
        try:
            found.append(condition.run(model, subject.sample))
        except NotHereError:
            return None
        except Exception as error:  # noqa: BLE001  # compared with the other's
            found.append(error)
    plain, planned = found
    if isinstance(planned, Exception):
        is_right = isinstance(planned, ChainstayError) or type(planned) is type(plain)
        wrong = [] if is_right else [f"raised {type(planned).__name__}: {str(planned)[:200]}"]
    elif isinstance(plain, Exception):
        wrong = [f"runs where plain PyTorch raises {type(plain).__name__}: {str(plain)[:100]}"]
    else:
        wrong = unlike(plain, planned)
    return wrong + wrong_after(subject)


def _record(model: nn.Module, loss: torch.Tensor) -> Record:
    found = {"loss": loss.detach(), "random numbers": torch.get_rng_state()}
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = parameter.detach().clone()
        if parameter.grad is not None:
            found[f"gradient {name}"] = parameter.grad.clone()
    return found | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


def _whole(model: nn.Module, sample: Sample) -> Record:
    torch.manual_seed(_SEED)
    loss = sample.loss(model)
    loss.backward()
    return _record(model, loss)


def edited_before(edit: Edit) -> Callable[[nn.Module, Sample], Record]:
    """Between planning and a step."""

    def run(model: nn.Module, sample: Sample) -> Record:
        undo = edit(model)
        try:
            return _whole(model, sample)
        finally:
            undo()

    return run


def edited_between(edit: Edit) -> Callable[[nn.Module, Sample], Record]:
    """Between forward and backward."""

    def run(model: nn.Module, sample: Sample) -> Record:
        torch.manual_seed(_SEED)
        loss = sample.loss(model)
        undo = edit(model)
        try:
            loss.backward()
            return _record(model, loss)
        finally:
            undo()

    return run


def optimizes_between(model: nn.Module, sample: Sample) -> Record:
    """A step of the optimizer between forward and backward."""
    _whole(model, sample)
    loss = sample.loss(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)
    loss.backward()
    return _record(model, loss)


def poisons_input(model: nn.Module, sample: Sample) -> Record:
    """NaN in what the model is given; where that is whole numbers, in a parameter."""
    has_float = False

    def poisoned(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal has_float
        if not tensor.is_floating_point():
            return tensor
        has_float = True
        tensor = tensor.clone()
        tensor.view(-1)[:3] = float("nan")
        return tensor

    args, kwargs = tree_map_only(torch.Tensor, poisoned, (sample.args, dict(sample.kwargs)))
    if not has_float:
        raise NotHereError
    return _whole(model, Sample(args, kwargs))


def poisons_parameter(model: nn.Module, sample: Sample) -> Record:
    weight = with_weight(model).weight
    old = weight.detach().clone()
    with torch.no_grad():
        weight.view(-1)[0] = float("nan")
    try:
        return _whole(model, sample)
    finally:
        with torch.no_grad():
            weight.copy_(old)


def evaluates_between_steps(model: nn.Module, sample: Sample) -> Record:
    first = _whole(model, sample)
    model.eval()
    with torch.no_grad():
        value = sample.loss(model)
    model.train()
    return {**_whole(model, sample), "evaluated": value, "before": first["loss"]}


def evaluates_with_gradients(model: nn.Module, sample: Sample) -> Record:
    model.eval()
    try:
        return _whole(model, sample)
    finally:
        model.train()


def evaluates_within_step(model: nn.Module, sample: Sample) -> Record:
    """Switched to evaluation between forward and backward, and used."""
    torch.manual_seed(_SEED)
    loss = sample.loss(model)
    model.eval()
    try:
        with torch.no_grad():
            sample.loss(model)
        loss.backward()
    finally:
        model.train()
    return _record(model, loss)


def two_steps_at_once(model: nn.Module, sample: Sample) -> Record:
    """Both forwards, then both backwards, the first one first."""
    torch.manual_seed(_SEED)
    losses = [sample.loss(model) for _ in range(2)]
    for loss in losses:
        loss.backward()
    return _record(model, losses[0])


def nested_steps(model: nn.Module, sample: Sample) -> Record:
    torch.manual_seed(_SEED)
    outer, inner = sample.loss(model), sample.loss(model)
    inner.backward()
    outer.backward()
    return _record(model, inner)


def thrown_away(model: nn.Module, sample: Sample) -> Record:
    torch.manual_seed(_SEED)
    sample.loss(model)
    return _whole(model, sample)


def in_another_thread(model: nn.Module, sample: Sample) -> Record:
    """A whole step in a thread, of which random numbers are one and the same."""
    found: list[Record | BaseException] = []

    def run() -> None:
        try:
            found.append(_whole(model, sample))
        except BaseException as error:  # noqa: BLE001  # told by the other thread
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def backward_in_another_thread(model: nn.Module, sample: Sample) -> Record:
    torch.manual_seed(_SEED)
    loss = sample.loss(model)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return _record(model, loss)


CONDITIONS: Final = (
    *(Condition(f"{name} before a step", edited_before(edit)) for name, edit in EDITS.items()),
    *(
        Condition(f"{name} between forward and backward", edited_between(edit))
        for name, edit in EDITS.items()
        if name not in ("a gradient hook is added", "the type is another")
    ),
    Condition("the optimizer steps between forward and backward", optimizes_between),
    Condition("NaN in the input", poisons_input),
    Condition("NaN in a parameter", poisons_parameter),
    Condition("evaluation between two steps", evaluates_between_steps),
    Condition("evaluation with gradients", evaluates_with_gradients),
    Condition("evaluation between forward and backward", evaluates_within_step),
    Condition("two steps at once", two_steps_at_once),
    Condition("a step within a step", nested_steps),
    Condition("a forward thrown away", thrown_away),
    Condition("a step in another thread", in_another_thread),
    Condition("a backward in another thread", backward_in_another_thread),
)
