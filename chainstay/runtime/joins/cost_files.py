"""Files with the measured costs of a join; compare `chainstay.runtime.measures.cost_files`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.cost_files import cost_from, path_in, read_sealed, write_sealed

_KIND: Final = "join-account"
_VERSION: Final = 7


@dataclass(frozen=True, slots=True)
class JoinAccountFile:
    """The file for the costs of one join, whether or not it exists.

    Attributes:
        path: The file's path in the directory of the cache.
    """

    path: Path

    @classmethod
    def of(cls, signature: str, directory: str | os.PathLike[str]) -> JoinAccountFile:
        """Return the file in `directory` for the join with `signature`."""
        return cls(path_in(directory, signature))

    def read(self, lengths: Sequence[int]) -> JoinAccount | None:
        """Return the costs in the file, if they are sound and of parts of these lengths.

        Warns:
            UserWarning: Something is there, and it is not.
        """
        return read_sealed(self.path, _KIND, _VERSION, lambda found: _account(found, lengths))

    def write(self, account: JoinAccount) -> None:
        """Replace what is there, at once.

        Raises:
            OSError: The directory cannot be written to.
        """
        body = {
            "branches": list(map(_written, account.branches)),
            "tail": _written(account.tail),
            "passed_bytes": account.passed_bytes,
            "has_options": account.has_options,
        }
        write_sealed(self.path, _KIND, _VERSION, body)


def _written(chain: JoinedChain) -> dict[str, object]:
    stages = [
        {
            "cost": asdict(stage.cost),
            "forward_waiting": stage.forward_waiting,
            "backward_waiting": stage.backward_waiting,
            "relief": stage.relief,
            "leaves": [number for number, _ in stage.leaves],
            "leaf_bytes": [size for _, size in stage.leaves],
        }
        for stage in chain.stages
    ]
    return {
        "input_bytes": chain.input_bytes,
        "input_gradient_bytes": chain.input_gradient_bytes,
        "stages": stages,
    }


def _account(found: Fields, lengths: Sequence[int]) -> JoinAccount:
    """The account of a join whose measured parts have these lengths.

    Raises:
        InvalidProfileError: It is not of such a join, or has numbers that no join has.
    """
    account = JoinAccount(
        branches=tuple(map(_chain, found.children("branches"))),
        tail=_chain(found.child("tail")),
        passed_bytes=found.integer("passed_bytes"),
        has_options=found.boolean("has_options"),
    )
    parts = [len(chain.stages) for chain in (*account.branches, account.tail)]
    behind = parts[len(account.branches)]
    measured = list(lengths[len(account.branches) :]) or [0]
    if parts[:-1] != list(lengths[: len(account.branches)]) or not 0 <= behind - measured[0] <= 1:
        raise InvalidProfileError(f"{_KIND} document: it is of other stages")
    account.by_kind()  # refuses numbers that no join has
    return account


def _chain(found: Fields) -> JoinedChain:
    return JoinedChain(
        input_bytes=found.integer("input_bytes"),
        input_gradient_bytes=found.integer("input_gradient_bytes"),
        stages=tuple(map(_stage, found.children("stages"))),
    )


def _stage(found: Fields) -> JoinedStage:
    numbers, sizes = found.integers("leaves"), found.integers("leaf_bytes")
    if len(numbers) != len(sizes):
        raise InvalidProfileError(f"{found.path}: {len(numbers)} leaves of {len(sizes)} sizes")
    return JoinedStage(
        cost=cost_from(found.child("cost")),
        forward_waiting=found.integer("forward_waiting"),
        backward_waiting=found.integer("backward_waiting"),
        relief=found.integer("relief"),
        leaves=tuple(zip(numbers, sizes, strict=True)),
    )
