"""From the hybrid constraint program to a claim."""

from __future__ import annotations

from chainstay.formulations.cpsat.binding import solve
from chainstay.formulations.cpsat.hybrid import build
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.cpsat.programs import decoded, start_from
from chainstay.formulations.extent import Extent
from chainstay.formulations.hybrid_proof import Known, Proof, grown_claim
from chainstay.formulations.settings import Limits, Verdict
from chainstay.hybrid import HybridClaim, HybridProblem
from chainstay.timetable import Time, exact

__all__ = ["claim"]


def claim(
    problem: HybridProblem, method: CPSAT, *, known: Known | None = None, least: Time = 0
) -> HybridClaim:
    """The fastest program list that CP-SAT finds, and what it proves.

    Args:
        problem: Feasible; its transfers are integral.
        method: Limits; the time is that of all models together.
        known: An answer to start from.
        least: A makespan that no answer is below.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest extent.
        BackendError: OR-Tools is missing, or CP-SAT failed.
        InvalidProfileError: The sizes add up to more than 2**53.
    """

    def solved(proof: Proof, extent: Extent, seconds: float) -> bool:
        of = build(problem, extent, known=proof.makespan, least=proof.bound)
        if known is not None:
            start_from(of, known.schedule, known.timetable)
        limits = Limits(time_s=seconds, threads=method.workers, seed=method.seed)
        outcome = solve(of.model, limits)
        if outcome.values is not None:
            proof.found(decoded(of, outcome), exact(of.time(outcome.objective)))
        if outcome.verdict is Verdict.INFEASIBLE:
            proof.bounded(extent, proof.makespan)
        elif outcome.bound is not None:
            proof.bounded(extent, exact(of.bound(outcome.bound)))
        return outcome.verdict is not Verdict.LIMIT

    return grown_claim(problem, method, solved, known=known, least=least)
