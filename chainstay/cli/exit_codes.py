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
    """The exit codes; what each means is in `chainstay.cli.app`, for ``chainstay --help``."""

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
