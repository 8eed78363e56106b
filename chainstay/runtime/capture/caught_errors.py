"""Operators whose errors a model may catch, which its graph cannot.

TorchDynamo traces what follows ``try:`` as if no operator failed. Some fail by the values that
they get, such as the Cholesky factorisation of a matrix that is not positive definite; where the
model catches that, to go on in another way, its graph is not the model.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from typing import Final

import torch
from torch import fx
from torch._subclasses.fake_tensor import is_fake

_FAILS_BY_VALUES: Final = re.compile(
    r"_assert_async"
    r"|(linalg_)?(cholesky|cond|eig|eigh|eigvals|eigvalsh|inv|inverse|ldl_factor|lstsq|lu|lu_factor"
    r"|solve|svd|svdvals|tensorinv|tensorsolve|matrix_norm|matrix_rank|pinv)"
)
"""Names of the operator of ``assert``, and of those that raise ``torch.linalg.LinAlgError``.

Those of ``*_ex`` raise no error.
"""
_NO_MESSAGE: Final = "assertion error"
"""What TorchDynamo takes for the message of an ``assert`` that has none."""

_PLACE: Final = re.compile(r'^\s*File "(.+)", line (\d+), in ', re.MULTILINE)


def caught_at(node: fx.Node, name: str) -> str | None:
    """Return the place where the model catches an error of this operator, ``None`` if nowhere.

    A node of TorchDynamo's graph knows the lines that it comes from; `name` is what it calls.
    """
    if not _FAILS_BY_VALUES.fullmatch(name):
        return None
    for file, line in _PLACE.findall(node.stack_trace or ""):
        if any(int(line) in lines for lines in _tried_lines(file)):
            return f"{file.rsplit('/', 1)[-1]}:{line}"
    return None


@fx.has_side_effect
def asserted(condition: torch.Tensor, message: str) -> None:
    """Raise what ``assert`` does; it stands for ``_assert_async``, which raises another error."""
    if not is_fake(condition) and not condition:
        raise AssertionError(*([message] if message != _NO_MESSAGE else []))


def _tried_lines(file: str) -> Iterator[range]:
    """Yield the lines of a file whose errors are caught."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return
    for found in ast.walk(tree):
        if isinstance(found, ast.Try) and found.handlers:
            yield range(found.body[0].lineno, (found.body[-1].end_lineno or 0) + 1)
