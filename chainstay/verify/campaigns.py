"""What can be verified: kinds of instances, who is asked about them, and how to report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from chainstay.verify.checking import Answered, Check, checks
from chainstay.verify.contestants import CONTESTANTS, Contestant
from chainstay.verify.hybrid import (
    HYBRID_CONTESTANTS,
    HybridCheck,
    HybridContestant,
    hybrid_checks,
    hybrid_counter_example,
    minimised_hybrid,
)
from chainstay.verify.join import (
    JOIN_CONTESTANTS,
    JoinCheck,
    JoinContestant,
    join_checks,
    join_counter_example,
    minimised_join,
)
from chainstay.verify.minimising import counter_example, minimised
from chainstay.verify.offload import (
    OFFLOAD_CONTESTANTS,
    OffloadCheck,
    OffloadContestant,
    minimised_offload,
    offload_checks,
    offload_counter_example,
)

__all__ = [
    "CAMPAIGNS",
    "Asked",
    "Campaign",
    "Report",
    "Result",
    "chain_campaign",
    "hybrid_campaign",
    "join_campaign",
    "offload_campaign",
]


class Asked(Protocol):
    """A contestant, as far as a table is concerned."""

    @property
    def name(self) -> str:
        """The method and its settings."""

    @property
    def plan(self) -> str:
        """Which instances it is asked about, in words."""


class Report(NamedTuple):
    """A contradiction written down: a JSON document of a small instance, and its stages."""

    text: str
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One instance, checked.

    Attributes:
        number: Of the instance.
        answers: With the name of who gave each.
        reason: Why not all can be right; empty if they can.
        report: Minimises the contradiction and writes it down.
    """

    number: int
    answers: Sequence[tuple[str, Answered]]
    reason: str
    report: Callable[[], Report]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One kind of instances.

    Attributes:
        noun: What they are, in the plural.
        contestants: Who may be asked.
        results: Checks instances by number, of a seed, on some processes.
    """

    noun: str
    contestants: Sequence[Asked]
    results: Callable[[Iterable[int], int, int], Iterator[Result]]


class _Answer(Answered, Protocol):
    """An answer, and who gave it."""

    @property
    def contestant(self) -> Asked:
        """Who."""


class _Checked(Protocol):
    """One instance, checked, whatever it is."""

    @property
    def number(self) -> int:
        """Of the instance."""

    @property
    def answers(self) -> Sequence[_Answer]:
        """Of all who were asked."""

    @property
    def reason(self) -> str:
        """Why not all can be right; empty if they can."""


_Check = TypeVar("_Check", bound=_Checked)


def _campaign(
    noun: str,
    contestants: Sequence[Asked],
    checked: Callable[[Iterable[int], int, int], Iterator[_Check]],
    report: Callable[[_Check, int], Report],
) -> Campaign:
    """From checks of numbers, a seed and workers, and how to report one of them."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Result]:
        for check in checked(numbers, seed, workers):
            yield Result(
                number=check.number,
                answers=[(answer.contestant.name, answer) for answer in check.answers],
                reason=check.reason,
                report=partial(report, check, seed),
            )

    return Campaign(noun=noun, contestants=contestants, results=results)


def chain_campaign(contestants: Sequence[Contestant] = CONTESTANTS) -> Campaign:
    """Chains, `contestants` being asked."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Check]:
        return checks(numbers, seed=seed, contestants=contestants, workers=workers)

    def report(check: Check, seed: int) -> Report:
        assert check.contradiction is not None, "only contradictions are reported"
        small = minimised(check.instance, check.contradiction.between)
        return Report(counter_example(check, seed=seed, instance=small), len(small.profile))

    return _campaign("chains", contestants, checked, report)


def offload_campaign(
    contestants: Sequence[OffloadContestant] = OFFLOAD_CONTESTANTS,
) -> Campaign:
    """Offloading instances, `contestants` being asked."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[OffloadCheck]:
        return offload_checks(numbers, seed=seed, contestants=contestants, workers=workers)

    def report(check: OffloadCheck, seed: int) -> Report:
        small = minimised_offload(check)
        return Report(offload_counter_example(small, seed=seed), len(small.instance.profile))

    return _campaign("offloading instances", contestants, checked, report)


def join_campaign(contestants: Sequence[JoinContestant] = JOIN_CONTESTANTS) -> Campaign:
    """Joins of both models, `contestants` being asked."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[JoinCheck]:
        return join_checks(numbers, seed=seed, contestants=contestants, workers=workers)

    def report(check: JoinCheck, seed: int) -> Report:
        small = minimised_join(check)
        return Report(join_counter_example(small, seed=seed), small.instance.profile.stages)

    return _campaign("joins", contestants, checked, report)


def hybrid_campaign(contestants: Sequence[HybridContestant] = HYBRID_CONTESTANTS) -> Campaign:
    """Chains to recompute and offload, `contestants` being asked."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[HybridCheck]:
        return hybrid_checks(numbers, seed=seed, contestants=contestants, workers=workers)

    def report(check: HybridCheck, seed: int) -> Report:
        small = minimised_hybrid(check)
        return Report(hybrid_counter_example(small, seed=seed), len(small.instance.profile))

    return _campaign("hybrid instances", contestants, checked, report)


CAMPAIGNS: Final[Mapping[str, Campaign]] = MappingProxyType(
    {
        "chain": chain_campaign(),
        "join": join_campaign(),
        "hybrid": hybrid_campaign(),
        "offload": offload_campaign(),
    }
)
