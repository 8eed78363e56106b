"""Files with the measured costs of a join; compare `chainstay.runtime.measures.cost_files`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.cost_files import cost_from, record_from

KIND: Final = "join-account"
VERSION: Final = 12


def account_from(found: Fields, lengths: Sequence[int]) -> JoinAccount:
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
        raise InvalidProfileError(f"{KIND} document: it is of other stages")
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
