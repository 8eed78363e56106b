"""A plan as a Chrome trace, as `torch.profiler` exports them: for Perfetto beside a real one.

Operations are complete events (``"X"``) with times in µs, one lane a thread, named by metadata
events (``"M"``); memory is a counter (``"C"``) with one series a category, in bytes. Written
as JSON, it opens in https://ui.perfetto.dev and chrome://tracing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from chainstay.errors import InvalidSolutionError
from chainstay.report.course import Activity, Course, Reported, course_of
from chainstay.report.levels import CATEGORIES
from chainstay.report.words import describe_activity, stage_name
from chainstay.schedule import OpKind
from chainstay.solution import Solution
from chainstay.timetable import Time

__all__ = ["trace"]

_Event: TypeAlias = dict[str, Any]

_PROCESS: Final = 0
_NANOSECONDS: Final = 1000
"""In a µs."""


def trace(
    solution: Solution,
    profile: Reported,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> dict[str, Any]:
    """`solution` as a Chrome trace; ``json.dump`` it into a file.

    Args:
        solution: A plan.
        profile: What it is a plan of, with times in ns.
        keep: Of a join, as given to `solve_join`.
        overheads: Of a measured chain, as in `course_of`.

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
    course = course_of(solution, profile, keep=keep, overheads=overheads)
    if course is None:
        raise InvalidSolutionError(
            "transfers is 'fractional', and such a plan with recomputation has a makespan and no "
            "times; solve with transfers='integral'"
        )
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "displayTimeUnit": "ms",
        "traceName": "chainstay plan",
        "traceEvents": [
            *_names(course),
            *_operations(course, profile),
            *_memory(course),
        ],
    }


def _names(course: Course) -> Iterator[_Event]:
    yield _metadata("process_name", _PROCESS, name="chainstay plan")
    for number, lane in enumerate(course.lanes, start=1):
        yield _metadata("thread_name", number, name=lane.name)
        yield _metadata("thread_sort_index", number, sort_index=number)


def _metadata(name: str, thread: int, /, **args: str | int) -> _Event:
    return {"ph": "M", "name": name, "ts": 0.0, "pid": _PROCESS, "tid": thread, "args": args}


def _operations(course: Course, profile: Reported) -> Iterator[_Event]:
    for activity in course.activities:
        op = activity.op
        yield {
            "ph": "X",
            "cat": _category(activity),
            "name": str(op),
            "pid": _PROCESS,
            "tid": activity.lane + 1,
            "ts": _microseconds(activity.start),
            "dur": _microseconds(activity.end - activity.start),
            "args": {
                "stage": op.stage,
                "stage name": stage_name(profile, op.branch, op.stage),
                "does": describe_activity(activity, course, profile),
            },
        }


def _category(activity: Activity) -> str:
    if activity.op.kind.is_transfer:
        return "gpu_memcpy"
    if activity.op.kind.is_forward:
        return "recompute" if activity.is_again else "forward"
    return "turn" if activity.op.kind is OpKind.TURN else "backward"


def _memory(course: Course) -> Iterator[_Event]:
    for level in course.levels:
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
