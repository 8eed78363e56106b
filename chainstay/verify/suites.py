"""The suites that can be verified: kinds of instances, the methods run on them, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from chainstay.verify.batches import ChainCheck, CountedAnswer, chain_checks
from chainstay.verify.chain_counter_example import chain_counter_example, minimised_chain
from chainstay.verify.chain_methods import TESTED_METHODS, MethodUnderTest
from chainstay.verify.hybrid import (
    TESTED_HYBRID_METHODS,
    HybridCheck,
    HybridMethodUnderTest,
    hybrid_checks,
    hybrid_counter_example,
    minimised_hybrid,
)
from chainstay.verify.join import (
    TESTED_JOIN_METHODS,
    JoinCheck,
    JoinMethodUnderTest,
    join_checks,
    join_counter_example,
    minimised_join,
)
from chainstay.verify.offload import (
    TESTED_OFFLOAD_METHODS,
    OffloadCheck,
    OffloadMethodUnderTest,
    minimised_offload,
    offload_checks,
    offload_counter_example,
)

__all__ = [
    "SUITES",
    "ContradictionReport",
    "InstanceResult",
    "ListedMethod",
    "Suite",
    "chain_suite",
    "hybrid_suite",
    "join_suite",
    "offload_suite",
]


class ListedMethod(Protocol):
    """The part of a tested method that a table shows."""

    @property
    def name(self) -> str:
        """The method and its settings."""

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""


class ContradictionReport(NamedTuple):
    """A contradiction written down: a JSON document of a small instance, and its stages."""

    text: str
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceResult:
    """One instance, checked with all methods.

    Attributes:
        number: Number of the instance.
        answers: Answers, each with the name of its method.
        reason: Reason why not all can be right; empty if they can.
        report: Function that minimises the contradiction and writes it down.
    """

    number: int
    answers: Sequence[tuple[str, CountedAnswer]]
    reason: str
    report: Callable[[], ContradictionReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One kind of instances, and the methods run on them.

    Attributes:
        noun: Name of the instances, in the plural.
        methods: Methods that may be run.
        results: Function from numbers, a seed and a number of processes to results.
    """

    noun: str
    methods: Sequence[ListedMethod]
    results: Callable[[Iterable[int], int, int], Iterator[InstanceResult]]


class _NamedAnswer(CountedAnswer, Protocol):
    """An answer and the method that gave it."""

    @property
    def tested(self) -> ListedMethod:
        """The method."""


class _CheckedInstance(Protocol):
    """One instance of any kind, checked with all methods."""

    @property
    def number(self) -> int:
        """Number of the instance."""

    @property
    def answers(self) -> Sequence[_NamedAnswer]:
        """Answers of all methods."""

    @property
    def reason(self) -> str:
        """The reason why not all can be right; empty if they can."""


_Check = TypeVar("_Check", bound=_CheckedInstance)


def _suite(
    noun: str,
    methods: Sequence[ListedMethod],
    checked: Callable[[Iterable[int], int, int], Iterator[_Check]],
    report: Callable[[_Check, int], ContradictionReport],
) -> Suite:
    """Return a suite from a function that checks instances, and one that reports a check."""

    def results(numbers: Iterable[int], seed: int, workers: int) -> Iterator[InstanceResult]:
        for check in checked(numbers, seed, workers):
            yield InstanceResult(
                number=check.number,
                answers=[(answer.tested.name, answer) for answer in check.answers],
                reason=check.reason,
                report=partial(report, check, seed),
            )

    return Suite(noun=noun, methods=methods, results=results)


def chain_suite(methods: Sequence[MethodUnderTest] = TESTED_METHODS) -> Suite:
    """Return the suite of chains for `methods`."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[ChainCheck]:
        return chain_checks(numbers, seed=seed, methods=methods, workers=workers)

    def report(check: ChainCheck, seed: int) -> ContradictionReport:
        assert check.contradiction is not None, "only contradictions are reported"
        small = minimised_chain(check.instance, check.contradiction.between)
        return ContradictionReport(
            chain_counter_example(check, seed=seed, instance=small), len(small.profile)
        )

    return _suite("chains", methods, checked, report)


def offload_suite(
    methods: Sequence[OffloadMethodUnderTest] = TESTED_OFFLOAD_METHODS,
) -> Suite:
    """Return the suite of offloading instances for `methods`."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[OffloadCheck]:
        return offload_checks(numbers, seed=seed, methods=methods, workers=workers)

    def report(check: OffloadCheck, seed: int) -> ContradictionReport:
        small = minimised_offload(check)
        return ContradictionReport(
            offload_counter_example(small, seed=seed), len(small.instance.profile)
        )

    return _suite("offloading instances", methods, checked, report)


def join_suite(methods: Sequence[JoinMethodUnderTest] = TESTED_JOIN_METHODS) -> Suite:
    """Return the suite of joins of both models for `methods`."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[JoinCheck]:
        return join_checks(numbers, seed=seed, methods=methods, workers=workers)

    def report(check: JoinCheck, seed: int) -> ContradictionReport:
        small = minimised_join(check)
        return ContradictionReport(
            join_counter_example(small, seed=seed), small.instance.profile.stages
        )

    return _suite("joins", methods, checked, report)


def hybrid_suite(methods: Sequence[HybridMethodUnderTest] = TESTED_HYBRID_METHODS) -> Suite:
    """Return the suite of chains to recompute and offload for `methods`."""

    def checked(numbers: Iterable[int], seed: int, workers: int) -> Iterator[HybridCheck]:
        return hybrid_checks(numbers, seed=seed, methods=methods, workers=workers)

    def report(check: HybridCheck, seed: int) -> ContradictionReport:
        small = minimised_hybrid(check)
        return ContradictionReport(
            hybrid_counter_example(small, seed=seed), len(small.instance.profile)
        )

    return _suite("hybrid instances", methods, checked, report)


SUITES: Final[Mapping[str, Suite]] = MappingProxyType(
    {
        "chain": chain_suite(),
        "join": join_suite(),
        "hybrid": hybrid_suite(),
        "offload": offload_suite(),
    }
)
