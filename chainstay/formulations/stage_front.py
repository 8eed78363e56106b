"""The integer program of a stage's saved tensors, kept or dropped: it checks the front's recursion.

The exact front of (bytes, replay time) is found by dynamic programming
(`chainstay.runtime.options.front`), without a solver. This states one point of it a second time:
the least replay time within a budget of bytes.

==============  ===========================================================
variable        is 1 if
==============  ===========================================================
``kept[i]``     the result of operator i is kept
``extra[i]``    what else it saves is kept
``replayed[i]`` it is run again
``redrawn[i]``  its noise alone is made again
==============  ===========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chainstay.errors import SolverLimitError
from chainstay.formulations.highs_backend import solve
from chainstay.formulations.pyomo_types import Model, Relation, constraint_list, pyo
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles.operators import Operator


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Positions of the operators that are run again, in whole or for their noise."""

    replayed: frozenset[int]
    redrawn: frozenset[int]


def least_replay_time(
    operators: Sequence[Operator], budget: int, limits: Limits
) -> StageChoice | None:
    """Return the choice within `budget` bytes that takes least time; ``None`` if there is none.

    Args:
        operators: The stage, in the order of its forward.
        budget: Bytes for all that is kept.
        limits: Limits of the solver.

    Raises:
        SolverLimitError: The time was up before the optimum was proved.
    """
    model = pyo.ConcreteModel()
    places = range(len(operators))
    for name in ("kept", "extra", "replayed", "redrawn"):
        setattr(model, name, pyo.Var(places, within=pyo.Binary, initialize=0))
    model.rows = constraint_list(_rows(model, operators))
    model.memory = constraint_list([_kept_bytes(model, operators) <= budget])
    model.time = pyo.Objective(
        expr=sum(operators[i].time * (model.replayed[i] + model.redrawn[i]) for i in places)
    )
    outcome = solve(model, limits, gap=0.5)
    if outcome.status is TerminationStatus.INFEASIBLE:
        return None
    if outcome.status is TerminationStatus.LIMIT:
        raise SolverLimitError(
            f"a stage of {len(operators)} operators was not solved in {limits.time_s:g} s; raise "
            "time_limit_s"
        )
    return StageChoice(
        replayed=frozenset(i for i in places if model.replayed[i].value > 0.5),
        redrawn=frozenset(i for i in places if model.redrawn[i].value > 0.5),
    )


def _rows(model: Model, operators: Sequence[Operator]) -> Iterator[Relation]:
    for i, operator in enumerate(operators):
        has_result = model.kept[i] + model.replayed[i]
        if operator.is_saved:
            yield has_result >= 1
        for source in operator.inputs:
            yield model.kept[source] + model.replayed[source] >= model.replayed[i]
        if operator.extra_bytes:
            yield model.extra[i] + model.replayed[i] + model.redrawn[i] >= 1
        yield model.kept[i] <= int(operator.is_keepable)
        yield model.replayed[i] <= int(operator.is_replayable)
        yield model.redrawn[i] <= int(operator.is_redrawable)


def _kept_bytes(model: Model, operators: Sequence[Operator]) -> Relation:
    return sum(
        operator.result_bytes * model.kept[i]
        + operator.extra_bytes * model.extra[i]
        + operator.state_bytes * (model.replayed[i] + model.redrawn[i])
        for i, operator in enumerate(operators)
    )
