"""Every exception chainstay raises on purpose, in one tree.

Numbers a caller may act on are attributes; the text says what was found, what was
needed and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chainstay.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

_LISTING_RADIUS = 4


class ChainstayError(Exception):
    """Root of the tree: catch this to catch everything chainstay raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state, so that errors cross process borders with their numbers."""
        return _restored, (type(self), self.args), self.__dict__


class InvalidProfileError(ChainstayError, ValueError):
    """A profile (or its JSON document) holds a value that no network can have."""


class InvalidBudgetError(ChainstayError, ValueError):
    """A memory budget that is not a positive whole number of bytes, nor text for one."""


class UnknownDeviceError(ChainstayError, ValueError):
    """A device whose speed chainstay has no data of."""


class UnknownMethodError(ChainstayError, ValueError):
    """A method (or method setting) that chainstay does not have."""


class InvalidSolutionError(ChainstayError, ValueError):
    """A solution (or its JSON document) contradicts itself."""


class InvalidPlanError(ChainstayError, ValueError):
    """A plan file that cannot be read, or whose schedule does not do what the file says."""


class InvalidScheduleError(ChainstayError, ValueError):
    """A schedule that cannot be parsed, or that breaks the rules of the memory model.

    Attributes:
        index: Position of the offending operation in the schedule, counted from 0
            (``None`` when the schedule as a whole is at fault).
        reason: Text of the error without the excerpt of the schedule.
    """

    def __init__(
        self, reason: str, *, index: int | None = None, ops: Sequence[object] = ()
    ) -> None:
        self.index = index
        self.reason = reason
        super().__init__(reason if index is None else _point_at(reason, index, ops))


class InfeasibleBudgetError(ChainstayError):
    """No schedule of the searched family fits in the budget.

    Attributes:
        budget: The budget that was asked for, in bytes.
        required: The least budget, in bytes, for which the same call has an answer; of family
            ``"known"``, one for which it has an answer, and the least that the call found.
        reason: A clause on what needs so much; empty if that is not known.

    Args:
        budget: As the attribute.
        required: As the attribute.
        stages: Length of the chain.
        family: The class of schedules that was searched; ``"all"`` for every valid one.
        network: ``"chain"`` or ``"join"``.
        unit: ``"bytes"``, or what else budgets count, such as ``"slots"``.
        plain: Bytes that plain training needs, if that is known.
        reason: A clause on what needs so much, if that is known.
    """

    def __init__(  # noqa: PLR0913  # all by name, each a part of the message
        self,
        *,
        budget: int,
        required: int,
        stages: int,
        family: str,
        network: str = "chain",
        unit: str = "bytes",
        plain: int = 0,
        reason: str = "",
    ) -> None:
        self.budget = budget
        self.required = required
        self.reason = reason
        self._searched: Any = {
            "stages": stages, "family": family, "network": network, "unit": unit, "reason": reason
        }  # fmt: skip
        self._plain = plain
        which = "" if family == "all" else f"{family} "
        amounts = [_exact(n) if unit == "bytes" else f"{n} {unit}" for n in (budget, required)]
        known = which if family == "known" else ""
        is_share = unit == "bytes" and budget <= 100 and required >= 1024
        share = f"A share of plain training is written '{budget}%'. " if is_share else ""
        remedy = "Raise the budget, shrink the batch, or cut the model into finer stages."
        if plain:
            because = f"; {reason}" * bool(reason)
            share = f"That is {required / plain:.0%} of plain training{because}. {share}"
            remedy = "Raise the budget, or shrink the batch."
        super().__init__(
            f"no {which}schedule of this {stages}-stage {network} fits in {amounts[0]}; "
            f"the least feasible budget {known}is {amounts[1]}. {share}{remedy}"
        )

    def known(self, budget: int, required: int) -> InfeasibleBudgetError:
        """Return the refusal of a budget whose least feasible one is known by trying it out."""
        searched = self._searched | {"family": "known"}
        return InfeasibleBudgetError(
            budget=budget, required=required, plain=self._plain, **searched
        )

    def beside(self, plain: int) -> InfeasibleBudgetError:
        """Return the same refusal of a model whose plain training needs so many bytes."""
        plain = self._plain or plain
        return InfeasibleBudgetError(
            budget=self.budget, required=self.required, plain=plain, **self._searched
        )


class HostBudgetError(ChainstayError):
    """A plan needs more host memory for what is away from the device than it may have.

    Attributes:
        budget: The ``host_budget``, in bytes.
        required: Bytes that the plan needs; where `is_least` is false, at least so many.

    Args:
        budget: As the attribute.
        required: As the attribute.
        is_least: True if `required` is enough for sure.
    """

    def __init__(self, *, budget: int, required: int, is_least: bool) -> None:
        self.budget = budget
        self.required = required
        super().__init__(
            f"host_budget is {_exact(budget)}, the plan needs {'' if is_least else 'at least '}"
            f"{_exact(required)} of host memory. Raise host_budget, or raise budget so that less "
            "is offloaded."
        )


class SolverLimitError(ChainstayError):
    """The solver's limit was reached before it had any schedule to show.

    Attributes:
        best_bound: Proved lower bound on the makespan so far, in ns (``None``: none yet).
    """

    def __init__(self, message: str, *, best_bound: int | None = None) -> None:
        self.best_bound = best_bound
        super().__init__(message)


class BackendError(ChainstayError):
    """A third-party solver is missing, failed to start, or returned nonsense."""


class CertificateError(ChainstayError):
    """The simulator or another method contradicts a claim: a bug of the method, not in your input.

    Attributes:
        profile: The `ChainProfile`.
        budget: Bytes.
        statements: Results of the methods, each a `chainstay.problems.consistency.MethodResult`.
        report: All of that as a JSON document, to be reported; also a note of the error.
    """

    def __init__(
        self,
        message: str,
        *,
        profile: object,
        budget: int,
        statements: tuple[object, ...],
        report: str,
    ) -> None:
        self.profile = profile
        self.budget = budget
        self.statements = statements
        self.report = report
        super().__init__(message)


class UnsupportedModelError(ChainstayError):
    """The model cannot be run as a chain of stages; the text names the stage and the reason."""


class NotAJoinError(UnsupportedModelError):
    """The model is no join of independent branches; the text says why."""


class PlanMismatchError(ChainstayError):
    """A schedule was applied to a model or an input that it was not made for.

    Attributes:
        differences: Each thing that differs from what a plan file says, for people.
    """

    def __init__(self, message: str, *, differences: tuple[str, ...] = ()) -> None:
        self.differences = differences
        super().__init__(message)


def type_with_article(value: object) -> str:
    """Return what errors call the type of `value`.

    Examples:
        >>> type_with_article([]), type_with_article(3), type_with_article(None)
        ('a list', 'an int', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _exact(size: int) -> str:
    """Return `size` for people and, where that rounds, in bytes."""
    return format_bytes(size) if size < 1024 else f"{format_bytes(size)} ({size} bytes)"


def _restored(kind: type[ChainstayError], args: tuple[object, ...]) -> ChainstayError:
    """Return an error as it was, without running its ``__init__`` again."""
    return kind.__new__(kind, *args)


def _point_at(reason: str, index: int, ops: Sequence[object]) -> str:
    """Return the text of an error with an excerpt of the schedule that marks the wrong step."""
    lines = [f"step {index + 1}: {reason}"]
    first, last = max(0, index - _LISTING_RADIUS), min(len(ops), index + _LISTING_RADIUS + 1)
    for position in range(first, last):
        arrow = "-->" if position == index else "   "
        lines.append(f"{arrow} {position + 1:6d}  {ops[position]}")
    return "\n".join(lines)
