"""From the hybrid Pyomo model to a claim."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from chainstay.formulations import backends, hybrid
from chainstay.formulations.algebra import pyo
from chainstay.formulations.believing import are_moderate, error_of
from chainstay.formulations.extent import Extent, items_of, size_of
from chainstay.formulations.hybrid_proof import Known, Proof, grown_claim
from chainstay.formulations.mip import MIP
from chainstay.formulations.settings import Limits, Verdict
from chainstay.hybrid import HybridClaim, HybridProblem
from chainstay.timetable import Time, exact

__all__ = ["claim"]

_GAP: Final = 0.5
"""Of a unit: objectives are whole units, so below it nothing is left to find."""


def claim(
    problem: HybridProblem, method: MIP, *, known: Known | None = None, least: Time = 0
) -> HybridClaim:
    """The fastest program list that the problem's models have, and what they prove.

    Args:
        problem: Feasible; its transfers are integral.
        method: Limits; the time is that of all models together.
        known: An answer to return if nothing better is found; slower ones are not looked for.
        least: A makespan that no answer is below.

    Returns:
        Where amounts are so large that HiGHS is not to be believed, nothing is proved.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest extent.
        BackendError: The solver is missing or failed.
    """

    def solved(proof: Proof, extent: Extent, seconds: float) -> bool:
        limits = Limits(time_s=seconds, threads=method.threads, seed=method.seed)
        return _solved(proof, extent, limits)

    return grown_claim(problem, method, solved, known=known, least=least)


def _solved(proof: Proof, extent: Extent, limits: Limits) -> bool:
    """Solve one model and tell `proof`; whether that came to an end that is believed."""
    problem = proof.problem
    formulation = hybrid.build(problem, extent, known=proof.makespan)
    outcome = backends.solve(formulation.model, limits, gap=_GAP)
    unit = Fraction(formulation.unit, problem.link.ticks)
    is_believed = _is_moderate(problem, formulation.unit)
    if outcome.verdict is Verdict.INFEASIBLE:
        if is_believed:
            proof.bounded(extent, proof.makespan)
        return is_believed
    if outcome.has_values:
        makespan = exact(unit * round(pyo.value(formulation.model.makespan)))
        proof.found(formulation.decode(), makespan)
    if is_believed and math.isfinite(outcome.bound):
        proof.bounded(extent, exact(unit * math.ceil(outcome.bound - error_of(outcome))))
    return is_believed and outcome.verdict is not Verdict.LIMIT


def _is_moderate(problem: HybridProblem, unit: int) -> bool:
    """Whether HiGHS's proofs about amounts of this size are to be believed."""
    profile, link = problem.profile, problem.link
    sizes = [size_of(problem, item) for item in items_of(problem)]
    amounts = [link.transfer_ticks(size, k) for size in sizes for k in range(len(link.levels))]
    for stage in profile.stages:
        amounts += [stage.forward_time * link.ticks, stage.backward_time * link.ticks]
    return are_moderate(amounts, unit)
