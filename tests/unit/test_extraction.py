"""What extraction keeps, checks and refuses, on models small enough to read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from captured_graphs import chain_of
from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.extract import ExtractedChain, extract


class Written(nn.Module):
    """A module whose forward is given."""

    def __init__(self, forward: Any, **modules: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.given = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.given(self, x, *args, **kwargs)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 3


def doubled(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]
    return result


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: gradient * 2)
    return x


def tripled(given: Any) -> Any:
    return (given[0] * 3,) if isinstance(given, tuple) else given * 3


def counted(model: Any) -> Any:
    model.count = getattr(model, "count", 0) + 1
    return model


def watched(model: Any) -> Any:
    model.first.register_forward_hook(lambda *_: None)
    return model


def scaled_without_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    """torch 2.13 loses a no_grad inside autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.first(x)
        with torch.no_grad():
            scale = model.second(hidden).std()
        scaled: torch.Tensor = hidden / scale
        return scaled


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def gradients(model: nn.Module, forward: Any, *args: Any) -> list[torch.Tensor | None]:
    model.zero_grad()
    torch.manual_seed(1)
    output = forward(*args)
    (output[0] if isinstance(output, tuple) else output).float().square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def require_equal(model: nn.Module, chain: ExtractedChain, *args: Any) -> None:
    expected, found = gradients(model, model, *args), gradients(model, chain, *args)
    for old, new in zip(expected, found, strict=True):
        assert (old is None and new is None) or torch.equal(old, new)  # type: ignore[arg-type]


