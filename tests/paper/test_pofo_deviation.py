"""Where [POFO] as printed is wrong: the recurrence with its own term gives another number."""

from __future__ import annotations

from fractions import Fraction

from chainstay.dp.hybrid.exact import Amounts, ExactHybrid, ExactPlan, OuterState, _Step
from chainstay.dp.hybrid.slot_chain import PLAIN
from chainstay.profiles import ChainProfile, Link, Stage
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan

SAVED, OVERHEAD = (4, 4, 3), ((1, 1, 2), (2, 1, 2))
TIMES = ((0, 0, 1), (1, 0, 0))
PROFILE = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=tuple(
        Stage(
            forward_time=TIMES[0][i],
            backward_time=TIMES[1][i],
            output_bytes=1,
            saved_bytes=SAVED[i],
            gradient_bytes=1,
            forward_overhead_bytes=OVERHEAD[0][i],
            backward_overhead_bytes=OVERHEAD[1][i],
        )
        for i in range(3)
    ),
)
LINK = Link(bandwidth=1)


class Printed(ExactHybrid):
    """``q_B`` without Z: what comes back while stages are recomputed beside their input."""

    __slots__ = ()

    def _best_after(self, state: OuterState, step: _Step) -> ExactPlan | None:
        best, back = None, step.times[1]
        if step.following[1] == PLAIN:
            alone = self.inner(state.i, step.following[0] - 1, state.kept, state.returning)
            assert alone is not None, "less is kept than where it fits"
            back = alone[0]
        for moves in (True,) if step.must_leave else (False, True):
            size = step.size * moves
            rest = self.outer(
                OuterState(
                    step.following[0],
                    form=step.following[1],
                    kept=state.kept + step.size - size,
                    leaving=max(0, state.leaving + size - step.times[0]),
                    returning=max(0, state.returning - back) + size,
                )
            )
            if rest is not None and (best is None or rest.cost < best.cost):
                best = rest
        if best is None:
            return None
        return ExactPlan(best.cost + sum(step.times), step.ops[0], frozenset())


def test_the_input_is_there_while_stages_are_recomputed() -> None:
    amounts = Amounts.from_chain(PROFILE, 8, LINK)
    plan, printed = ExactHybrid.solve(amounts), Printed.solve(amounts)
    assert plan is not None
    assert printed is not None
    assert (plan.cost, printed.cost) == (5, 6)
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    moves = tuple(Op(kinds[kind], i) for kind, i in sorted(plan.moved))
    schedule = Schedule((*moves, *plan.ops))
    assert fractional_makespan(PROFILE, schedule, budget=8, link=LINK) == Fraction(5)
