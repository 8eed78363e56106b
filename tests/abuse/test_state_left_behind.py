"""What a forward keeps outside of parameters and buffers is, after `fit`, as it was before.

Whether `fit` succeeds or refuses: the model, what it reaches, gradients, generators, globals and
settings are the same, and training goes on like that of a plain twin.
"""

from __future__ import annotations

import itertools
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.fitting.planner import StageSource
from twins import SAMPLE, Stack, backward_step, differences, picture, require_refused, seed, shown
from zoo import loss_of

LOG: list[float] = []
FEATURES: dict[str, Any] = {"deep": {"seen": 0}, "items": []}
EMA = torch.zeros(16)
RNG = random.Random(3)
NUMPY_RNG = np.random.default_rng(4)
CALLS = 0


class Registry:
    """An object of the program, not of the model."""

    def __init__(self) -> None:
        self.calls = 0
        self.losses: list[torch.Tensor] = []

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1 + self.calls / 100)


REGISTRY = Registry()


class Keeping(Stack):
    """Keeps things in many places; each subclass uses one of them in `keep`."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.state: torch.Tensor | None = None
        self.states: list[torch.Tensor] = []
        self.cache: dict[Any, Any] = {}
        self.logs: list[Any] = []
        self.steps = 0
        self.counter = itertools.count()
        self.generator = torch.Generator().manual_seed(7)
        self.random = random.Random(8)
        self.numpy = np.random.default_rng(9)
        self.array = np.zeros(3)
        self.hidden = [nn.BatchNorm1d(16)]
        self.plain = torch.zeros(16)
        self.registry = Registry()
        self.seen: set[int] = set()
        self.weak: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("queue", torch.zeros(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.keep(torch.tanh(layer(x)))
        return x

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


Keep = Callable[[Any, torch.Tensor], torch.Tensor]
WAYS: dict[str, Keep] = {}


def way(keep: Keep) -> Keep:
    WAYS[keep.__name__.replace("_", " ")] = keep
    return keep


@way
def a_hidden_state(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = x if model.state is None else x + 0.1 * model.state
    model.state = y.detach()
    return y


@way
def a_list_of_states(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.states.append(x.detach())
    return x + sum(model.states) / 10


@way
def a_tensor_in_a_dict(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.cache["last"] = x.detach().mean(0) + model.cache.get("last", 0)
    return x + model.cache["last"]


@way
def a_mask_by_shape(model: Any, x: torch.Tensor) -> torch.Tensor:
    if x.shape not in model.cache:
        model.cache[x.shape] = torch.ones(x.shape[-1]).cumsum(0) / 16
    return x * model.cache[x.shape]


@way
def a_log_of_numbers(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.logs.append(len(model.logs))
    return x * (1 + len(model.logs) / 100)


@way
def a_log_of_values(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.logs.append(x.detach().abs().max().item())
    return x


@way
def a_branch_on_values(model: Any, x: torch.Tensor) -> torch.Tensor:
    if x.mean().item() > 0:
        model.steps += 1
    return x * (1 + model.steps / 10)


@way
def a_counter_of_itertools(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (1 + next(model.counter) / 100)


@way
def a_torch_generator(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(x.shape, generator=model.generator)


@way
def a_python_generator(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * model.random.random()


@way
def a_choice_by_chance(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.sin() if model.random.random() < 0.5 else x


@way
def a_numpy_generator(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(model.numpy.random())


@way
def global_python_numbers(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


@way
def global_numpy_numbers(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())  # noqa: NPY002  # as users write it


@way
def generators_of_the_module(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (RNG.random() + float(NUMPY_RNG.random()))


@way
def a_numpy_array(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.array += 1
    return x * (1 + float(model.array[0]) / 100)


@way
def a_hidden_batchnorm(model: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = model.hidden[0](x)
    return y


@way
def a_plain_tensor_in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.plain.add_(x.detach().mean(0))
    return x + model.plain


@way
def an_object_of_its_own(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.registry.calls += 1
    return x * (1 + model.registry.calls / 100)


@way
def a_set(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.seen.add(len(model.seen))
    return x * (1 + len(model.seen) / 100)


@way
def a_weak_dictionary(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.weak[model.registry] = model.weak.get(model.registry, 0) + 1
    return x


@way
def buffers_in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.mean.lerp_(x.mean(0), 0.1)
        model.count += 1
    return x - model.mean


@way
def a_buffer_replaced(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.mean = model.mean * 0.9 + x.detach().mean(0) * 0.1
    return x - model.mean


@way
def a_queue_with_a_pointer(model: Any, x: torch.Tensor) -> torch.Tensor:
    start = int(model.count) % 64
    model.queue[start : start + 8] = x[:8].detach()
    model.count += 8
    return x + model.queue.mean(0)


@way
def a_global_list(_: Any, x: torch.Tensor) -> torch.Tensor:
    LOG.append(float(len(LOG)))
    return x * (1 + len(LOG) / 100)


@way
def a_nested_global_dict(_: Any, x: torch.Tensor) -> torch.Tensor:
    FEATURES["deep"]["seen"] += 1
    FEATURES["items"].append(x.detach())
    return x * (1 + FEATURES["deep"]["seen"] / 100)


@way
def a_global_number(_: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS  # noqa: PLW0603  # as users write it
    CALLS += 1
    return x * (1 + CALLS / 100)


@way
def a_global_object(_: Any, x: torch.Tensor) -> torch.Tensor:
    REGISTRY.calls += 1
    return x * (1 + REGISTRY.calls / 100)


@way
def a_global_tensor_in_place(_: Any, x: torch.Tensor) -> torch.Tensor:
    EMA.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - EMA


@way
def a_class_attribute(model: Any, x: torch.Tensor) -> torch.Tensor:
    type(model).calls += 1
    return x * (1 + type(model).calls / 100)


@way
def a_default_dtype(_: Any, x: torch.Tensor) -> torch.Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = x + torch.ones(16).to(x.dtype)
    torch.set_default_dtype(before)
    return y


@way
def a_warning(_: Any, x: torch.Tensor) -> torch.Tensor:
    warnings.warn("as libraries do", stacklevel=1)
    return x


WORLD = (LOG, FEATURES, EMA, RNG, NUMPY_RNG, REGISTRY)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    _reset()
    yield
    _reset()


def _reset() -> None:
    global CALLS  # noqa: PLW0603  # as users write it
    CALLS = 0
    LOG.clear()
    FEATURES.update(deep={"seen": 0}, items=[])
    EMA.zero_()
    RNG.seed(3)
    NUMPY_RNG.bit_generator.state = np.random.default_rng(4).bit_generator.state
    REGISTRY.calls = 0
    REGISTRY.losses.clear()


def _picture(model: nn.Module) -> dict[str, object]:
    settings = {"dtype": torch.get_default_dtype(), "calls": CALLS}
    settings["class"] = getattr(type(model), "calls", None)
    settings["draws"] = (torch.get_rng_state().sum().item(), random.getstate()[1][:3])
    return picture(model, WORLD, SAMPLE, identities=True) | settings


@pytest.mark.filterwarnings("ignore:as libraries do")
@pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning")
@pytest.mark.parametrize("by", ["auto", "blocks"])
@pytest.mark.parametrize("name", WAYS)
def test_after_fit(name: str, by: StageSource) -> None:
    """One step is enough: it goes on from what is there."""
    pictures = []
    for is_fitted in (False, True):
        _reset()
        seed(1)
        model = type("Model", (Keeping,), {"keep": WAYS[name]})()
        seed(2)
        before = _picture(model)
        if is_fitted:
            chainstay.fit(
                model, SAMPLE.args, budget=10**6, loss=loss_of, repeats=1, by=by, progress=False
            )
            assert differences(before, _picture(model)) == []
        for _ in range(2):
            loss_of(SAMPLE(model)).backward()
        pictures.append(picture(model, WORLD) | {"calls": CALLS, "class": type(model).calls})
    assert differences(*pictures) == []


Own = Callable[[torch.Tensor], torch.Tensor]
OWN: dict[str, Callable[[], Own]] = {}


def own(make: Callable[[], Own]) -> Callable[[], Own]:
    OWN[make.__name__.replace("_", " ")] = make
    return make


@own
def a_list_in_its_closure() -> Own:
    calls: list[int] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x * (1 + len(calls) / 100)

    return keep


@own
def a_number_in_its_closure() -> Own:
    calls = 0

    def keep(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * (1 + calls / 100)

    return keep


@own
def a_generator_in_its_closure() -> Own:
    generator = torch.Generator().manual_seed(7)
    return lambda x: x * torch.rand(x.shape, generator=generator)


@own
def a_batchnorm_in_its_closure() -> Own:
    norm = nn.BatchNorm1d(16)
    return lambda x: x + norm(x.detach()).mean() + norm.running_mean


@own
def a_default_argument() -> Own:
    def keep(x: torch.Tensor, calls: list[int] = []) -> torch.Tensor:  # noqa: B006  # as users write it
        calls.append(len(calls))
        return x * (1 + len(calls) / 100)

    return keep


@own
def a_keyword_argument() -> Own:
    def keep(x: torch.Tensor, *, calls: dict[str, int] = {}) -> torch.Tensor:  # noqa: B006  # as users write it
        calls["seen"] = calls.get("seen", 0) + 1
        return x * (1 + calls["seen"] / 100)

    return keep


@own
def an_attribute_of_its_own() -> Own:
    def keep(x: torch.Tensor) -> torch.Tensor:
        vars(keep)["calls"] = vars(keep).get("calls", 0) + 1
        return x * (1 + vars(keep)["calls"] / 100)

    return keep


@own
def a_partial_of_one_with_a_closure() -> Own:
    return partial(a_list_in_its_closure())


@own
def a_method_in_its_closure() -> Own:
    scaled = Registry().scaled
    return lambda x: scaled(x)  # noqa: PLW0108  # that it is in a closure is what matters


class Rising:
    """An iterator with its place in an attribute."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Rising:
        return self

    def __next__(self) -> int:
        self.place += 1
        return self.place


