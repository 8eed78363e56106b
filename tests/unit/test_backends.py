"""HiGHS behind `backends.solve`: imports, limits, determinism and refusals."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chainstay.errors import BackendError
from chainstay.formulations import MIP
from chainstay.formulations import highs_backend as backends
from chainstay.formulations.pyomo_types import Model, constraint_list, pyo
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles import ChainProfile, Stage

CHAIN = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=(Stage(forward_time=1, output_bytes=1, saved_bytes=1, gradient_bytes=1),) * 3,
)
GOLDEN = Path(__file__).parents[1] / "golden"
MINUTE = Limits(time_s=60.0)


def knapsack() -> Model:
    model = pyo.ConcreteModel()
    model.take = pyo.Var(range(3), domain=pyo.Binary)
    weights = pyo.Constraint(expr=3 * model.take[0] + 4 * model.take[1] + 5 * model.take[2] <= 8)
    model.weights = weights
    model.loss = pyo.Objective(expr=12 - 3 * model.take[0] - 4 * model.take[1] - 6 * model.take[2])
    return model


def test_optimum_bound_and_values_of_a_knapsack() -> None:
    model = knapsack()
    outcome = backends.solve(model, MINUTE, gap=0.5)
    assert (outcome.status, outcome.has_values) == (TerminationStatus.OPTIMAL, True)
    assert outcome.bound == pytest.approx(3)
    assert [round(model.take[i].value) for i in range(3)] == [1, 0, 1]


def test_infeasible_leaves_the_values_alone() -> None:
    model = knapsack()
    model.much = pyo.Constraint(expr=sum(model.take.values()) >= 3)
    outcome = backends.solve(model, MINUTE, gap=0.5)
    assert (outcome.status, outcome.has_values) == (TerminationStatus.INFEASIBLE, False)
    assert model.take[0].value is None


def from_mps(path: Path) -> Model:
    """The minimisation of a file, as a Pyomo model of binaries."""
    highs = importlib.import_module("highspy").Highs()
    highs.silent()
    highs.readModel(str(path))
    program = highs.getLp()
    matrix, model = program.a_matrix_, pyo.ConcreteModel()
    model.take = pyo.Var(range(program.num_col_), domain=pyo.Binary)
    rows: list[list[Any]] = [[] for _ in range(program.num_row_)]
    for column in range(program.num_col_):
        for entry in range(matrix.start_[column], matrix.start_[column + 1]):
            rows[matrix.index_[entry]].append(matrix.value_[entry] * model.take[column])
    limits = zip(program.row_lower_, map(sum, rows), program.row_upper_, strict=True)
    model.rows = constraint_list(
        pyo.inequality(None if low == -math.inf else low, row, None if high == math.inf else high)
        for low, row, high in limits
    )
    model.cost = pyo.Objective(
        expr=sum(cost * model.take[i] for i, cost in enumerate(program.col_cost_)) + program.offset_
    )
    return model


def test_infeasible_is_not_believed_of_the_presolve_alone() -> None:
    """HiGHS 1.14.0 says so of this model; 39 is its optimum."""
    outcome = backends.solve(from_mps(GOLDEN / "highs_wrong_infeasible.mps"), MINUTE, gap=0.5)
    assert outcome.status is TerminationStatus.OPTIMAL
    assert outcome.bound == pytest.approx(39)


def test_infeasible_without_time_to_check_it_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = knapsack()
    model.much = pyo.Constraint(expr=sum(model.take.values()) >= 3)
    clock = iter([0.0, 61.0])
    monkeypatch.setattr(backends, "monotonic", lambda: next(clock))
    assert backends.solve(model, MINUTE, gap=0.5).status is TerminationStatus.LIMIT


def test_the_number_of_threads_may_change_between_solves() -> None:
    for threads in (1, 2, 1):
        outcome = backends.solve(knapsack(), Limits(time_s=60.0, threads=threads), gap=0.5)
        assert outcome.status is TerminationStatus.OPTIMAL


def test_a_start_is_taken() -> None:
    model = knapsack()
    for i, value in enumerate((1, 1, 0)):
        model.take[i].set_value(value)
    outcome = backends.solve(model, Limits(time_s=1e-9), gap=0.5, warm_start=True)
    assert [model.take[i].value for i in range(3)] in ([1, 1, 0], [1, 0, 1])
    assert outcome.status in {TerminationStatus.LIMIT, TerminationStatus.OPTIMAL}


def test_what_is_not_linear_is_refused() -> None:
    model = knapsack()
    model.product = pyo.Constraint(expr=model.take[0] * model.take[1] <= 1)
    with pytest.raises(BackendError, match=r"take\[0\]\*take\[1\].* is not linear"):
        backends.solve(model, MINUTE, gap=0.5)


def test_what_no_chain_can_cause_is_an_error() -> None:
    model = knapsack()
    model.free = pyo.Var()
    model.loss.deactivate()
    model.unbounded = pyo.Objective(expr=model.free)
    with pytest.raises(BackendError, match=r"HiGHS ended with '.*[Uu]nbounded"):
        backends.solve(model, MINUTE, gap=0.5)


def test_a_model_that_highs_refuses_is_an_error() -> None:
    model = knapsack()
    model.weights.deactivate()
    model.endless = pyo.Constraint(expr=float("1e308") * model.take[0] * 10 <= 1)
    with pytest.raises(BackendError, match="HiGHS refused the model"):
        backends.solve(model, MINUTE, gap=0.5)


def test_answers_that_highs_calls_wrong_either_way_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes beside TiB in one chain are beyond its tolerances."""
    highspy = pytest.importorskip("highspy")
    run = backends._run

    def fail(*given: Any) -> object:
        run(*given)
        return highspy.HighsStatus.kError

    monkeypatch.setattr(backends, "_run", fail)
    with pytest.raises(BackendError, match=r"within its tolerances.* use method='cpsat' or 'dp'"):
        backends.solve(knapsack(), MINUTE, gap=0.5)


