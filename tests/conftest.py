"""Settings for all tests: two tiers, and hypothesis draws the same examples at every run.

`make test` runs everything but what is marked ``long``, `make test-all` runs all. Tests that take
many seconds each are marked by hand; of a test with many cases, all but one or two are marked here,
the largest networks first.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
from collections import defaultdict
from collections.abc import Generator
from typing import Final
from zlib import crc32

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, Phase, settings

# Where these are set, what the command line prints has colours, whoever reads it.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)
# As many workers as processors run: two threads each wait longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "chainstay",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("chainstay")
# For `make mutants`: that a test fails is enough, its smallest example is not looked for.
settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))


_MATRICES: Final = (
    "tests/abuse",
    "tests/agreement",
    "tests/properties",
    "tests/unit/test_fit",
    "tests/unit/test_runtime",
    "tests/unit/test_transfers",
)
"""In these, `make test` runs one of the cases of a test; elsewhere the first and the last."""
_LARGE: Final = re.compile(
    "ResNet-50|ResNet-101|ResNet-18|DenseNet-121|densenet_case|resnet_case|Inception v3|VGG-16|"
    "ConvNeXt|ViT-B/16|U-?Net|BERT|T5|CLIP|HF ViT|GPT-2|Llama"
)
"""Networks that take seconds where others show the same; `make test` leaves them out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which `.ci/run` takes as many quarters of the long tests as it can."""
    parser.addoption(
        "--quarter", type=int, choices=range(4), help="run a quarter of the tests, by their names"
    )


gc.disable()  # imports leave little garbage, and looking for it takes a tenth of their time


def pytest_collection_finish() -> None:
    """Load kernels from the disk at once, and spare the garbage collector what was imported.

    It would walk through that in every test.
    """
    from chainstay.dp import jit  # noqa: PLC0415  # threads are set above before NumPy is loaded

    jit._spent_s[0] = math.inf
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def equal_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stage and every operator take 10 ms, so that no noise decides between plans."""
    times = itertools.count(step=10_000_000)
    monkeypatch.setattr("chainstay.runtime.devices.cpu.now", lambda: next(times))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in tests: there are none, and modules of other programs are loaded."""
    collectors = yield
    return [found for found in collectors if not isinstance(found, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the other cases as long, and take the quarter that is asked for."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if _LARGE.search(case):
            item.add_marker(pytest.mark.long)
        elif item.get_closest_marker("long") is None:
            cases[test].append(item)
    for test, group in cases.items():
        if test.startswith(_MATRICES):  # over the tests of a folder, each kind of case has its turn
            places = {crc32(test.encode()) % len(group)}
        else:
            places = {0, len(group) - 1}
        for place, item in enumerate(group):
            if place not in places:
                item.add_marker(pytest.mark.long)
    quarter = config.getoption("--quarter")
    if quarter is not None:
        quarters: list[list[pytest.Item]] = [[] for _ in range(4)]
        for item in items:
            quarters[crc32(item.nodeid.encode()) % 4].append(item)
        items[:] = quarters.pop(quarter)
        config.hook.pytest_deselected(items=list(itertools.chain.from_iterable(quarters)))