@own
def an_iterator_that_can_be_put_back() -> Own:
    items = Rising()
    return lambda x: x * (1 + next(items) / 100)


@own
def data_of_a_thread() -> Own:
    local = threading.local()
    local.calls = 0

    def keep(x: torch.Tensor) -> torch.Tensor:
        local.calls += 1
        return x * (1 + local.calls / 100)

    return keep


class Holding(Stack):
    """Calls a function that it holds."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.own(torch.tanh(layer(x)))
        return x


@pytest.mark.parametrize("by", ["auto", "blocks"])
@pytest.mark.parametrize("name", OWN)
def test_what_a_function_that_a_model_holds_keeps(name: str, by: StageSource) -> None:
    losses = []
    for is_fitted in (False, True):
        seed(1)
        model = Holding(OWN[name]())
        if is_fitted:
            chainstay.fit(
                model, SAMPLE.args, budget=10**6, loss=loss_of, repeats=1, by=by, progress=False
            )
        losses.append([loss_of(SAMPLE(model)).item() for _ in range(3)])
    assert losses[0] == losses[1]


def _rising() -> Iterator[float]:
    value = 1.0
    while True:
        value += 0.01
        yield value


class Drawing(Holding):
    """Takes an item in each call."""

    items: Iterator[float]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * next(self.items))


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("make", [_rising, lambda: itertools.count(1), lambda: iter(range(99))])
def test_an_iterator_that_planning_uses_up_is_refused(
    make: Callable[[], Iterator[float]],
    is_held: bool,  # noqa: FBT001  # a case
) -> None:
    """A copy of the model has a copy of one that can be copied, which a Python generator cannot."""
    items = make()
    model = Holding(lambda x: x * next(items))
    if is_held:
        model = Drawing(lambda x: x)
        model.items = items
    if is_held and not isinstance(items, Generator):
        chainstay.fit(model, SAMPLE.args, budget=10**6, loss=loss_of, repeats=1, progress=False)
        assert next(items) in (0, 1)
    else:
        with pytest.raises(UnsupportedModelError, match="takes items from an iterator"):
            chainstay.fit(model, SAMPLE.args, budget=10**6, loss=loss_of, repeats=1, progress=False)
        assert "chainstay" not in vars(model)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_layers_without_shapes_are_refused_and_stay_so() -> None:
    def make() -> nn.Module:
        return Stack(lambda: nn.LazyLinear(16))

    require_refused(make, SAMPLE, r"not initialised.*torch\.no_grad", step=backward_step(SAMPLE))
    model = chainstay.fit(make(), budget="80%", repeats=1, progress=False)
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedModelError, match="not initialised"):
        SAMPLE(model)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        SAMPLE(model)
    loss_of(SAMPLE(model)).backward()
    assert shown(model).plans
