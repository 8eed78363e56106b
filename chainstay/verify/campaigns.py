"""What can be verified: kinds of instances, who is asked about them, and how to report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

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


def chain_campaign(contestants: Sequence[Contestant] = CONTESTANTS) -> Campaign:
    """Chains, `contestants` being asked."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Result]:
        for check in checks(numbers, seed=seed, contestants=contestants, workers=workers):

            def report(check: Check = check) -> Report:
                assert check.contradiction is not None, "only contradictions are reported"
                small = minimised(check.instance, check.contradiction.between)
                text = counter_example(check, seed=seed, instance=small)
                return Report(text, len(small.profile))

            yield Result(
                number=check.number,
                answers=[(answer.contestant.name, answer) for answer in check.answers],
                reason="" if check.contradiction is None else check.contradiction.reason,
                report=report,
            )

    return Campaign(noun="chains", contestants=contestants, results=results)


def offload_campaign(
    contestants: Sequence[OffloadContestant] = OFFLOAD_CONTESTANTS,
) -> Campaign:
    """Offloading instances, `contestants` being asked."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Result]:
        for check in offload_checks(numbers, seed=seed, contestants=contestants, workers=workers):

            def report(check: OffloadCheck = check) -> Report:
                small = minimised_offload(check)
                text = offload_counter_example(small, seed=seed)
                return Report(text, len(small.instance.profile))

            yield Result(
                number=check.number,
                answers=[(answer.contestant.name, answer) for answer in check.answers],
                reason=check.reason,
                report=report,
            )

    return Campaign(noun="offloading instances", contestants=contestants, results=results)


def join_campaign(contestants: Sequence[JoinContestant] = JOIN_CONTESTANTS) -> Campaign:
    """Joins of both models, `contestants` being asked."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Result]:
        for check in join_checks(numbers, seed=seed, contestants=contestants, workers=workers):

            def report(check: JoinCheck = check) -> Report:
                small = minimised_join(check)
                text = join_counter_example(small, seed=seed)
                return Report(text, small.instance.profile.stages)

            yield Result(
                number=check.number,
                answers=[(answer.contestant.name, answer) for answer in check.answers],
                reason=check.reason,
                report=report,
            )

    return Campaign(noun="joins", contestants=contestants, results=results)


def hybrid_campaign(contestants: Sequence[HybridContestant] = HYBRID_CONTESTANTS) -> Campaign:
    """Chains to recompute and offload, `contestants` being asked."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[Result]:
        for check in hybrid_checks(numbers, seed=seed, contestants=contestants, workers=workers):

            def report(check: HybridCheck = check) -> Report:
                small = minimised_hybrid(check)
                text = hybrid_counter_example(small, seed=seed)
                return Report(text, len(small.instance.profile))

            yield Result(
                number=check.number,
                answers=[(answer.contestant.name, answer) for answer in check.answers],
                reason=check.reason,
                report=report,
            )

    return Campaign(noun="hybrid instances", contestants=contestants, results=results)


CAMPAIGNS: Final[Mapping[str, Campaign]] = MappingProxyType(
    {
        "chain": chain_campaign(),
        "join": join_campaign(),
        "hybrid": hybrid_campaign(),
        "offload": offload_campaign(),
    }
)
