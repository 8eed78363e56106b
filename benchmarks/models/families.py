"""Does `fit` hold on models that nobody had in mind? Bits, budgets and peaks of many families.

    .venv/bin/python -m benchmarks.models.families [--families NAME ...]
        [--output benchmarks/results/families.md]

None of these models is in the tests' zoo, and nothing was made for any of them. Each is fitted at
the least budget that chainstay takes, and half-way from there to plain training. Three steps of
SGD with momentum are compared with plain ones: loss, every gradient, every buffer and the random
state, bit for bit. Peaks are the profiler's memory events over a whole step, inputs included.

Each family is a process of its own, two at a time: 25 minutes on two cores. Exits with 1
if anything is not equal, above its budget, or cannot be fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.models.family_models import FAMILIES
from benchmarks.training import cells, heading, machine, mebibytes
from chainstay import InfeasibleBudgetError, fit
from chainstay.fitting.fitted import Fitted
from chainstay.runtime.execute.block_executor import PlannedBlocks
from sgd_steps import differences, peak_of_step, three_steps
from zoo import Sample, loss_of

COLUMNS: Final = (
    "family",
    "stages",
    "cut in",
    "plain peak",
    "least budget",
    "its time",
    "predicted / measured peak",
    "half-way",
    "its time",
    "predicted / measured peak",
    "",
)
_LIMIT_S: Final = 600


@dataclass(frozen=True)
class Trial:
    """A model fitted at one budget; sizes in bytes.

    Attributes:
        budget: That.
        predicted: The plan's peak.
        measured: The step's.
        slowdown: The plan's time by that of plain training, as predicted.
        wrong: What is not as in plain training.
    """

    budget: int
    predicted: int
    measured: int
    slowdown: float
    wrong: list[str]

    @property
    def faults(self) -> list[str]:
        """What is not equal, and what is not within the budget."""
        over = f"peak {self.measured} of {self.predicted} predicted, budget {self.budget}"
        is_within = self.measured <= self.predicted <= self.budget
        return self.wrong if is_within else [*self.wrong, over]


@dataclass(frozen=True)
class Outcome:
    """What became of a family; sizes in bytes."""

    stages: int
    cut: str
    plain: int
    least: Trial
    halfway: Trial

    @property
    def trials(self) -> tuple[Trial, Trial]:
        """Both."""
        return self.least, self.halfway

    def cells(self, name: str) -> str:
        """For people."""
        shown: list[str] = []
        for trial in self.trials:
            shown += (
                f"{trial.budget / self.plain:.0%}",
                f"{trial.slowdown - 1:+.1%}",
                f"{trial.predicted / trial.measured:.3f}",
            )
        faults = [fault for trial in self.trials for fault in trial.faults]
        verdict = f"WRONG: {', '.join(faults)}" if faults else "equal"
        return cells(name, str(self.stages), self.cut, mebibytes(self.plain), *shown, verdict)


def main() -> int:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--output", type=Path, help="where to write the table")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(asdict(outcome_of(options.families[0]))))
        return 0
    begin = time.monotonic()
    lines = [
        "# `fit` on models that nobody had in mind",
        "",
        f"`python -m benchmarks.models.families` on {machine(torch.device('cpu'))}.",
        "Budgets are shares of what plain training is measured to need, times are predicted and",
        "above plain training's.",
        "",
        *heading(*COLUMNS),
    ]
    print("\n".join(lines), flush=True)
    outcomes: dict[str, Outcome | str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(_outcome_elsewhere, options.families)
        for name, outcome in zip(options.families, found, strict=True):
            outcomes[name] = outcome
            lines.append(cells(name, outcome) if isinstance(outcome, str) else outcome.cells(name))
            print(lines[-1], flush=True)
            ending = ["", *_summary(outcomes), f"{time.monotonic() - begin:.0f} s in all."]
            if options.output is not None:  # what is done is there, whatever comes
                options.output.write_text("\n".join(lines + ending) + "\n", encoding="utf-8")
    print("\n".join(ending))
    return not all(_is_right(outcome) for outcome in outcomes.values())


def outcome_of(name: str) -> Outcome:
    """Fit the family's model twice."""
    torch.manual_seed(0)
    sample = FAMILIES[name]()
    sample.model.train()
    initial = {key: tensor.clone() for key, tensor in sample.model.state_dict().items()}

    def steps() -> dict[str, torch.Tensor]:
        return three_steps(sample.model, lambda: loss_of(sample()), initial)

    def trial(budget: int) -> Trial:
        fitted = _fitted(sample, budget)
        solution = fitted.solution
        plain_time = fitted.plans[-1].plain_time
        assert plain_time is not None, "it was measured just now"
        slowdown = float(solution.makespan) / plain_time
        wrong = differences(steps(), expected)
        measured = _peak(sample)
        return Trial(budget, solution.peak_bytes, measured, slowdown, sorted(wrong)[:3])

    expected = steps()
    plain = _peak(sample)
    fitted = _fitted(sample, "100%")  # those that follow take its measurement over
    stages, whole = len(fitted.plans[-1].profile), fitted.solution.budget
    cut = "blocks" if isinstance(fitted.plans[-1], PlannedBlocks) else "graph"
    least = _least(sample)
    return Outcome(stages, cut, plain, trial(least), trial((least + whole) // 2))


def _fitted(sample: Sample, budget: int | str) -> Fitted:
    fit(sample.model, sample.args, sample.kwargs, budget=budget, loss=loss_of, repeats=3)
    fitted = sample.model.chainstay
    assert isinstance(fitted, Fitted)
    return fitted


def _least(sample: Sample) -> int:
    try:
        _fitted(sample, 1)
    except InfeasibleBudgetError as refusal:
        return refusal.required
    raise AssertionError("a byte is enough for no model")


def _peak(sample: Sample) -> int:
    """Of a whole step, inputs included, gradients of parameters left out."""

    def step() -> None:
        output = sample()  # held until the step ends, as in most training loops
        loss_of(output).backward()

    return peak_of_step(sample.model, step, (sample.args, sample.kwargs))


def _outcome_elsewhere(name: str) -> Outcome | str:
    """In a process of its own; or why there is none."""
    try:
        done = subprocess.run(  # noqa: S603  # this module
            [sys.executable, "-m", "benchmarks.models.families", "--one", "--families", name],
            check=True,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_LIMIT_S} s"
    except subprocess.CalledProcessError as failure:
        return str(failure.stderr).strip().rpartition("\n")[2]
    read: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    for field in ("least", "halfway"):
        read[field] = Trial(**read[field])
    return Outcome(**read)


def _is_right(outcome: Outcome | str) -> bool:
    return isinstance(outcome, Outcome) and not any(trial.faults for trial in outcome.trials)


def _summary(outcomes: dict[str, Outcome | str]) -> Iterator[str]:
    done = [outcome for outcome in outcomes.values() if isinstance(outcome, Outcome)]
    ratios = sorted(
        trial.predicted / trial.measured for outcome in done for trial in outcome.trials
    )
    right = sum(map(_is_right, outcomes.values()))
    yield (
        f"{right} of {len(outcomes)} families are equal bit for bit and within both budgets; "
        f"{sum(outcome.cut == 'graph' for outcome in done)} are cut in their graph, the others "
        "between their blocks."
    )
    if ratios:
        close = sum(ratio <= 1.1 for ratio in ratios)
        yield (
            f"Of {len(ratios)} predicted peaks {close} are at most 10 % above the measured one; "
            f"the median is {ratios[len(ratios) // 2]:.3f} of it, the largest {ratios[-1]:.3f}."
        )


if __name__ == "__main__":
    sys.exit(main())
