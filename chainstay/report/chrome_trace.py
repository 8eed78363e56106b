"""A plan as a Chrome trace, as `torch.profiler` exports them: for Perfetto beside a real one.

Operations are complete events (``"X"``) with times in µs, one lane a thread, named by metadata
events (``"M"``); memory is a counter (``"C"``) with one series a category, in bytes. Written
as JSON, it opens in https://ui.perfetto.dev and chrome://tracing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from chainstay.profiles import AnyProfile
from chainstay.report.descriptions import describe_activity
from chainstay.report.gantt_bars import style_of
from chainstay.report.memory_profile import CATEGORIES
from chainstay.report.timeline import Timeline, timeline_with_times
from chainstay.solution import Solution
from chainstay.timetable import Time

_Event: TypeAlias = dict[str, Any]

_PROCESS: Final = 0
_NANOSECONDS: Final = 1000
"""Number of ns in a µs."""
_CATEGORIES: Final = {"again": "recompute", "out": "gpu_memcpy", "back": "gpu_memcpy"}
"""Categories of events, by the style of their bars, where they have other names."""


def trace(
    solution: Solution,
    profile: AnyProfile,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return `solution` as a Chrome trace; ``json.dump`` it into a file.

    Args:
        solution: A plan.
        profile: The costs that it is a plan of, with times in ns.
        keep: The flags that were given to `solve_join`, for a join.
        overheads: Bytes that each operation of a measured chain needs, as in `page`.

    Raises:
        InvalidSolutionError: The solution is not of this profile, or has no times: fractional
            transfers beside recomputation.
        InvalidScheduleError: Its schedule cannot run on this profile.

    Example:
        >>> from chainstay import ChainProfile, Stage, solve_chain
        >>> stage = Stage(forward_time=1000, backward_time=2000, output_bytes=8, saved_bytes=8)
        >>> chain = ChainProfile(input_bytes=8, input_gradient_bytes=0, stages=(stage,) * 2)
        >>> events = trace(solve_chain(chain, "100%", method="dp"), chain)["traceEvents"]
        >>> [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
        [('Fa0', 0.0, 1.0), ('Fa1', 1.0, 1.0), ('B1', 2.0, 2.0), ('B0', 4.0, 2.0)]
    """
    timeline = timeline_with_times(solution, profile, keep=keep, overheads=overheads)
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "displayTimeUnit": "ms",
        "traceName": "chainstay plan",
        "traceEvents": [*_names(timeline), *_operations(timeline), *_memory(timeline)],
    }


def _names(timeline: Timeline) -> Iterator[_Event]:
    yield _metadata("process_name", _PROCESS, name="chainstay plan")
    for number, lane in enumerate(timeline.lanes, start=1):
        yield _metadata("thread_name", number, name=lane.name)
        yield _metadata("thread_sort_index", number, sort_index=number)


def _metadata(name: str, thread: int, /, **args: str | int) -> _Event:
    return {"ph": "M", "name": name, "ts": 0.0, "pid": _PROCESS, "tid": thread, "args": args}


def _operations(timeline: Timeline) -> Iterator[_Event]:
    for activity in timeline.activities:
        op, style = activity.op, style_of(activity)
        yield {
            "ph": "X",
            "cat": _CATEGORIES.get(style, style),
            "name": str(op),
            "pid": _PROCESS,
            "tid": activity.lane + 1,
            "ts": _microseconds(activity.start),
            "dur": _microseconds(activity.end - activity.start),
            "args": {
                "stage": op.stage,
                "stage name": timeline.problem.stage_name(op.branch, op.stage),
                "does": describe_activity(activity, timeline),
            },
        }


def _memory(timeline: Timeline) -> Iterator[_Event]:
    for level in timeline.levels:
        yield {
            "ph": "C",
            "name": "memory",
            "pid": _PROCESS,
            "tid": 0,
            "ts": _microseconds(level.time),
            "args": {label: float(getattr(level, field)) for field, label in CATEGORIES},
        }


def _microseconds(time: Time) -> float:
    return float(time) / _NANOSECONDS
