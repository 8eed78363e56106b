"""The time of a schedule, as solvers add it up; simulators do that by themselves."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.schedule import OpKind, Schedule


def time_of(profile: ChainProfile | JoinProfile, schedule: Schedule) -> int:
    """Return the time of all computations of a schedule, in ns, whether it is valid or not.

    Raises:
        InvalidScheduleError: A computation names a stage or option that the chain does not have.
    """
    total, has_run = 0, set[tuple[int | None, int]]()
    backward_times: dict[tuple[int | None, int], int] = {}
    for index, op in enumerate(schedule):
        if not op.kind.is_computation:
            continue
        chain, at = profile, (op.branch, op.stage)
        if isinstance(chain, JoinProfile):
            chain = chain.closing if op.branch is None else chain.branches[op.branch]
        if op.stage >= len(chain):
            raise _unknown(schedule, index, f"stage {op.stage}, the last one is {len(chain) - 1}")
        stage = chain.stages[op.stage]
        if op.kind is OpKind.BACKWARD:
            total += backward_times.pop(at, stage.backward_time)
        elif op.kind is OpKind.FORWARD_KEEP_ALL:
            if op.option > len(stage.options):
                reason = f"option {op.option}, the last one is {len(stage.options)}"
                raise _unknown(schedule, index, reason)
            option = stage.all_options[op.option]
            span = {(op.branch, op.stage + i) for i in range(option.stages)}
            run = option.run(first=not span <= has_run)
            backward_times[at] = run.backward_time
            total += run.time
            has_run |= span
        else:
            total += stage.dropped(first=at not in has_run).time
            has_run.add(at)
    return total


def _unknown(schedule: Schedule, index: int, reason: str) -> InvalidScheduleError:
    text = f"{schedule[index]} of the hint names {reason}"
    return InvalidScheduleError(text, index=index, ops=schedule.ops)