def test_an_answer_that_highs_itself_calls_wrong_is_sought_without_presolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row 3.7e-9 too large once presolve is undone: "MIP solver claims optimality, but"."""
    highspy = pytest.importorskip("highspy")
    run, statuses = backends._run, iter([highspy.HighsStatus.kError])

    def fail_once(*given: Any) -> object:
        status = run(*given)
        return next(statuses, status)

    monkeypatch.setattr(backends, "_run", fail_once)
    model = knapsack()
    outcome = backends.solve(model, MINUTE, gap=0.5)
    assert outcome.status is TerminationStatus.OPTIMAL
    assert outcome.bound == pytest.approx(3)
    assert [round(model.take[i].value) for i in range(3)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("highspy", r'highspy, which cannot be imported .*pip install "highspy>=1.10,<1.15"'),
        ("pyomo", r"'mip' needs Pyomo.*pip install pyomo"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(missing: str, text: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from chainstay.errors import BackendError
from chainstay.formulations import MIP
from chainstay.profiles import ChainProfile, Stage
try:
    MIP()(ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(Stage(),)), 1)
except BackendError as error:
    print(error)
"""
    assert_output_matches(script, text)


def test_settings_need_neither_pyomo_nor_a_solver() -> None:
    script = """
import sys
from chainstay.formulations import MIP
loaded = {"pyomo", "highspy", "ortools"} & set(sys.modules)
print(MIP(), sorted(loaded))
"""
    assert_output_matches(script, r"mip \(highs, 60 s, table1\) \[\]")


@pytest.mark.parametrize("order", ["highspy, ortools", "ortools, highspy"])
def test_highspy_and_ortools_share_a_process_in_either_order(order: str) -> None:
    imports = {
        "highspy": "import highspy",
        "ortools": "from ortools.sat.python import cp_model",
    }
    script = f"""
{chr(10).join(imports[name] for name in order.split(", "))}
model = cp_model.CpModel()
model.maximize(model.new_int_var(0, 7, "x"))
solver = cp_model.CpSolver()
solver.solve(model)
from chainstay.formulations import MIP
from chainstay.profiles import ChainProfile, Stage
stage = Stage(forward_time=1, output_bytes=1, saved_bytes=1, gradient_bytes=1)
chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(stage,) * 3)
print(MIP()(chain, 6).makespan, int(solver.objective_value))
"""
    assert_output_matches(script, f"{MIP()(CHAIN, 6).makespan} 7")


def assert_output_matches(script: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(text, done.stdout), done.stdout
