"""Questions to solvers while a plan for a measured chain is looked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import ChainProfile
from chainstay.solution import Method, Solution
from chainstay.solve import AutoChain, solve_chain

__all__ = ["Answers", "is_exact", "scout_of"]


Answer = Solution | InfeasibleBudgetError | SolverLimitError


@dataclass(frozen=True, slots=True)
class Answers:
    """Solutions of chains under budgets; nothing is asked twice.

    Attributes:
        known: Answers and refusals so far, by the problem; a user's own method may have no hash.
    """

    known: dict[tuple[ChainProfile, int], list[tuple[Method, Answer]]] = field(default_factory=dict)

    def solution(self, profile: ChainProfile, budget: int, method: Method) -> Solution:
        """Return the solution of `profile`; see `chainstay.solve_chain`.

        Raises:
            InfeasibleBudgetError: No schedule fits in the budget.
            SolverLimitError: The method ran out of time.
        """
        known = self.known.setdefault((profile, budget), [])
        answer = next((each for asked, each in known if asked == method), None)
        if answer is None:
            answer = _asked(profile, budget, method)
            known.append((method, answer))
        if isinstance(answer, Solution):
            return answer
        raise answer

    def least(self, profile: ChainProfile, method: Method) -> tuple[int, Solution]:
        """The least budget that the method has a solution for, and that, all times being equal.

        Raises:
            SolverLimitError: As for `chainstay.solve_chain`.
        """
        profile = replace(
            profile,
            stages=tuple(replace(each, forward_time=1, backward_time=1) for each in profile.stages),
        )
        try:
            return 1, self.solution(profile, 1, method)
        except InfeasibleBudgetError as error:
            return error.required, self.solution(profile, error.required, method)


def _asked(profile: ChainProfile, budget: int, method: Method) -> Answer:
    try:
        return solve_chain(profile, budget, method)
    except (InfeasibleBudgetError, SolverLimitError) as refusal:
        return refusal


def scout_of(method: Method) -> Method:
    """Return a quick method that looks for promising problems as `method` would."""
    match method:
        case AutoChain() | CPSAT() | MIP() | DP(persistence="weak"):
            return DP(discards=method.discards)
    return method


def is_exact(method: Method) -> bool:
    """Whether what it finds infeasible is so under lower budgets and larger overheads, too."""
    return isinstance(method, DP) and method.slots is None
