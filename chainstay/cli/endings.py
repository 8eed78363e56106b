"""How the command line ends: one status for each kind of end."""

from __future__ import annotations

from enum import IntEnum

from chainstay.errors import (
    BackendError,
    CertificateError,
    ChainstayError,
    HostBudgetError,
    InfeasibleBudgetError,
    PlanMismatchError,
    SolverLimitError,
    UnsupportedModelError,
)

__all__ = ["CommandLineError", "Ending", "ending_of"]


class Ending(IntEnum):
    """Exit statuses; ``chainstay --help`` lists them.

    Attributes:
        DONE: All went well.
        FAILED: A check failed: methods contradict each other, a step is not what plain PyTorch
            does, or memory exceeds the plan.
        MISUSED: An option, a file or a name is wrong; nothing was done.
        INFEASIBLE: Nothing fits in the budget; the text names the least one that would do.
        UNSUPPORTED: The model cannot be built, cut into stages or run.
        MISMATCHED: The plan is for another model, input or machine.
        UNSOLVED: A solver is missing, or ran out of time with nothing to show.
        INTERRUPTED: Ctrl-C; what shells report for it.
    """

    DONE = 0
    FAILED = 1
    MISUSED = 2
    INFEASIBLE = 3
    UNSUPPORTED = 4
    MISMATCHED = 5
    UNSOLVED = 6
    INTERRUPTED = 130


class CommandLineError(ChainstayError):
    """What was typed cannot be meant; the text says what can."""


def ending_of(error: ChainstayError) -> Ending:
    """The status that tells of `error`."""
    match error:
        case CertificateError():
            return Ending.FAILED
        case InfeasibleBudgetError() | HostBudgetError():
            return Ending.INFEASIBLE
        case UnsupportedModelError():
            return Ending.UNSUPPORTED
        case PlanMismatchError():
            return Ending.MISMATCHED
        case SolverLimitError() | BackendError():
            return Ending.UNSOLVED
    return Ending.MISUSED
