"""Three small models, trained plainly and by a plan, compared bit for bit under any condition.

A condition is a way to prepare a model, to take a step, or both. Models are fitted once per
share of plain training's memory; tests train deep copies of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay.dp import DP
from chainstay.fitting.fitted import Fitted
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule
from chainstay.solution import Claim
from option_families import Residual
from zoo import loss_of

__all__ = [
    "BLOCKS_IN_PART",
    "IN_PART",
    "PLANS",
    "RECOMPUTING",
    "SHARES",
    "SUBJECTS",
    "Record",
    "Sample",
    "ShareOf",
    "differences",
    "fit_to",
    "keeps_in_part",
    "pair",
    "plain_step",
    "recomputes",
    "require_equal",
    "require_plan",
    "shown",
    "trained",
]

torch.set_num_threads(1)  # two threads on a shared machine wait longer than they work

SHARES: Final = {"all": Fraction(1), "60 %": Fraction(3, 5), "least": Fraction(0)}
"""Budgets as shares of plain training; what does not fit gets the least that does."""
IN_PART: Final = "in part"
"""A plan under which some stages are kept in part, by their options."""
BLOCKS_IN_PART: Final = "in part, by blocks"
"""The same while the model's own forward calls its blocks."""
PLANS: Final = (*SHARES, IN_PART, BLOCKS_IN_PART)
"""The kinds of plans that training is tried under."""
RECOMPUTING: Final = "90%"
"""The budget for plans of smaller shares: where plain training fits, no method is asked."""

