"""Each error of `make mutants` has its place in the code, and names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

from mutants.__main__ import MUTANTS

import chainstay

_PACKAGE = Path(chainstay.__file__).parent
_TESTS = Path(__file__).parents[1]


def test_each_changes_one_place() -> None:
    counts = {m.name: (_PACKAGE / m.file).read_text("utf-8").count(m.old) for m in MUTANTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_each_names_tests_that_exist() -> None:
    missing = []
    for test in {test for mutant in MUTANTS for test in mutant.tests.split()}:
        file, *names = test.partition("[")[0].split("::")
        text = (_TESTS / file).read_text("utf-8")
        missing += [test for name in names if not re.search(rf"\b(def|class) {name}\b", text)]
    assert missing == []
