"""Descriptions of operations as sentences for people."""

from __future__ import annotations

from typing import Final

from chainstay.report.timeline import Activity, Timeline
from chainstay.schedule import OpKind

_SENTENCES: Final = {
    OpKind.FORWARD_DROP: "forward of {stage}; its input is dropped afterwards",
    OpKind.FORWARD_KEEP_INPUT: "forward of {stage}; its input stays as a checkpoint",
    OpKind.FORWARD_KEEP_ALL: "forward of {stage}; its input and all that its backward needs stay",
    OpKind.BACKWARD: "backward of {stage}; what it has used is freed",
    OpKind.DISCARD_ACTIVATION: "the input of {stage} is dropped",
    OpKind.DISCARD_SAVED: "what {stage} saved for its backward is dropped",
    OpKind.OFFLOAD_ACTIVATION: "the input of {stage} moves to host memory",
    OpKind.OFFLOAD_SAVED: "what {stage} saved for its backward moves to host memory",
    OpKind.PREFETCH_ACTIVATION: "the input of {stage} comes back",
    OpKind.PREFETCH_SAVED: "what {stage} saved for its backward comes back",
    OpKind.TURN: "the turn: all branches meet, and forward becomes backward",
}
_AGAIN: Final = " (recomputed: it has run before)"


def describe_activity(activity: Activity, timeline: Timeline) -> str:
    """Return one sentence about an operation."""
    op, problem = activity.op, timeline.problem
    where = f"stage {op.stage}"
    if name := problem.stage_name(op.branch, op.stage):
        where += f" “{name}”"
    if op.branch is not None:
        where += f" of {timeline.lanes[activity.lane].name}"
    elif problem.network == "join" and problem.chains:
        where += " of the tail"
    sentence = _SENTENCES[op.kind].format(stage=where)
    if op.option:
        option = dict(problem.chains)[op.branch].stages[op.stage].options[op.option - 1]
        covered = f", with the {option.stages - 1} after it" if option.stages > 1 else ""
        name = f" ({option.name})" if option.name else ""
        sentence += f"; kept under option {op.option}{name}{covered}"
    return sentence + (_AGAIN if activity.is_again else "")
