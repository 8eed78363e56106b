"""Parts of estimating by hand-worked digits, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import runtime_support  # noqa: F401  # one thread
from chainstay import DeviceModel, UnknownDeviceError, UnsupportedModelError, estimate
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.estimate import DEVICES
from chainstay.runtime.estimate.devices import device_model
from chainstay.runtime.estimate.observer import watch
from chainstay.runtime.estimate.stand_ins import FakeStandIns
from torch_release import IS_TORCH_2_6

SLOW = DeviceModel(
    name="slow",
    memory_bytes=1000,
    bandwidth=1e9,  # a byte per ns
    float32=1e9,  # an operation per ns
    float16=2e9,
    compute_efficiency=1.0,
    bandwidth_efficiency=1.0,
    launch_ns=5,
    dispatch_ns=50,
)
SAMPLE = (torch.zeros(2, 4),)


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic() -> None:
    assert SLOW.kernel_ns(flops=100, throughput=SLOW.float32, moved_bytes=40) == 105
    assert SLOW.kernel_ns(flops=100, throughput=SLOW.float32, moved_bytes=400) == 405
    assert SLOW.kernel_ns(flops=100, throughput=SLOW.float16, moved_bytes=0) == 55


def test_a_stage_takes_the_longer_of_its_kernels_and_of_issuing_them() -> None:
    assert SLOW.stage_ns(kernels_ns=100, operators=1) == 100
    assert SLOW.stage_ns(kernels_ns=100, operators=3) == 150


def test_efficiency_is_the_share_that_is_reached() -> None:
    half = DeviceModel(
        name="half",
        memory_bytes=1,
        bandwidth=1e9,
        float32=1e9,
        compute_efficiency=0.5,
        bandwidth_efficiency=0.25,
        launch_ns=0,
    )
    assert half.kernel_ns(flops=100, throughput=half.float32, moved_bytes=0) == 200
    assert half.kernel_ns(flops=100, throughput=half.float32, moved_bytes=100) == 400


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("bandwidth", 0, "a positive number"),
        ("float32", float("inf"), "a positive number"),
        ("float16", -1, "a positive number"),
        ("memory_bytes", "80GB", "a positive number"),
        ("launch_ns", -1, "a positive number"),
        ("dispatch_ns", -1, "a positive number"),
        ("compute_efficiency", 1.1, "above 0 and up to 1"),
        ("bandwidth_efficiency", 0, "above 0 and up to 1"),
        ("bandwidth", True, "a positive number"),
    ],
)
def test_figures_that_no_device_has(field: str, value: object, limit: str) -> None:
    figures: dict[str, Any] = {"memory_bytes": 1, "bandwidth": 1.0, "float32": 1.0, field: value}
    with pytest.raises(ValueError, match=f"{field} is {value!r}, must be {limit}"):
        DeviceModel(name="none", **figures)


def test_devices_by_name() -> None:
    assert device_model("H200") is DEVICES["H200"] is device_model("h200")
    assert device_model(SLOW) is SLOW
    for name, device in DEVICES.items():
        assert device.name == name
        assert device.float32 <= device.tf32 <= max(device.float16, device.bfloat16)


@pytest.mark.parametrize("name", ["H1000", "", None])
def test_unknown_devices_are_told_what_is_known(name: Any) -> None:
    with pytest.raises(UnknownDeviceError, match=f"{name!r}, must be one of A100-40GB, .*H200"):
        estimate(nn.Linear(4, 4), SAMPLE, device=name)


def watched(function: Any, *shapes: tuple[int, ...]) -> tuple[int, int, int]:
    """Peak, end and time of a function of fake tensors."""
    mode = FakeTensorMode()
    with mode:
        tensors = [torch.empty(shape) for shape in shapes]
        held: list[object] = []
        (phase,) = watch([lambda: held.append(function(*tensors))], SLOW, mode)
    return phase.memory.peak_bytes, phase.memory.end_bytes, phase.kernels_ns


def test_prices_and_bytes_of_operators() -> None:
    # 2 * 3 * 5 * 7 operations against (15 + 35 + 21) * 4 bytes
    assert watched(torch.mm, (3, 5), (5, 7)) == (84, 84, 5 + 284)
    # 2 * 30^3 operations against 3 * 900 * 4 bytes
    assert watched(torch.mm, (30, 30), (30, 30)) == (3600, 3600, 5 + 54000)
    assert watched(torch.neg, (6,)) == (24, 24, 5 + 48)
    assert watched(lambda x: x.view(2, 3).t(), (6,)) == (0, 0, 0)  # views are free
    assert watched(lambda x: x.add_(1), (6,)) == (0, 0, 5 + 48)  # read and written in place
    assert watched(torch.zeros_like, (6,)) == (24, 24, 5 + 24)  # written only
    assert watched(lambda x: x.t_(), (2, 3)) == (0, 0, 0)  # a view in place
    assert watched(lambda x: x.exp().sum(), (6,)) == (28, 4, 5 + 48 + 5 + 28)
    assert watched(lambda x: x.expand(100, 6) + 0, (6,)) == (2400, 2400, 5 + 24 + 2400)


def test_operators_that_the_host_issues_are_those_with_a_kernel() -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(6)
        held: list[torch.Tensor] = []
        (phase,) = watch([lambda: held.append(tensor.view(2, 3).exp().sum())], SLOW, mode)
    assert phase.operators == 2


def test_a_storage_that_was_set_is_released() -> None:
    def laid_over(given: torch.Tensor) -> None:
        torch.empty(0).set_(given.clone().untyped_storage(), 1, (2,), (1,))

    assert watched(laid_over, (6,))[:2] == (24, 0)


def test_times_of_a_stage_by_hand() -> None:
    """One product forward; backward another and its sum with the gradient that is there."""
    model, sample = nn.Linear(30, 30, bias=False), (torch.zeros(30, 30),)
    stage, loss = estimate(model, sample, device=SLOW).profile.stages
    assert stage.forward_time == 54000 + 5
    assert stage.backward_time == 54000 + 5 + 3 * 3600 + 5 + 4  # the root of the backward
    assert (loss.forward_time, loss.backward_time) == (0, 0)


def test_what_an_option_makes_again_takes_the_time_of_its_kernels() -> None:
    """What GELU reads, of 4 MB, is made again by a product of 16 million operations, one a ns."""
    model = nn.Sequential(nn.Linear(8, 1000), nn.GELU(), nn.Linear(1000, 8))
    found = estimate(model, (torch.zeros(1000, 8),), device=SLOW)
    (whole, option) = found.profile.stages[0].all_options
    assert option.name == "drops linear"
    assert whole.saved_bytes - option.saved_bytes == 4_000_000
    assert 16_000_000 < option.first.total_time - whole.first.total_time < 16_300_000


def test_copies_by_autocast_can_be_made_again() -> None:
    """A product in bfloat16 saves a copy of its argument, which a norm gives in float32."""
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64, bias=False), nn.Linear(64, 8))
    with torch.autocast("cpu", torch.bfloat16):
        found = estimate(model, (torch.zeros(1000, 64),), device="A100-80GB")
    names = [option.name for stage in found.profile.stages for option in stage.options]
    assert any("cast" in name for name in names)


def test_stand_ins_share_what_the_tensors_shared() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    model.register_buffer("view", first.bias.detach()[1:])
    copy = FakeStandIns().call_like(Call.of(model, ())).model
    weights, view = copy.state_dict(keep_vars=True), copy.get_buffer("view")
    assert weights["1.weight"] is weights["0.weight"]
    assert view.shape == (3,)
    assert view.untyped_storage()._cdata == weights["0.bias"].untyped_storage()._cdata
    assert isinstance(view, FakeTensor)
    assert not isinstance(first.weight.data, FakeTensor)


def test_models_may_be_built_where_nothing_has_memory() -> None:
    found = estimate(lambda: nn.Linear(10**6, 10**6), (torch.empty(1, 10**6),), device="H200")
    assert found.parameters == 10**12 + 10**6
    assert found.trained_bytes == found.parameter_bytes == 4 * found.parameters
    assert "Linear on H200: 1,000,001,000,000 parameters" in str(found)


class Deciding(nn.Linear):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        output = super().forward(given)
        return output if output.sum() > 0 else -output


class Choosing(nn.Linear):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return super().forward(given)[given[:, 0] > 0]


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lock = threading.Lock()


@torch.library.custom_op("chainstay_tests::twice", mutates_args=())
def twice(given: torch.Tensor) -> torch.Tensor:
    return given * 2


class Customised(nn.Linear):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = twice(super().forward(given))
        return doubled


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: Deciding(4, 4), "Deciding cannot be estimated: it decides by the values"),
        (lambda: Choosing(4, 4), "depends on values, which aten.nonzero.default asks for"),
        (lambda: Customised(4, 4), "chainstay_tests::twice has no fake kernel.*register_fake"),
        (lambda: nn.Linear(4, int(torch.ones(1).item())), "cannot be built on the meta device"),
        (None, "the model is None, must be a torch.nn.Module"),
    ],
)
def test_what_cannot_be_estimated(model: Any, text: str) -> None:
    with pytest.raises(UnsupportedModelError, match=text):
        estimate(model, SAMPLE, device="L4")


def test_what_cannot_be_copied_is_shared() -> None:
    assert estimate(Locked(), SAMPLE, device="L4") is not None


def twofold(output: torch.Tensor) -> torch.Tensor:
    """Torch 2.6 gives no graph without operators."""
    return 2 * output


def test_losses_hold_real_targets_or_are_told_what_is_wrong() -> None:
    model, targets = nn.Linear(4, 3), torch.zeros(2, dtype=torch.long)
    cross_entropy = nn.functional.cross_entropy
    found = estimate(model, SAMPLE, device="L4", loss=lambda output: cross_entropy(output, targets))
    assert [stage.name for stage in found.profile.stages][-1] == "loss"
    told = "decides by the values" if IS_TORCH_2_6 else r"which aten\._local_scalar_dense"
    with pytest.raises(UnsupportedModelError, match=told):
        estimate(model, SAMPLE, device="L4", loss=lambda output: output * output.sum().item())
    with pytest.raises(UnsupportedModelError, match=r"shape \(2, 3\).*must return one real"):
        estimate(model, SAMPLE, device="L4", loss=twofold if IS_TORCH_2_6 else lambda y: y)


@pytest.fixture
def gpu_autocast() -> Iterator[None]:
    """torch.autocast itself does nothing for CUDA where there is none."""
    torch.set_autocast_enabled("cuda", True)  # noqa: FBT003  # torch's own
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)  # noqa: FBT003  # likewise


@pytest.mark.usefixtures("gpu_autocast")
def test_autocast_of_a_gpu_counts() -> None:
    model, sample = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), (torch.zeros(32, 64),)
    low = estimate(model, sample, device="T4")
    torch.set_autocast_enabled("cuda", False)  # noqa: FBT003  # likewise
    full = estimate(model, sample, device="T4")
    saved = [
        sum(stage.saved_bytes for stage in estimation.profile.stages[:-1])
        for estimation in (low, full)
    ]
    assert saved[1] == 32 * 64 * 4
    assert saved[0] < 2 * saved[1]
    assert low.profile.stages[0].output_bytes == 32 * 64 * 2
