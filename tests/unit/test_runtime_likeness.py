"""Whatever changes of a model between two steps is seen before a plan runs, or read anew in it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.extraction import extract
from chainstay.runtime.extraction.likeness import Likeness
from chainstay.runtime.situation import Situation, modules_of
from fault_conditions import EDITS

BATCH = torch.linspace(-3, 3, 32).reshape(4, 8)
BY_LIKENESS = {
    "a layer is replaced",
    "an activation is replaced",
    "a layer is appended",
    "a forward hook is added",
    "a backward hook is added",
    "a global hook is added",
    "dropout is raised",
    "a momentum is changed",
    "a parametrization is added",
    "a layer's forward is replaced",
    "a part is switched to evaluation",
}
BY_SITUATION = {
    "a layer is appended",
    "requires_grad is flipped",
    "the type is another",
    "a parametrization is added",
    "a part is switched to evaluation",
}
READ_ANEW = {
    "a parameter is re-assigned",
    "a parameter's data are re-assigned",
    "a buffer is re-assigned",
    "a gradient hook is added",
}


class Scaled(nn.Module):
    """A number of the user's own."""

    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    blocks = [
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), Scaled())
        for _ in range(3)
    ]
    return nn.Sequential(*blocks, nn.Linear(8, 8))


def is_kept(likeness: Likeness) -> bool:
    try:
        likeness.require_kept()
    except PlanMismatchError:
        return False
    return True


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_is_seen_where_it_matters(name: str) -> None:
    model = make_model()
    likeness = Likeness.of(model)
    call: tuple[tuple[torch.Tensor], dict[str, Any]] = ((BATCH,), {})
    before = Situation.now(*call, modules_of(model))
    undo = EDITS[name](model)
    now = Situation.now(*call, modules_of(model))
    assert before.is_now(*call, modules_of(model)) == (now == before) == (name not in BY_SITUATION)
    assert is_kept(likeness) == (name not in BY_LIKENESS)
    assert (name in READ_ANEW) == (name not in BY_LIKENESS | BY_SITUATION)
    undo()
    assert before.is_now(*call, modules_of(model)) == (
        before == Situation.now(*call, modules_of(model))
    )
    assert is_kept(likeness) or name == "a parametrization is added"  # it leaves another class


@pytest.mark.parametrize(
    "call",
    [
        ((BATCH[:2],), {}),
        ((BATCH.double(),), {}),
        ((BATCH.clone().requires_grad_(),), {}),
        ((BATCH, BATCH), {}),
        ((), {"x": BATCH}),
        (([BATCH],), {}),
    ],
    ids=["rows", "type", "gradient", "number", "keyword", "nesting"],
)
def test_another_call_is_another_situation(call: tuple[Any, Any]) -> None:
    modules = modules_of(make_model())
    before = Situation.now((BATCH,), {}, modules)
    assert before.is_now((BATCH.flip(0),), {}, modules)
    assert not before.is_now(*call, modules)
    assert Situation.now(*call, modules) != before
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not before.is_now((BATCH,), {}, modules)


def set_value(path: str, name: str, value: object) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model.get_submodule(path), name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("1.1", "eps", 0.5), r"1\.1 was changed .*in a BatchNorm1d, eps is 0.5 and was"),
        (set_value("2.3", "p", 0.5), r"2\.3 was changed .*in a Dropout, p is 0.5 and was 0.1"),
        (set_value("0.4", "by", 3.0), r"0\.4 was changed .*in a Scaled, by is 3.0 and was 2.0"),
        (lambda model: delattr(model[0][4], "by"), "in a Scaled, by is None and was 2.0"),
        (
            lambda model: model[1][2].register_module("more", nn.Tanh()),
            "more of Tanh was replaced,",
        ),
        (lambda model: delattr(model[1], "2"), "the module 2 of Sequential was replaced, added or"),
        (lambda model: model[1][3].eval(), r"1\.3 was extracted in training mode"),
        (lambda model: model.eval(), "the model was extracted in training mode"),
        (lambda model: model[3].register_forward_hook(print), "3 has forward hooks, registered"),
        (set_value("1.0", "forward", torch.tanh), "a Linear has another forward"),
    ],
)
def test_what_changed_is_said(change: Callable[[Any], None], message: str) -> None:
    model = make_model()
    chain = extract(model, (BATCH,))
    change(model)
    with pytest.raises(PlanMismatchError, match=message):
        chain(BATCH)


def test_no_number_stays_the_same_number() -> None:
    """NaN differs from itself, and is nothing that has changed."""
    model = nn.Sequential(nn.Linear(8, 8), Scaled(math.nan))
    likeness = Likeness.of(model)
    likeness.require_kept()
    model[1].by = 1.0  # type: ignore[assignment]
    assert not is_kept(likeness)


def test_a_chain_is_not_run_in_place_of_a_model_with_hooks() -> None:
    model = make_model()
    chain = extract(model, (BATCH,))
    handle = model.register_forward_hook(lambda *_: None)
    with pytest.raises(PlanMismatchError, match="the model has forward hooks, registered after"):
        chain(BATCH)
    handle.remove()
    chain(BATCH)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's own, when copied
def test_a_copy_is_looked_at_by_itself() -> None:
    model = make_model()
    chain = extract(model, (BATCH,))
    copied = copy.deepcopy(chain)
    copied.model[0][3].p = 0.7  # type: ignore[index]
    chain(BATCH)
    with pytest.raises(PlanMismatchError, match=r"0\.3 was changed after extraction"):
        copied(BATCH)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # still met
def test_scripted_modules_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), torch.jit.script(nn.Tanh()))
    with pytest.raises(UnsupportedModelError, match="1 is scripted, so that nobody sees"):
        extract(model, (BATCH,))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # likewise
def test_stages_that_are_alike_share_their_code() -> None:
    """And compute what their graphs say."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Tanh())
    chain = extract(model, (BATCH.clone().requires_grad_(),))
    programs = [stage.program for stage in (*chain.stages, *copy.deepcopy(chain).stages)]
    assert len({program.function for program in programs}) <= 3 < len(programs)
    for program in programs:
        inputs = (BATCH, *(source.read() for source in program.reads))
        (found,), (expected,) = program.function(program.body, *inputs), program.body(*inputs)
        assert torch.equal(found, expected)
