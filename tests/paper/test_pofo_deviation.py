"""Where [POFO] as printed is wrong: the recurrence with its own term gives another number."""

from __future__ import annotations

from fractions import Fraction

from chainstay.dp.hybrid.exact import Amounts, ExactHybrid, Plan
from chainstay.profiles import ChainProfile, Link, Stage
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.hybrid_fluid import fractional_makespan

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

    def _onward(self, state, following, times, ends):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        best, back = None, times[1]
        if not following[1]:
            alone = self.inner(state.stage, following[0] - 1, state.kept, state.returning)
            assert alone is not None, "less is kept than where it fits"
            back = alone[0]
        for moves in (True,) if state.must_leave else (False, True):
            size = state.size * moves
            rest = self.outer(
                following[0],
                is_saved=following[1],
                kept=state.kept + state.size - size,
                leaving=max(0, state.leaving + size - times[0]),
                returning=max(0, state.returning - back) + size,
            )
            if rest is not None and (best is None or rest.cost < best.cost):
                best = rest
        return None if best is None else Plan(best.cost + sum(times), ends[0], frozenset())


def test_the_input_is_there_while_stages_are_recomputed() -> None:
    amounts = Amounts.of(PROFILE, 8, LINK)
    plan, printed = ExactHybrid.solve(amounts), Printed.solve(amounts)
    assert plan is not None
    assert printed is not None
    assert (plan.cost, printed.cost) == (5, 6)
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    moves = tuple(Op(kinds[kind], i) for kind, i in sorted(plan.moved))
    schedule = Schedule((*moves, *plan.ops))
    assert fractional_makespan(PROFILE, schedule, budget=8, link=LINK) == Fraction(5)