Module = TypeVar("Module", bound=nn.Module)
Record = dict[str, torch.Tensor]
Step = Callable[[nn.Module, "Sample", torch.optim.Optimizer], torch.Tensor]
Prepare = Callable[[nn.Module], object]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Sample:
    """How a model is called."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def loss(self, model: nn.Module) -> torch.Tensor:
        """Of one forward."""
        return loss_of(model(*self.args, **self.kwargs))


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = self.mix(self.before(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias
        x = x + self.dropout(self.project(self.dropout(scores.softmax(-1)) @ value))
        wide = functional.gelu(self.wide(self.between(x)))
        total: torch.Tensor = x + self.dropout(self.narrow(wide))
        return total


class Transformer(nn.Module):
    """A GPT in small: tokens, a keyword argument, dropout, tied weights, a dict returned."""

    def __init__(self, depth: int = 3, width: int = 16, words: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        title: str = "",  # noqa: ARG002  # a text, as captions are
    ) -> dict[str, torch.Tensor]:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, bias)
        x = self.norm(x)
        return {"logits": self.head(x), "hidden": x}


class Convolutional(nn.Module):
    """A ResNet in small with a skip from end to end; a tuple is returned."""

    def __init__(self, depth: int = 3, width: int = 6) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width))
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(width * 16, 5)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        first = self.enter(image)
        x = functional.max_pool2d(self.blocks(first) + first, 2)
        return self.head(self.drop(x.flatten(1))), [x, None]


def layered() -> nn.Sequential:
    """A chain of modules as it is, with changes in place where it might be cut."""
    layers: list[nn.Module] = [nn.Linear(12, 24)]
    for _ in range(3):
        layers += [nn.ReLU(inplace=True), nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(24, 4))


def _wave(*shape: int) -> torch.Tensor:
    return torch.linspace(-3, 5, torch.Size(shape).numel()).sin().reshape(shape)


SUBJECTS: Final[Mapping[str, tuple[Callable[[], nn.Module], Sample]]] = {
    "transformer": (
        Transformer,
        Sample((torch.arange(64).reshape(4, 16) * 7 % 24,), {"bias": _wave(16, 16)}),
    ),
    "convolutional": (Convolutional, Sample((_wave(16, 3, 8, 8),))),
    "layered": (layered, Sample((_wave(256, 12),))),
}


@dataclass(frozen=True)
class ShareOf:
    """A method that makes do with a share of the budget, or with the least that there is."""

    share: Fraction

    def __call__(
        self,
        profile: ChainProfile,
        budget: int,
        *,
        hint: Schedule | None = None,  # noqa: ARG002  # as the protocol has it
    ) -> Claim:
        wanted = max(chainstay.least_budget(profile), int(self.share * budget))
        return replace(DP()(profile, min(budget, wanted)), lower_bound=0)


def fit_to(model: Module, sample: Sample | None, share: str) -> Module:
    """`model`, fitted; plans for other situations will have the same share, if they need one.

    Without a sample, budgets are shares of what the first training call needs.
    """
    call = () if sample is None else (sample.args, sample.kwargs)
    if share == IN_PART:
        return chainstay.fit(model, *call, budget="85%", method="dp", repeats=1)
    if share == BLOCKS_IN_PART:  # what passes between kept blocks counts until their backward
        return chainstay.fit(model, *call, budget="88%", method="dp", by="blocks", repeats=1)
    method = ShareOf(SHARES[share])
    budget = "100%" if share == "all" else RECOMPUTING
    return chainstay.fit(model, *call, budget=budget, method=method, repeats=1)


@cache
def _fitted_once(subject: str, share: str) -> nn.Module:
    return fit_to(_plain(subject), SUBJECTS[subject][1], share)


def _plain(subject: str) -> nn.Module:
    torch.manual_seed(0)
    return SUBJECTS[subject][0]().train()


def pair(subject: str, share: str) -> tuple[nn.Module, nn.Module, Sample]:
    """A plain model, an equal one that is fitted, and how they are called."""
    return _plain(subject), copy.deepcopy(_fitted_once(subject, share)), SUBJECTS[subject][1]


def shown(model: nn.Module) -> Fitted:
    """What is behind ``model.chainstay``."""
    there = model.chainstay
    assert isinstance(there, Fitted)
    return there


def recomputes(model: nn.Module) -> bool:
    """Whether the plan used last runs any stage twice."""
    schedule = shown(model).solution.schedule
    forwards = [op.stage for op in schedule if op.kind.is_forward]
    return len(set(forwards)) < len(forwards)


def keeps_in_part(model: nn.Module) -> bool:
    """Whether the plan used last keeps any stage under an option."""
    return any(op.option for op in shown(model).solution.schedule)


def require_plan(model: nn.Module, share: str) -> None:
    """The plan used last must be of the kind that `share` says."""
    if share in (IN_PART, BLOCKS_IN_PART):
        # In layers and blocks this small, noise decides between a replay and a stage run again.
        is_small = isinstance(model, nn.Sequential) or len(list(model.children())) == 1
        is_small |= share == BLOCKS_IN_PART
        assert keeps_in_part(model) or (is_small and recomputes(model)), "nothing is kept in part"
    else:
        assert recomputes(model) == (share != "all"), "the plan is another one than meant"


def plain_step(model: nn.Module, sample: Sample, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """As in any training loop."""
    optimizer.zero_grad()
    loss = sample.loss(model)
    loss.backward()
    optimizer.step()
    return loss


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=0.01, momentum=0.9)


def trained(
    model: nn.Module,
    sample: Sample,
    step: Step = plain_step,
    make_optimizer: MakeOptimizer = _sgd,
    *,
    seed: int = 7,
) -> Record:
    """All that three steps leave behind, step by step."""
    torch.manual_seed(seed)
    optimizer, found = make_optimizer(model), {}
    for number in range(3):
        loss = found[f"loss {number}"] = step(model, sample, optimizer).detach()
        assert loss.isfinite().all(), "no number is equal to NaN"
        for name, parameter in model.named_parameters():
            found[f"parameter {number} {name}"] = parameter.detach().clone()
            if parameter.grad is not None:
                found[f"gradient {number} {name}"] = parameter.grad.clone()
        found |= {
            f"buffer {number} {name}": buffer.to_dense().clone()
            for name, buffer in model.named_buffers()
        }
        found[f"random state {number}"] = torch.get_rng_state()
    return found


def differences(one: Record, other: Record) -> list[str]:
    """Names of what is not equal in both."""
    return [
        name
        for name in dict.fromkeys((*one, *other))
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]


def require_equal(
    subject: str,
    share: str,
    step: Step = plain_step,
    make_optimizer: MakeOptimizer = _sgd,
    prepare: Prepare = nn.Module.train,
    *,
    plans_there: bool = False,
) -> nn.Module:
    """Train a plain and a fitted model under the same condition; all must be equal.

    With `plans_there`, the first step under the condition plans: it needs less than others.

    Returns:
        The fitted one.
    """
    plain, planned, sample = pair(subject, share)
    if plans_there:
        fit_to(chainstay.unfit(planned), None, share)
    prepare(plain)
    prepare(planned)
    expected = trained(plain, sample, step, make_optimizer)
    found = differences(trained(planned, sample, step, make_optimizer), expected)
    assert not found, f"other bits in {', '.join(found[:5])} and more"
    require_plan(planned, share)
    return planned
