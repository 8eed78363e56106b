from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.device import accelerator_at, device_at
from chainstay.runtime.devices.device_memory import free_for, smaller_budget

PACKAGE = Path(chainstay.__file__).parent
DEVICES = PACKAGE / "runtime/devices"


def kinds_named_in(code: str) -> list[str]:
    """Modules of one kind of device, and comparisons of a device's type with its name."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr in {"cuda", "xpu", "mps"}:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            found += [name for name in names if name.startswith(("torch.cuda", "torch.xpu"))]
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            values = {side.value for side in sides if isinstance(side, ast.Constant)}
            found += [ast.unparse(node)] * bool(values & {"cuda", "xpu"})
    return found


def test_kinds_of_accelerators_are_named_by_the_device_layer_only() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if DEVICES not in file.parents]
    named = {file: kinds_named_in(file.read_text(encoding="utf-8")) for file in files}
    assert {str(file): found for file, found in named.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import torch.cuda as c",
        "from torch.cuda import Event",
        "torch.cuda.synchronize()",
        "x.device.type == 'cuda'",
        "tensor.cuda()",
    ],
)
def test_a_kind_that_is_named_would_be_found(code: str) -> None:
    assert kinds_named_in(code)


def test_devices_without_an_account_of_memory_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'meta' device cannot be measured; move"):
        device_at(torch.device("meta"))
    with pytest.raises(UnsupportedModelError, match="'mps' device is the host's own, and its"):
        device_at(torch.device("mps"))
    assert accelerator_at(torch.device("meta")) is None


def test_the_cpu_is_a_device_on_which_everything_has_happened() -> None:
    cpu = device_at(torch.device("cpu"))
    begin = cpu.mark()
    with cpu.current():
        sum(range(1000))
    end = cpu.mark()
    cpu.synchronize()
    assert 0 <= cpu.elapsed(begin, end) <= cpu.now()
    assert cpu.free_bytes() >= 0


def test_a_smaller_budget_is_what_blocks_leave_or_less_by_the_margin() -> None:
    budget = 2000 * 2**20
    free = free_for(budget)
    assert free - 22 * 2**20 == pytest.approx(budget / 0.95, abs=2)
    assert smaller_budget(budget, free, 0) == int(0.95 * budget)
    assert smaller_budget(budget, free, 300 * 2**20) == free - 300 * 2**20 < 0.95 * budget
    assert smaller_budget(budget, free, 2 * free) == 1
