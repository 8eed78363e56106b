"""The best plan for given amounts, when bytes flow one by one and all offloads come first."""

from __future__ import annotations

from collections.abc import Sequence

from chainstay.errors import InvalidProfileError
from chainstay.problems.offload import OffloadProblem
from chainstay.problems.ordered_no_wait import OrderedNoWait, OrderedPlan


def byte_ticks(problem: OffloadProblem) -> int:
    """Return the ticks of the link that one byte takes.

    Raises:
        InvalidProfileError: The link has latency, or runs both ways at once: Algorithm 1 and
            Greedy do not apply to such links.
    """
    link = problem.link
    if link.latency or link.is_full_duplex:
        raise InvalidProfileError(
            f"{problem.transfers} transfers are solved over half-duplex links without latency, "
            f"not over {link}; use another link, or transfers='integral', which allows all links"
        )
    return link.transfer_ticks(1)


def greedy_amounts(problem: OffloadProblem) -> list[int]:
    """Return what Greedy moves: from the first activation on, exactly what the peak is too high.

    Returns:
        Shape (n,), bytes; in the last activation that moves they may be a part of it.
    """
    left = max(0, problem.profile.peak_bytes - problem.budget)
    amounts = []
    for size in problem.profile.activations[:-1]:
        amounts.append(min(size, left))
        left -= amounts[-1]
    return amounts


def fluid_plan(problem: OffloadProblem, amounts: Sequence[int]) -> OrderedPlan | None:
    """Return the best offload-before-prefetch plan that moves `amounts`, or ``None`` if none fits.

    Args:
        problem: Its link has neither latency nor two directions at once.
        amounts: Shape (n,), bytes of every activation that move.

    Complexity:
        O(n log n).
    """
    ordered = OrderedNoWait.from_problem(problem, amounts, byte=byte_ticks(problem))
    return ordered.plan(range(len(amounts)))
