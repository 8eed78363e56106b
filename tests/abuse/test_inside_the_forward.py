"""Forwards that do more than compute: torch's control flow, gradients, exceptions of their own."""

from __future__ import annotations

import logging
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import chainstay
from assertions import halved_if_large
from chainstay.errors import UnsupportedModelError
from torch_release import IS_TORCH_2_6
from twins import (
    SAMPLE,
    Call,
    Stack,
    batch,
    differences,
    picture,
    require_refused,
    require_trains_equally,
    seed,
    shown,
)
from zoo import loss_of

X = SAMPLE.args[0]


class Wide(Stack):
    """Has something to recompute."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)))


class Branching(Wide):
    """Chooses by a value, as exported models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x)
        chosen: torch.Tensor = torch.cond(out.sum() > 0, torch.sin, torch.cos, (out,))
        return chosen


class Mapped(Wide):
    """Takes the rows of a batch one by one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: Any = torch._higher_order_ops.map  # has no public name yet
        out: torch.Tensor = rows(torch.sin, super().forward(x))
        return out


has_control_flow = pytest.mark.skipif(
    IS_TORCH_2_6, reason="torch before 2.7 takes no gradients through it"
)


@pytest.mark.long
@has_control_flow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, in both
@pytest.mark.parametrize("make", [Branching, Mapped])
def test_control_flow_around_the_blocks(make: type[Wide]) -> None:
    """torch traces it whenever it runs, which no plan does; the blocks are planned all the same."""
    fitted = require_trains_equally(make, SAMPLE)
    assert "traces it anew" in str(shown(fitted))


@has_control_flow
@pytest.mark.parametrize("make", [Branching, Mapped])
def test_control_flow_in_one_graph(make: type[Wide]) -> None:
    require_refused(make, SAMPLE, "traces it anew whenever it runs", by="graph")


class Printing(Wide):
    """Tells the size of what it gets, as people do who look for a fault."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("got", x.shape, x.dtype)  # noqa: T201  # what is tested
        return super().forward(x)


class Logging(Wide):
    """The same by the functions of a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logging.info("got %s", x.shape)  # noqa: LOG015  # what is tested
        return super().forward(x)


@pytest.mark.skipif(not hasattr(config, "ignore_logging_functions"), reason="torch refuses them")
@pytest.mark.parametrize("make", [Printing, Logging])
def test_sizes_that_are_told(make: type[Wide]) -> None:
    require_trains_equally(make, SAMPLE, by="graph")


class Forces(Wide):
    """The output is a slope, as in models of molecules."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        energy = super().forward(x).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_gradients_taken_inside(by: Any) -> None:
    """The refusal says so, and no setting of torch's is told."""
    require_refused(Forces, SAMPLE, r"gradients (are taken )?inside of the forward", by=by)
    model = chainstay.fit(Forces(), budget="60%", progress=False, by=by)
    with pytest.raises(UnsupportedModelError, match=r"inside of the forward") as refusal:
        model(X)
    assert "trace_autograd_ops" not in str(refusal.value)


ONE = SimpleNamespace(scale=1.0)


class Conditioned(Wide):
    """What another model has computed is an attribute, and a part of an object."""

    cond: dict[str, torch.Tensor]

    def forward(self, x: torch.Tensor, more: SimpleNamespace = ONE) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) + self.cond["shift"]) * more.scale
        self.norm = x.norm().item()  # no full graph
        return x


def test_a_condition_that_another_model_computes() -> None:
    """Planning by blocks runs the model backward, but never what made its condition."""

    def trained(budget: str | None) -> Any:
        seed(0)
        model, encoder = Conditioned(), nn.Linear(3, 16)
        if budget is not None:
            chainstay.fit(model, budget=budget, progress=False, repeats=1)
        found = []
        for number in range(3):
            model.cond = {"shift": encoder(torch.full((3,), number + 1.0))}
            more = SimpleNamespace(scale=encoder(torch.ones(3)))
            loss = loss_of(model(X, more))
            loss.backward()
            found += [loss.detach(), *(leaf.grad for leaf in encoder.parameters())]
        assert budget is None or shown(model).plans
        return picture(found, list(model.parameters()))

    assert differences(trained(None), trained("70%")) == []


class BadBatchError(Exception):
    """The user's own."""


