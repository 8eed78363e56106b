"""The method `DP`: dynamic programs for chains, their budget curves and least budgets.

The persistent program is Theorem 4.8 of [BEHJS24], which is right as printed (`recursion` tells
the one liberty taken). Three codes solve it: step functions (`chainstay.dp.chain`, exact in bytes),
a dense table (`chainstay.dp.table`, on slots) and the least memory alone. `chainstay.dp.weak` and
`chainstay.dp.free_discards` solve wider families.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from chainstay.dp.chain.fronts import ChainFronts, is_compiled, least_memory
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.forward_costs import Array
from chainstay.dp.free_discards.solver import (
    free_discards_least_budget,
    keeps_stages_apart,
    may_drop_inputs,
    solve_free_discards,
)
from chainstay.dp.jit import at_first_interpreted
from chainstay.dp.recursion import Decide, Recursion, assemble
from chainstay.dp.table import INFEASIBLE, Table
from chainstay.dp.weak.solver import solve_weak, weak_least_budget
from chainstay.errors import InfeasibleBudgetError, UnknownMethodError
from chainstay.problems.arguments import require_kind, require_whole
from chainstay.problems.exactness import is_complete
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family

_PERSISTENCES: Final = ("strong", "weak")
_SHORT: Final = 40
"""Stages up to which the wider programs take about a second without compilation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DP:
    """Dynamic program over persistent schedules; call it with a profile and a budget.

    Attributes:
        persistence: ``"strong"``: once kept, a value stays until its backward. ``"weak"``:
            a checkpoint may move on before (`chainstay.dp.weak`), which can be a little faster.
        discards: What may be dropped, and when. ``"table1"``: these programs need no drops of
            their own. ``"tape"``: nor here; but where a stage or option needs no input, that goes
            as soon as nothing needs it (in bytes, ``"strong"``, no option of several stages).
            ``"free"``: saved data may outlive their input (`chainstay.dp.free_discards`), which is
            faster by a few percent.
        slots: ``None`` solves exactly in bytes. A number solves a table of that many memory
            slots twice, rounding both ways: a schedule that fits, and a lower bound.

    Raises:
        UnknownMethodError: A setting that does not exist, or two that do not go together.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> str(DP()(chain, 90).schedule)
        'Fa0 Fc1 Fc2 Fa3 B3 Fa2 B2 Fa1 B1 B0'
    """

    persistence: str = "strong"
    discards: Discards | str = Discards.TABLE1
    slots: int | None = None

    def __post_init__(self) -> None:
        Discards(self.discards)  # refuses rules that there are not
        if self.persistence not in _PERSISTENCES:
            raise UnknownMethodError(
                f"persistence is {self.persistence!r}, must be 'strong' or 'weak'"
            )
        if self.persistence == "weak" and self.discards == Discards.FREE:
            raise UnknownMethodError(
                "persistence is 'weak' and discards 'free', but no program solves both together; "
                "ask for DP(persistence='weak') or for DP(discards='free')"
            )
        is_whole = isinstance(self.slots, int) and not isinstance(self.slots, bool)
        if self.slots is not None and not (is_whole and self.slots > 0):
            raise UnknownMethodError(f"slots is {self.slots!r}, must be a positive integer or None")
        if self.slots is not None and self._wider:
            raise UnknownMethodError(
                f"slots is {self.slots}, but {self._wider} is solved in bytes only; leave slots out"
            )

    def __str__(self) -> str:
        weak = ["weakly persistent"] if self.persistence == "weak" else []
        rules = [] if self.discards == Discards.TABLE1 else [f"{self.discards} discards"]
        slots = [] if self.slots is None else [f"{self.slots} slots"]
        return ", ".join(["dp", *weak, *rules, *slots])

    @property
    def _wider(self) -> str | None:
        """The setting, if any, that asks for more than the persistent program."""
        if self.discards == Discards.FREE:
            return "discards='free'"
        return "persistence='weak'" if self.persistence == "weak" else None

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the fastest persistent schedule of `profile` within `budget`.

        Args:
            profile: Chain of n stages; times in ns, sizes in bytes.
            budget: Bytes for the input, activations, saved tensors and their gradients.
            hint: Not used; the program is exact without one.

        Returns:
            The schedule, at most n (n + 1) operations, with a lower bound equal to its
            makespan (with slots: at most). The family is `Family.ALL` where schedules of
            this persistence are known to be as good as any; with ``"weak"``, `discards`
            tells under which rules. How much any other schedule could gain at most is in
            `unrestricted_bound`.

        Raises:
            InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
            InvalidProfileError: The sizes overflow exact 64-bit arithmetic, the chain has
                skips and persistence is ``"weak"``, or an option keeps several stages and
                discards are ``"free"``.

        Complexity:
            Worst case O(n^3 p) for fronts of p breakpoints; pruned by a bound, chains of
            300 measured stages take less than a second. With slots: O(n^3 slots). Free
            discards: O(n^3 p), a second or two for 300 stages. Weak: O(n^4 p), a few seconds
            for 300 stages.
        """
        del hint
        require_kind(profile, ChainProfile)
        require_whole(budget)
        is_tape, is_weak = self.discards == Discards.TAPE, self.persistence == "weak"
        may_drop = is_tape and may_drop_inputs(profile)
        is_short = len(profile) <= _SHORT
        with at_first_interpreted(when=is_short and (may_drop or self._wider is not None)):
            if self.discards == Discards.FREE:
                return solve_free_discards(profile, budget)
            is_exact = not is_weak and self.slots is None and keeps_stages_apart(profile)
            if may_drop and is_exact:
                return solve_free_discards(profile, budget, Discards.TAPE)
            claim = (solve_weak if is_weak else self._persistent)(profile, budget)
        # discards do not break these schedules; nor, if all need their input, make others faster
        return replace(claim, discards=Discards.TAPE) if is_tape and not may_drop else claim

    def _persistent(self, profile: ChainProfile, budget: int) -> Claim:
        recursion = Recursion.from_profile(profile)
        least = least_memory(recursion)
        memory = min(budget - profile.input_bytes, recursion.keep_all_need)
        if memory < least.root:
            raise InfeasibleBudgetError(
                budget=budget,
                required=least.root + profile.input_bytes,
                stages=len(profile),
                family=Family.PERSISTENT,
            )
        if self.slots is None:
            compiled = is_compiled(len(profile))
            fronts = ChainFronts.solve(recursion, memory, least, compiled=compiled)
            schedule = assemble(recursion, memory, fronts.decisions(memory))
            overhead = bound = int(fronts.root.overhead[-1])
        else:
            schedule, overhead, bound = _on_slots(profile, recursion, least, memory, self.slots)
        return Claim(
            schedule=schedule,
            makespan=recursion.base_time + overhead,
            lower_bound=recursion.base_time + bound,
            family=_family(profile, recursion.base_time, overhead),
        )

    def curve(self, profile: ChainProfile) -> BudgetCurve:
        """Return the least makespan as a function of the budget, from one solve.

        Exact in bytes, the curve has as many breakpoints as there are trade-offs, which on long
        chains of unrelated sizes can be very many; with ``slots`` it has at most that many.

        Raises:
            InvalidProfileError: The sizes overflow exact 64-bit arithmetic.
            UnknownMethodError: There is no curve with ``persistence="weak"`` or
                ``discards="free"``.
        """
        if self._wider:
            raise UnknownMethodError(
                f"there is no curve for {self._wider}, only for persistence='strong' with "
                "discards='table1' or 'tape'"
            )
        require_kind(profile, ChainProfile)
        recursion = Recursion.from_profile(profile)
        memory = recursion.keep_all_need
        unit = 1 if self.slots is None else _unit(memory, self.slots)
        solved: ChainFronts | Table
        if self.slots is None:
            solved = ChainFronts.all(recursion, memory, compiled=is_compiled(len(profile)))
        else:
            solved = Table.fill(recursion.rounded(unit, up=True), -(-memory // unit) + 1)
        memories, overhead = solved.root
        return BudgetCurve(
            budgets=memories * unit + profile.input_bytes,
            makespans=overhead + recursion.base_time,
            _recursion=solved.recursion,
            _decide=solved.decide,
            _memories=memories,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCurve:
    """The least makespan for every budget: a falling staircase.

    Attributes:
        budgets: Shape (breakpoints,), bytes, strictly ascending; the first is the least
            feasible budget.
        makespans: Shape (breakpoints,), ns, strictly descending; ``makespans[i]`` holds from
            ``budgets[i]`` up to the next breakpoint, the last one for any larger budget.
    """

    budgets: Array
    makespans: Array
    _recursion: Recursion = field(repr=False)
    _decide: Decide = field(repr=False)
    _memories: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.budgets)

    def makespan(self, budget: int) -> int:
        """Return the least makespan within `budget` bytes, in ns.

        Raises:
            InfeasibleBudgetError: The budget lies below the first breakpoint.
        """
        return int(self.makespans[self._index(budget)])

    def schedule(self, budget: int) -> Schedule:
        """Return a schedule that attains `makespan`, without solving again.

        Raises:
            InfeasibleBudgetError: The budget lies below the first breakpoint.
        """
        memory = int(self._memories[self._index(budget)])
        return assemble(self._recursion, memory, self._decide)

    def _index(self, budget: int) -> int:
        require_whole(budget)
        index = int(np.searchsorted(self.budgets, budget, side="right")) - 1
        if index < 0:
            raise InfeasibleBudgetError(
                budget=budget,
                required=int(self.budgets[0]),
                stages=self._recursion.stages,
                family=Family.PERSISTENT,
            )
        return index


def least_budget(
    profile: ChainProfile,
    *,
    persistence: str = "strong",
    discards: Discards | str = Discards.TABLE1,
) -> int:
    """Return the least budget, in bytes, for which ``DP`` with these settings has a schedule.

    Raises:
        UnknownMethodError: The persistence or the rules do not exist, or not together.

    Complexity:
        O(n^3) time in n array operations; weak: O(n^4).
    """
    require_kind(profile, ChainProfile)
    is_weak = DP(persistence=persistence, discards=discards).persistence == "weak"
    with at_first_interpreted(when=len(profile) <= _SHORT):
        if is_weak:
            return weak_least_budget(profile)
        drops = discards == Discards.TAPE and may_drop_inputs(profile)
        if discards == Discards.FREE or (drops and keeps_stages_apart(profile)):
            return free_discards_least_budget(profile, Discards(discards))
    return least_memory(Recursion.from_profile(profile)).root + profile.input_bytes


def _on_slots(
    profile: ChainProfile, recursion: Recursion, least: LeastMemory, memory: int, slots: int
) -> tuple[Schedule, int, int]:
    """Return a schedule, its overhead and a lower bound in ns, from tables rounded both ways."""
    unit = _unit(memory, slots)
    table = Table.fill(recursion.rounded(unit, up=True), memory // unit)
    overhead = table.overhead(0, recursion.stages - 1, memory // unit)
    if overhead < INFEASIBLE:
        schedule = assemble(table.recursion, memory // unit, table.decide)
    else:  # only rounding made it infeasible: fall back on what is known to fit
        schedule = assemble(recursion, memory, least.decide)
        overhead = time_of(profile, schedule) - recursion.base_time
    if unit == 1:
        return schedule, overhead, overhead
    room = -(-memory // unit)
    optimist = Table.fill(recursion.rounded(unit, up=False), room)
    return schedule, overhead, optimist.overhead(0, recursion.stages - 1, room)


def _unit(memory: int, slots: int) -> int:
    """Return the bytes per slot."""
    return max(1, -(-memory // slots))


def _family(profile: ChainProfile, base_time: int, overhead: int) -> Family:
    """Return the largest family of schedules among which a persistent optimum is the optimum.

    Nothing is faster than the least time. THEORY, domain C: when no gradient exceeds its
    activation, saved data contain the output, a forward never needs more than its backward
    and activations do not grow along the chain, persistent schedules are as good as any. With
    skips or options nothing is known.
    """
    if overhead == 0 and base_time == profile.least_time:
        return Family.ALL
    is_shrinking = bool((np.diff(profile.arrays().activation) <= 0).all())
    in_domain = profile.is_plain and is_shrinking and is_complete(profile, Discards.TABLE1)
    return Family.ALL if in_domain else Family.PERSISTENT