class TestItIsTheModel:
    def test_weights_are_read_anew_at_each_call(self) -> None:
        model, x = perceptron(), torch.randn(3, 4)
        chain = extract(model, (x,))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        require_equal(model, chain, x)
        model.load_state_dict(perceptron().state_dict(), assign=True)
        require_equal(model, chain, x)

    def test_tied_weights_get_one_gradient(self) -> None:
        model = Written(lambda self, x: self.second(self.first(x).relu()))
        model.second.weight = model.first.weight
        x = torch.randn(3, 4)
        require_equal(model, extract(model, (x,)), x)

    def test_parametrizations(self) -> None:
        model, x = Written(lambda self, x: self.second(self.first(x))), torch.randn(3, 4)
        parametrizations.weight_norm(model.first)
        require_equal(model, extract(model, (x,)), x)

    def test_a_layer_used_twice_updates_its_statistics_twice(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            return self.norm(self.second(self.norm(self.first(x)).relu()))

        model, x = Written(forward, norm=nn.BatchNorm1d(4)), torch.randn(3, 4)
        chain = extract(model, (x,))
        assert model.get_buffer("norm.num_batches_tracked") == 0
        chain(x)
        assert model.get_buffer("norm.num_batches_tracked") == 2

    def test_autocast_of_the_model_itself(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.second(self.first(x).relu())
            return self.first(hidden.float())

        model, x = Written(forward), torch.randn(3, 4)
        chain = extract(model, (x,))
        assert len(chain.stages) > 2
        require_equal(model, chain, x)

    def test_autocast_inside_and_outside_of_a_choice_of_kernels(self) -> None:
        """Operators between other switches are one, which enters its modes itself."""

        def forward(self: Any, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
                hidden = self.second(self.first(x).relu())
            with sdpa_kernel(SDPBackend.MATH):
                hidden = self.first(hidden.float())
                with torch.autocast("cpu", torch.bfloat16):
                    hidden = self.second(hidden)
            return self.first(hidden.float())

        model, x = Written(forward), torch.randn(3, 4)
        require_equal(model, extract(model, (x,)), x)

    @pytest.mark.parametrize("has_cache", [True, False])
    def test_autocast_around_the_call(self, *, has_cache: bool) -> None:
        model = Written(lambda self, x: self.first(self.second(self.first(x).relu())))
        x = torch.randn(3, 4)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=has_cache):
            chain = extract(model, (x,))
            require_equal(model, chain, x)
            assert chain(x).dtype == torch.bfloat16

    def test_no_grad_inside(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            hidden = self.first(x)
            with torch.no_grad():
                scale = self.second(hidden).std()
            return self.second(hidden.relu() / scale)

        model, x = Written(forward), torch.randn(3, 4)
        require_equal(model, extract(model, (x,)), x)

    def test_extraction_under_no_grad_is_for_training(self) -> None:
        model, x = perceptron(), torch.randn(3, 4)
        with torch.no_grad():
            chain = extract(model, (x,))
        require_equal(model, chain, x)

    def test_checkpoints_inside(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            hidden = checkpoint(lambda x: self.first(x).relu(), x, use_reentrant=False)
            return self.second(functional.dropout(hidden, 0.5))

        model, x = Written(forward), torch.randn(3, 4)
        require_equal(model, extract(model, (x,)), x)

    def test_an_input_that_wants_a_gradient_is_the_first_state(self) -> None:
        model, x = perceptron(), torch.randn(3, 4, requires_grad=True)
        chain = extract(model, (x,))
        assert [value.shape for value in chain.boundaries[0]] == [x.shape]
        require_equal(model, chain, x)
        assert x.grad is not None

    def test_outputs_of_every_kind(self) -> None:
        def forward(self: Any, x: torch.Tensor, factor: int) -> dict[str, Any]:
            early = self.first(x)
            count = torch.arange(x.shape[0]) * factor
            late = self.second(early.relu())
            return {
                "a": [early, late],
                "none": None,
                "n": 3,
                "x": x,
                "w": self.first.bias,
                "c": count,
            }

        model, x = Written(forward), torch.randn(3, 4)
        chain = extract(model, (x, 2))
        expected, found = model(x, 2), chain(x, 2)
        assert list(found) == list(expected)
        assert found["none"] is None
        assert found["n"] == 3
        assert found["x"] is x
        assert found["w"] is model.first.bias
        assert torch.equal(found["c"], expected["c"])
        assert torch.equal(found["a"][0], expected["a"][0])

    def test_values_without_gradient_are_made_once(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            mask = torch.ones(4, 4).tril_()
            hidden = self.first(x) @ mask
            return self.second(hidden.relu()) @ mask

        model, x = Written(forward), torch.randn(3, 4)
        chain = extract(model, (x,))
        assert len(chain.graph.made) == 1
        assert all(len(boundary) <= 1 for boundary in chain.boundaries)
        require_equal(model, chain, x)

    def test_random_values_are_drawn_where_the_model_draws_them(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            hidden = torch.dropout(self.first(x), 0.5, train=True)
            noise = torch.rand(3, 4)
            return self.first(self.second(hidden * noise).relu() * noise) * noise

        model, x = Written(forward), torch.randn(3, 4)
        chain = extract(model, (x,))
        assert len(chain.stages) > 1
        assert not chain.graph.made
        require_equal(model, chain, x)

    def test_no_cut_before_a_change_in_place(self) -> None:
        def forward(self: Any, x: torch.Tensor) -> Any:
            hidden = self.second(self.first(x).relu())
            hidden += 1
            return self.first(hidden).relu()

        model, x = Written(forward), torch.randn(3, 4)
        graph, inputs = chain_of(model, x)
        state, shared = graph.begin(inputs)
        for stage in graph.stages:
            copies = tuple(tensor.detach().clone() for tensor in state)
            following = stage(state, shared)
            assert all(map(torch.equal, copies, state))
            state = following
        require_equal(model, extract(model, (x,)), x)

    @pytest.mark.parametrize(
        "forward",
        [
            lambda self, x: self.first(x.relu_()),
            lambda self, x: doubled(self.first(x)),
            lambda self, x: hooked(self.first(x)),
            scaled_without_gradient,
        ],
        ids=["changes its input", "its own backward", "a hook on a tensor", "no_grad in autocast"],
    )
    def test_what_torch_lets_a_forward_do(self, forward: Any) -> None:
        model, x = Written(forward), torch.randn(3, 4)
        before = x.clone()
        chain = extract(model, (x,))
        assert torch.equal(x, before), "trying leaves no trace"
        require_equal(model, chain, x)
        expected, found = before.clone(), before.clone()
        assert torch.equal(model(expected), chain(found))
        assert torch.equal(expected, found)

    def test_attributes_that_a_forward_assigns(self) -> None:
        model: Any = Written(lambda self, x: counted(self).first(x))
        model.count, x = 5, torch.randn(3, 4)
        chain = extract(model, (x,))
        assert model.count == 5
        assert torch.equal(chain(x), model.first(x))
        assert model.count == 6

    @pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
    def test_hooks_of_modules(self, register: str) -> None:
        model, x = perceptron(), torch.randn(3, 4)
        before = model(x)
        getattr(model[0], register)(lambda *given: tripled(given[-1]))
        require_equal(model, extract(model, (x,)), x)
        assert not torch.equal(model.eval()(x), before)

    def test_the_table_names_every_stage(self) -> None:
        chain = extract(perceptron(), (torch.randn(3, 4),))
        assert "Sequential in" in str(chain)
        assert all(stage.name in str(chain) for stage in chain.stages)
        assert chain.table().row_count == len(chain.stages)


class TestItRefuses:
    @pytest.mark.parametrize(
        ("model", "args", "message"),
        [
            (print, (torch.ones(1),), "the model is a builtin_function_or_method, must be"),
            (nn.Linear(4, 4), torch.ones(4), "sample_args is a Tensor, must be a tuple"),
            (nn.Linear(4, 4), (), "no full graph of Linear on this sample: .*argument"),
            (nn.Linear(4, 4), (torch.ones(1, 4, device="meta"),), "a tensor on meta, but the"),
            (nn.Linear(4, 4), (torch.ones(1, 5),), "no full graph of Linear on .* must have same"),
        ],
    )
    def test_wrong_calls(self, model: Any, args: Any, message: str) -> None:
        with pytest.raises(UnsupportedModelError, match=message):
            extract(model, args)

    @pytest.mark.parametrize("granularity", [0, -1, "coarse", 2.5])
    def test_granularity(self, granularity: Any) -> None:
        with pytest.raises(ValueError, match=f"granularity is {granularity!r}, must be"):
            extract(perceptron(), (torch.ones(1, 4),), granularity=granularity)

    @pytest.mark.parametrize(
        ("forward", "message"),
        [
            (
                lambda self, x: x if self.first(x).sum() > 0 else x * 2,
                "of Written .* branching",
            ),
            (lambda self, x: self.first(x)[: int(x.sum().item())], r"depends on .* \(item\)"),
            (
                lambda self, x: (
                    torch.unique_consecutive(self.first(x).detach()) + self.first(x).sum()
                ),
                r"whose shape or number depends on the values of a tensor \(unique_consecutive\)",
            ),
            (
                lambda self, x: torch.tensor_split(self.first(x), x[0, :2].long())[0],
                "cannot tell without running it what tensor_split makes: .* not allocated yet",
            ),
            (lambda self, x: watched(self).first(x), r"of Written .* in watched|hooks\.py"),
        ],
    )
    def test_what_stages_would_not_do(self, forward: Any, message: str) -> None:
        model = Written(forward)
        before = dict(vars(model))
        with pytest.raises(UnsupportedModelError, match=message):
            extract(model, (torch.randn(3, 4),))
        assert vars(model) == before
        assert not model.first._forward_hooks

    @pytest.mark.parametrize(
        "register", ["register_full_backward_hook", "register_full_backward_pre_hook"]
    )
    def test_backward_hooks_of_modules(self, register: str) -> None:
        model = perceptron()
        getattr(model[0], register)(lambda *_: None)
        with pytest.raises(UnsupportedModelError, match="has a backward hook"):
            extract(model, (torch.ones(1, 4),))


ANOTHER = "of {} makes another graph than the sample: .* extract the model again"


class TestItHoldsForSuchCallsOnly:
    @pytest.mark.parametrize(
        "args",
        [
            (torch.ones(2, 4), 2),
            (torch.ones(3, 4).double(), 2),
            (torch.ones(3, 4, requires_grad=True), 2),
            (torch.ones(3, 4), 3),
            (torch.ones(3, 4), 2.0),
            (torch.ones(3, 4), None),
            (torch.ones(3, 4),),
        ],
    )
    def test_other_arguments(self, args: tuple[Any, ...]) -> None:
        model = Written(lambda self, x, n: self.second(self.first(x) * n))
        chain = extract(model, (torch.ones(3, 4), 2))
        with pytest.raises(UnsupportedModelError, match=ANOTHER.format("Written")):
            chain(*args)
        require_equal(model, chain, torch.randn(3, 4), 2)

    def test_keywords_in_another_order(self) -> None:
        model = Written(lambda self, x, *, a, b: self.first(x) * a + b)
        x, a, b = torch.ones(1, 4), torch.ones(4), torch.zeros(4)
        chain = extract(model, (x,), {"a": a, "b": b})
        assert torch.equal(chain(x, b=b, a=a), model(x, a=a, b=b))

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model[2].eval(),
            lambda model: model.eval(),
            lambda model: model.get_parameter("0.weight").requires_grad_(requires_grad=False),
            lambda model: model.register_module("2", nn.Identity()),
            lambda model: model.append(nn.Tanh()),
            lambda model: setattr(model[2], "p", 0.25),
            lambda model: model[0].register_forward_hook(lambda *_: None),
            lambda model: model[1].register_full_backward_hook(lambda *_: None),
            lambda model: setattr(model[1], "forward", torch.tanh),
            lambda model: parametrizations.weight_norm(model[0]),
            lambda model: model.bfloat16(),
        ],
    )
    def test_a_changed_model(self, change: Any) -> None:
        model, x = perceptron(), torch.ones(1, 4)
        chain = extract(model, (x,))
        chain(x)
        change(model)
        with pytest.raises(UnsupportedModelError, match=ANOTHER.format("Sequential")):
            chain(x)

    def test_another_autocast(self) -> None:
        model, x = perceptron(), torch.ones(1, 4)
        chain = extract(model, (x,))
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(UnsupportedModelError, match=ANOTHER.format("Sequential")),
        ):
            chain(x)
        require_equal(model, chain, x)