class Picky(Wide):
    """Refuses some batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 7:
            raise BadBatchError("seven")
        out: torch.Tensor = super().forward(x)
        return out


@pytest.mark.parametrize("loss", [None, loss_of], ids=["no loss", "loss"])
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_an_exception_is_the_models_own(by: Any, loss: Any) -> None:
    """A loop that leaves out bad batches catches what it did without a plan."""
    model = Picky()
    chainstay.fit(model, (X,), budget="70%", loss=loss, by=by, progress=False, repeats=1)
    with pytest.raises(BadBatchError, match="seven"):
        model(X[:7])
    with pytest.raises(RuntimeError, match="mat1") as failure:
        model(X[:, :5])
    assert not isinstance(failure.value, chainstay.ChainstayError)


def test_a_loss_that_fails_on_what_blocks_give() -> None:
    targets = torch.arange(64)  # 16 classes there are
    with pytest.raises(UnsupportedModelError, match=r"the loss fails .* out of bounds"):
        chainstay.fit(
            Wide(),
            (X,),
            budget="70%",
            loss=lambda output: nn.functional.cross_entropy(output, targets),
            by="blocks",
            progress=False,
        )


def scripted_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


class Scripted(nn.Module):
    """Has a part, or parts of its blocks, or a function, that no graph can look into."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        part = torch.jit.script(nn.Linear(16, 16))
        layers: list[nn.Module] = [nn.Linear(16, 16) for _ in range(4)]
        if kind == "blocks":
            layers = [torch.jit.script(layer) for layer in layers]
        self.layers = nn.ModuleList(layers)
        self.part = part if kind == "part" else nn.Linear(16, 16)
        if kind == "traced part":
            self.part = torch.jit.trace(self.part, batch(8, 16))
        if kind == "hooked part":
            self.part.register_full_backward_hook(lambda *_: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.part(x)
        return _scripted(x) if self.kind == "function" else x


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a test's filters are not there yet
    _scripted = torch.jit.script(scripted_tanh)


@pytest.mark.parametrize(
    ("kind", "by", "reason"),
    [
        ("part", "graph", r"calls part, compiled by torch\.jit, which no graph can"),
        ("traced part", "graph", r"calls part, compiled by torch\.jit, which no graph can"),
        ("hooked part", "graph", r"a module has a backward hook .*, which no graph takes in"),
        (
            "blocks",
            "auto",
            r"calls layers\.0 and 3 more, .* be stages: .* layers\.0 and 3",
        ),
        ("blocks", "blocks", r"layers\.0 and 3 more: torch\.jit has compiled it"),
        (
            "function",
            "graph",
            r"calls _scripted, compiled by torch\.jit\.script, which gives",
        ),
    ],
)
def test_what_is_scripted_is_named(kind: str, by: str, reason: str) -> None:
    require_refused(lambda: Scripted(kind), SAMPLE, reason, by=by)


class Recurrent(nn.Module):
    """Runs over sequences of several lengths."""

    def __init__(self, *, packs: bool) -> None:
        super().__init__()
        self.packs = packs
        self.layer = nn.GRU(16, 16, batch_first=True)
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.packs:
            packed = pack_padded_sequence(x, lengths, batch_first=True)
            return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]
        state = self.cell(x[:, 0])
        for step in range(int((lengths.max() - (state > 1).sum()).item())):
            state = self.cell(x[:, step], state)
        return state


@pytest.mark.parametrize(
    ("packs", "reason"),
    [
        (True, r"packs sequences .* give the recurrent layer the padded batch, and mask"),
        (False, r"by a Python bool or number that the module keeps, or that the call is given"),
    ],
)
def test_recurrent_models_are_told_what_to_do(*, packs: bool, reason: str) -> None:
    call = Call((batch(2, 4, 16), torch.tensor([4, 3])))
    require_refused(lambda: Recurrent(packs=packs), call, reason, by="graph")


def test_a_loop_over_a_number_that_is_read_from_an_activation_is_planned_by_modules() -> None:
    call = Call((batch(2, 4, 16), torch.tensor([4, 3])))
    require_trains_equally(lambda: Recurrent(packs=False), call)


def test_a_loop_over_a_number_that_the_call_is_given_is_planned() -> None:
    class Loop(Recurrent):
        def forward(self, x: torch.Tensor, length: int) -> torch.Tensor:  # type: ignore[override]
            state = torch.zeros_like(x[:, 0])
            for step in range(length):
                state = self.cell(x[:, step], state)
            return state

    require_trains_equally(lambda: Loop(packs=False), Call((batch(2, 4, 16), 4)))


