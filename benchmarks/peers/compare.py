"""chainstay beside what else saves memory, at equal measured peak, in one run.

    .venv/bin/python -m benchmarks.peers.compare [--networks NAME ...]

Seven networks (`benchmarks.trainings`), the peers of `contestants`, and, on homogeneous chains and
by makespan alone, those of `schedules`. For every way of every peer: the peak of a step by
the profiler's memory events; the time of a step, all ways in turns, by the thread's own clock;
whether loss, gradients, buffers and random state are those of plain training, bit for bit. Then
chainstay gets that peak: the plan is the fastest by its own account whose measured peak is no
larger. Budgets up to 5 % above the peak are tried, since peaks stay below their budgets. The two
run once more in turns with nothing between them: that gives the ratio of their times.

A ratio of times of up to 1.02 counts as equally fast, or of up to what plain training differs
from itself in the same run, if that is more, but never above 1.05.

Every network is a process of its own, two at a time. Results are written as they come: beside the
text, in a folder of its name, a picture of each network and all its figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks import RESULTS
from benchmarks.peers.contestants import contestants
from benchmarks.peers.measurements import Course, Memory, run_of
from benchmarks.peers.plans import Plan, Planner
from benchmarks.peers.results import Contestant, Duel, Outcome, Refusal, Run
from benchmarks.peers.schedules import homogeneous_lines
from benchmarks.peers.text import draw, text_of
from benchmarks.trainings import NETWORKS, training_of


def main() -> None:
    """Run everything, or one network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "peers.md", help="the text to write"
    )
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each way")
    parser.add_argument("--inductor", action="store_true", help="with the slow default backend")
    parser.add_argument("--limit", type=int, default=1200, help="seconds for one network")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a process's own result
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one is not None:
        outcome = compare(options.networks[0], options.rounds, options.inductor)
        outcome.store(options.one)
        return
    _run_all(options)


def _run_all(options: argparse.Namespace) -> None:
    """Each network in a process of its own."""
    begin = time.monotonic()
    store: Path = options.output.with_suffix("")
    store.mkdir(parents=True, exist_ok=True)
    failures: dict[str, str] = {}

    def report(done: str, lines: list[str]) -> None:
        elapsed = time.monotonic() - begin
        print(f"{elapsed:.0f} s: {done} {failures.get(done, 'done')}", flush=True)
        text = text_of(_outcomes(store, failures), failures, store.name, lines, elapsed)
        options.output.write_text(text, encoding="utf-8")

    with ThreadPoolExecutor(options.jobs) as pool:
        homogeneous = pool.submit(list[str], homogeneous_lines())
        jobs = {pool.submit(_run_one, name, options, store): name for name in options.networks}
        for job in as_completed(jobs):
            if job.result():
                failures[jobs[job]] = job.result()
            report(jobs[job], homogeneous.result() if homogeneous.done() else ["Not done yet."])
        report("homogeneous chains", homogeneous.result())


def _run_one(name: str, options: argparse.Namespace, store: Path) -> str:
    """The empty string, or why there is no result."""
    result = store / f"{_file_name(name)}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.peers.compare", "--one", str(result)]
    command += ["--networks", name, "--rounds", str(options.rounds)]
    command += ["--inductor"] if options.inductor else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run(  # noqa: S603  # this module
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=options.limit,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {options.limit} s"
    except subprocess.CalledProcessError as failure:
        return str(failure.stderr).strip().rpartition("\n")[2]
    return ""


def _outcomes(store: Path, failures: dict[str, str]) -> list[Outcome]:
    """Of all networks that are there, with their pictures."""
    outcomes = []
    for name in NETWORKS:
        file = store / f"{_file_name(name)}.json"
        if name not in failures and file.exists():
            outcomes.append(Outcome.load(file))
            draw(outcomes[-1], file.with_suffix(".png"))
    return outcomes


def _file_name(name: str) -> str:
    return name.lower()


def compare(name: str, rounds: int, inductor: bool) -> Outcome:  # noqa: FBT001  # an option
    """Everything about one network."""
    training = training_of(name, torch.device("cpu"))
    course = Course(training)
    taking_part: list[tuple[Contestant, Memory]] = []
    refusals: list[Refusal] = []
    for contestant in contestants(training, inductor=inductor):
        if isinstance(contestant, Refusal):
            refusals.append(contestant)
            continue
        try:
            taking_part.append((contestant, course.memory(contestant.forward)))
        except RuntimeError as failure:  # the peer's, torch.compile's own errors among them
            reason = str(failure).partition("\n")[0]
            refusals.append(Refusal(contestant.peer, contestant.setting, reason))
    with TemporaryDirectory() as cache:
        planner = Planner(training, course, Path(cache))
        found = [planner.plan_below(memory.peak) for _, memory in taking_part]
    # A plan found again for a smaller budget is in the place of the first.
    rivals = [plan if isinstance(plan, int) else planner.found[plan.schedule] for plan in found]
    return _timed(planner, taking_part, rivals, refusals, rounds)


def _timed(
    planner: Planner,
    taking_part: list[tuple[Contestant, Memory]],
    rivals: list[Plan | int],
    refusals: list[Refusal],
    rounds: int,
) -> Outcome:
    """All steps in turns; plain training in front, amid the others, and last."""
    training, course = planner.training, planner.course
    plain = Contestant(peer="plain", setting="", forward=training.model)
    memory = course.memory(training.model)
    plans = [plan for plan in planner.found.values() if any(plan is rival for rival in rivals)]
    own = [(plan.contestant, plan.memory) for plan in plans]
    entries = [(plain, memory), *taking_part, (plain, memory), *own, (plain, memory)]
    times = course.times([entrant.forward for entrant, _ in entries], rounds)
    runs = [
        run_of(contestant, memory, elapsed, course)
        for (contestant, memory), elapsed in zip(entries, times, strict=True)
    ]
    plains = [run for run in runs if run.peer == plain.peer]
    theirs = _budgeted(runs[1 : len(taking_part) + 1], taking_part)
    mine = dict(zip(map(id, plans), runs[-len(plans) - 1 : -1], strict=True))
    duels = []
    for run, (contestant, _), rival in zip(theirs, taking_part, rivals, strict=True):
        if isinstance(rival, int):
            duels.append(Duel(peer=run, plan=None, least_budget=rival))
        else:
            forwards = [contestant.forward, rival.contestant.forward]
            duels.append(_duel(run, mine[id(rival)], course.times(forwards, rounds)))
    return Outcome(
        name=training.name,
        samples=training.samples,
        stages=planner.stages,
        plain=min(plains, key=lambda run: run.least_time),
        noise=max(run.least_time for run in plains) / min(run.least_time for run in plains),
        duels=tuple(duels),
        plans=tuple(mine.values()),
        refusals=tuple(refusals),
        seconds=time.process_time(),
    )


def _budgeted(runs: list[Run], taking_part: list[tuple[Contestant, Memory]]) -> list[Run]:
    """With the budgets in bytes of those that were given as shares of their peer's default."""
    default = {
        contestant.peer: memory.saved for contestant, memory in taking_part if contestant.share == 1
    }
    return [
        replace(run, budget=int(contestant.share * default[contestant.peer]))
        if contestant.share
        else run
        for run, (contestant, _) in zip(runs, taking_part, strict=True)
    ]


def _duel(peer: Run, plan: Run, times: list[list[int]]) -> Duel:
    theirs, ours = times
    return Duel(
        peer=peer,
        plan=plan,
        ratio=min(ours) / min(theirs),
        median_ratio=median(ours) / median(theirs),
    )


if __name__ == "__main__":
    main()
