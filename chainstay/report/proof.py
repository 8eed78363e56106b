"""The proof of a plan, in plain words."""

from __future__ import annotations

from typing import Final, NamedTuple

from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.schedule import Discards
from chainstay.solution import Family, Solution
from chainstay.timetable import Time, Transfers
from chainstay.units import format_bound, format_time

_FAMILIES: Final = {
    Family.PERSISTENT: "Persistent: a value that is kept stays in memory until its backward has "
    "used it; whatever is not kept is recomputed from what is, each forward followed at once by "
    "that of the next stage.",
    Family.WEAKLY_PERSISTENT: "Weakly persistent: what a stage saved stays until its backward; a "
    "plain checkpoint may move on to a later stage before that.",
    Family.SINGLE_SWEEP: "Single-sweep: between two backwards, forwards run in increasing order "
    "of their stages.",
    Family.CANONICAL_PERSISTENT: "Canonical persistent: what is kept stays until its backward, on "
    "every branch and the tail, and branches run backward in the reverse order of their last "
    "checkpoints.",
    Family.SINGLE_TURN: "Single-turn: every schedule that runs the turn, where forward becomes "
    "backward, once.",
    Family.OFFLOAD_FIRST: "Offload-before-prefetch: everything that leaves has left before the "
    "first comes back, and it comes back in reverse order.",
    Family.TWICE: "At-most-twice: between two backwards at most two sweeps of forwards in "
    "increasing order of their stages, and at most two prefetches of each tensor.",
    Family.ALL: "All: every valid schedule under these rules, without restriction.",
}
_DISCARDS: Final = {
    Discards.TABLE1: "Data are dropped by forwards and backwards only, as in Table 1 of the rotor "
    "paper.",
    Discards.TAPE: "Data may be dropped at any time, but never the input of what a stage saved.",
    Discards.FREE: "Any data may be dropped at any time, even the input of what a stage saved.",
}
_TRANSFERS: Final = {
    Transfers.INTEGRAL: "Transfers are integral: whole tensors, without interruption.",
    Transfers.INTERRUPTIBLE: "Transfers are interruptible: whole tensors, byte by byte, in as many "
    "pieces as it takes.",
    Transfers.FRACTIONAL: "Transfers are fractional: a part of a tensor may stay, and the rest "
    "moves byte by byte.",
}


class ProofText(NamedTuple):
    """The text that says how good a plan is.

    Attributes:
        verdict: Two or three words.
        sentence: One sentence that says what is proved.
        facts: Names and values.
        notes: Explanations of the names.
    """

    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def proof_text(solution: Solution) -> ProofText:
    """Return the text of the proof that comes with `solution`."""
    if solution.is_optimal:
        verdict = "proved optimal"
        sentence = f"Of {solution.covered}, none within this budget takes less time than this one."
    elif solution.lower_bound:
        verdict = f"within {format_bound(solution.gap)}"
        sentence = (
            f"Of {solution.covered}, none within this budget takes less than "
            f"{format_time(solution.lower_bound)}: at most {format_bound(solution.gap)} of this "
            "plan's time could be saved. Whether any of it can is not known."
        )
    else:
        verdict = "no bound known"
        sentence = "How much faster another schedule could be is not known."
    if solution.unrestricted_bound and not solution.covers_everything:
        sentence += (
            f" No schedule{solution.techniques or ' at all'}, of whatever family, saves more than "
            f"{format_bound(solution.unrestricted_gap)} of its time."
        )
    return ProofText(verdict, sentence, _facts(solution), _notes(solution))


def _facts(solution: Solution) -> tuple[tuple[str, str], ...]:
    facts = [
        ("Method", solution.method),
        ("Found in", format_time(solution.solve_seconds * 1e9)),
        ("Time of a step", _both(solution.makespan)),
        ("Lower bound", _both(solution.lower_bound)),
        ("Gap", format_bound(solution.gap) if not solution.is_optimal else "none"),
        ("Family", str(solution.family)),
    ]
    if solution.unrestricted_bound:
        facts.append(("Bound on all schedules", _both(solution.unrestricted_bound)))
    if isinstance(solution, HybridSolution):
        facts += [
            (f"Instead: {name}", "does not fit" if time is None else _both(time))
            for name, time in solution.alternatives
        ]
    return tuple(facts)


def _both(time: Time | float) -> str:
    number = float(time)
    return f"{format_time(number)} ({number:,.0f} ns)" if number >= 1000 else format_time(number)


def _notes(solution: Solution) -> tuple[str, ...]:
    notes = [_FAMILIES[solution.family], _DISCARDS[solution.discards]]
    if isinstance(solution, OffloadSolution):
        notes.append(_TRANSFERS[solution.transfers])
    return tuple(filter(None, notes))