class Passing(nn.Module):
    """Layers that give back what they got, between others; one draws random numbers at times."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)), nn.Dropout(0))
            for _ in range(4)
        ]
        self.layers = nn.ModuleList([*(layer for pair in layers for layer in pair), nn.Identity()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("chance", [0.0, 0.5])
def test_blocks_that_give_back_what_they_got(chance: float) -> None:
    """They are no stages by blocks: no gradient comes to them."""

    def step(model: Any, number: int) -> torch.Tensor:
        model.layers[3].p = chance * (number == 1)
        loss = loss_of(model(X))
        loss.backward()
        return loss

    fitted = require_trains_equally(Passing, SAMPLE, step, by="blocks")
    assert len(shown(fitted).plans[0].profile) == 5  # with the loss


def test_a_refused_budget_tells_why_stages_are_blocks() -> None:
    model = Conditioned()
    model.cond = {"shift": torch.zeros(16)}
    with pytest.raises(chainstay.InfeasibleBudgetError, match=r"Its blocks, .*(\(item\)|value)"):
        chainstay.fit(model, (X,), budget=1000, progress=False, repeats=1)
    with pytest.raises(chainstay.InfeasibleBudgetError, match=r"shrink the batch\.$"):
        chainstay.fit(model, (X,), budget=1000, progress=False, repeats=1, by="blocks")


class Jittering(Wide):
    """Catches what a factorisation raises at some values, and takes another matrix."""

    def forward(self, x: torch.Tensor, shift: float | torch.Tensor = 0.0) -> torch.Tensor:
        out: torch.Tensor = super().forward(x)
        matrix = out.T @ out + torch.eye(16)
        try:
            root = torch.linalg.cholesky(matrix - shift * torch.eye(16))
        except RuntimeError:
            root = torch.linalg.cholesky(matrix)
        return root


class Hoping(Wide):
    """Catches its own assertion at some values, and goes another way."""

    def forward(self, x: torch.Tensor, most: float | torch.Tensor = 0.0) -> torch.Tensor:
        return halved_if_large(super().forward(x), most)


@pytest.mark.parametrize(
    ("kind", "values", "error"),
    [
        (Jittering, (0.0, 99.0, 0.0), "an error of linalg_cholesky"),
        (Hoping, (9e9, -9e9, 9e9), "an assertion"),
    ],
)
def test_an_error_by_values_that_the_model_catches(
    kind: type[Wide], values: tuple[float, ...], error: str
) -> None:
    """A graph raises it; the first calls do not show that."""
    given = torch.tensor(values)

    def step(model: nn.Module, number: int) -> torch.Tensor:
        loss = loss_of(model(X, given[number]))
        loss.backward()
        return loss

    call = Call((X, given[0]))
    require_trains_equally(kind, call, step, recomputed=False)
    require_refused(kind, call, rf"catches {error}, .*\.py:\d", by="graph")


class Trying(Wide):
    """Knows another way where torch has no kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            try:
                more = torch.special.ndtri(x.half()).sum()
            except RuntimeError:
                more = x.sum()
            x = torch.tanh(layer(x) + more)
        return x


@pytest.mark.long
def test_an_error_of_torch_that_the_model_catches() -> None:
    require_trains_equally(Trying, SAMPLE)
    require_refused(Trying, SAMPLE, r"is not the model, which catches an error: ", by="graph")


class Built(Wide):
    """Makes a layer by what it gets first."""

    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.head is None:
            self.head = nn.Linear(x.shape[1], 3)
        out: torch.Tensor = self.head(super().forward(x))
        return out


def test_layers_that_the_first_call_makes() -> None:
    require_refused(Built, SAMPLE, r"makes parameters.*under torch\.no_grad", by="graph")
    model = chainstay.fit(Built(), budget="60%", progress=False, repeats=1, by="graph")
    with torch.no_grad():
        model(X)
    loss_of(model(X)).backward()
    assert shown(model).plans


class Recursive(Wide):
    """Calls itself on half of the batch."""

    def forward(self, x: torch.Tensor, depth: int = 1) -> torch.Tensor:
        less: torch.Tensor = self(x[::2], depth - 1).mean(0) if depth else x.mean(0)
        out: torch.Tensor = super().forward(x + less)
        return out


def test_a_model_that_calls_itself() -> None:
    def trained(budget: str | None) -> Any:
        seed(0)
        model = Recursive()
        if budget is not None:
            chainstay.fit(model, budget=budget, progress=False, repeats=1)
        losses = []
        for _ in range(3):
            losses.append(loss_of(model(X)))
            losses[-1].backward()
        return picture([loss.detach() for loss in losses], list(model.parameters()))

    assert differences(trained(None), trained("90%")) == []
    model = chainstay.fit(Recursive(), budget="90%", progress=False, repeats=1, by="graph")
    with pytest.raises(UnsupportedModelError, match="calls a forward that no graph takes in"):
        model(X)
