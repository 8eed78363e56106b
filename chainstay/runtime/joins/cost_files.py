"""Files with the measured costs of a join; compare `chainstay.runtime.measures.cost_files`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.cost_files import cost_from, read_sealed, record_from, write_sealed

_KIND: Final = "join-account"
_VERSION: Final = 10


def read_account(path: Path, lengths: Sequence[int]) -> JoinAccount | None:
    """Return the costs in a file, if they are there, sound, and of parts of these lengths.

    Warns:
        UserWarning: Something is there, and it is not.
    """
    return read_sealed(path, _KIND, _VERSION, lambda found: _account(found, lengths))


def write_account(path: Path, account: JoinAccount) -> None:
    """Replace what is there, at once.

    Warns:
        UserWarning: The directory cannot be written to.
    """
    write_sealed(path, _KIND, _VERSION, asdict(account))


def _account(found: Fields, lengths: Sequence[int]) -> JoinAccount:
    """The account of a join whose measured parts have these lengths.

    Raises:
        InvalidProfileError: It is not of such a join, or has numbers that no join has.
    """
    branches = tuple(map(_chain, found.children("branches")))
    account = record_from(JoinAccount, found, branches=branches, tail=_chain(found.child("tail")))
    parts = [len(chain.stages) for chain in (*account.branches, account.tail)]
    behind = parts[-1]
    measured = list(lengths[len(account.branches) :]) or [0]
    if parts[:-1] != list(lengths[: len(account.branches)]) or not 0 <= behind - measured[0] <= 1:
        raise InvalidProfileError(f"{_KIND} document: it is of other stages")
    account.by_kind()  # refuses numbers that no join has
    return account


def _chain(found: Fields) -> JoinedChain:
    return record_from(JoinedChain, found, stages=tuple(map(_stage, found.children("stages"))))


def _stage(found: Fields) -> JoinedStage:
    stage = record_from(JoinedStage, found, cost=cost_from(found.child("cost")))
    numbers, sizes = len(stage.leaves), len(stage.leaf_bytes)
    if numbers != sizes:
        raise InvalidProfileError(f"{found.path}: {numbers} leaves of {sizes} sizes")
    return stage
