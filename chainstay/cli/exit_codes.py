"""Exit codes of the command line: one for each kind of end."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
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


class ExitCode(IntEnum):
    """The exit codes; ``chainstay --help`` lists them.

    Attributes:
        DONE: All went well.
        FAILED: A check failed: methods contradict each other, a step is not what plain PyTorch
            does, or memory exceeds the plan.
        MISUSED: An option, a file or a name is wrong; nothing was done.
        INFEASIBLE: Nothing fits in the budget; the text names the least one that would do.
        UNSUPPORTED: The model cannot be built, cut into stages or run.
        MISMATCHED: The plan is for another model, input or machine.
        UNSOLVED: A solver is missing, or ran out of time with nothing to show.
        INTERRUPTED: Ctrl-C; the code that shells report for it.
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
    """Options or arguments are wrong; the text says what is allowed."""


def likely_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint of an error: which of the `known` names are like `name`, or `otherwise`."""
    close = get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def exit_code_for(error: ChainstayError | OSError) -> ExitCode:
    """Return the exit code for `error`."""
    match error:
        case CertificateError():
            return ExitCode.FAILED
        case InfeasibleBudgetError() | HostBudgetError():
            return ExitCode.INFEASIBLE
        case UnsupportedModelError():
            return ExitCode.UNSUPPORTED
        case PlanMismatchError():
            return ExitCode.MISMATCHED
        case SolverLimitError() | BackendError():
            return ExitCode.UNSOLVED
    return ExitCode.MISUSED
