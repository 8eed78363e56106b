"""The meaning of a schedule: validity, makespan, peak and memory over time.

The memory model is Table 1 of [BEHJS24], literally. At any time memory holds activations
``a^i``, saved data ``ā^i`` of stages and one gradient; it starts with the network's input
``a^0`` and the gradient ``δ^n`` of the loss.

=======  ==========================  ======================  =========================
op       needs                       adds                    removes
=======  ==========================  ======================  =========================
``Fn``   ``a^i`` itself              ``a^{i+1}``             ``a^i``
``Fc``   ``a^i``, or ``ā`` of i-1    ``a^{i+1}``             --
``Fa``   ``a^i``, or ``ā`` of i-1    ``ā`` of i              --
``B``    ``δ^{i+1}``, ``ā`` of i,    ``δ^i``                 ``δ^{i+1}``, ``ā`` of i,
         ``a^i`` or ``ā`` of i-1                             ``a^i`` if stored
=======  ==========================  ======================  =========================

While an operation runs, memory is all that is stored before it, what it adds, and its
stage's overhead, or its own where the caller knows that. A skip is in memory while any stored
item has it, and counts once: an activation has the skips that are part of it, saved data those
that are part of its stage's output. The gradient of a skip also counts once, while ``B`` holds
the gradients of its output and of its input. This module shares no code with any solver.

Chains with stage options (``docs/derivations/options.md``):

- ``Fa`` under option k saves what the option says; a stage is part of one record at most, and a
  record of several stages, from i to e, holds ``a^{e+1}`` and nothing else that can be used.
- While a record of several stages is stored, no forward of a stage in it is valid.
- ``B`` of a record from i to e needs ``δ^{e+1}``, makes ``δ^i`` and removes ``a^i .. a^e``. It
  needs its input only if the option does, and so does, under ``tape``, the record.
- The first forward of a stage, kept or not, costs what a first run costs, any other what a later
  one does; a record of several stages is a first run if one of them is. ``B`` costs what
  belongs to the run that made its record.
- ``a^0`` is the caller's: ``Fn0`` is no operation of such a chain.
- The environment of a stage of which the schedule has several forwards is in memory from the start
  of the first one: until the last one has ended, or its backward, each for its part of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, Schedule
from chainstay.validation.arguments import require_replayable
from chainstay.validation.chain_memory import ChainMemory, InvalidOperationError

__all__ = ["InvalidOperationError", "Replay", "Snapshot", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Memory around one operation.

    Attributes:
        op: The operation.
        start: Time at which it starts, in ns.
        end: Time at which it ends, in ns.
        during_bytes: Memory while it runs, its overhead included.
        overhead_bytes: Bytes that it needs while it runs only, besides what it makes.
        activation_bytes: Bytes of the activations ``a^i`` stored after it, ``a^0`` included.
        saved_bytes: Bytes of the saved data stored after it, without skips that activations have,
            and of environments.
        gradient_bytes: Bytes of the gradient stored after it.
    """

    op: Op
    start: int
    end: int
    during_bytes: int
    overhead_bytes: int
    activation_bytes: int
    saved_bytes: int
    gradient_bytes: int

    @property
    def after_bytes(self) -> int:
        """All bytes stored after the operation."""
        return self.activation_bytes + self.saved_bytes + self.gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of simulating a schedule.

    Attributes:
        makespan: Total time, in ns.
        peak_bytes: The most bytes in use at any time.
        timeline: One snapshot per operation.
    """

    makespan: int
    peak_bytes: int
    timeline: tuple[Snapshot, ...]


def simulate(
    profile: ChainProfile,
    schedule: Schedule,
    *,
    discards: Discards | str = Discards.TABLE1,
    overheads: Sequence[int] | None = None,
) -> Replay:
    """Replay `schedule` on `profile` under the rules that `discards` names.

    Args:
        profile: The chain.
        schedule: The schedule to replay.
        discards: ``"table1"``, ``"tape"`` or ``"free"``; see `Discards`.
        overheads: Bytes that each operation needs while it runs besides what is stored, in
            place of its stage's in the profile, where more is known of this schedule; below 0
            where some of that is gone. They include environments, and those of the profile do not
            count.

    Returns:
        The replay; comparing its peak with a budget is the caller's business.

    Raises:
        InvalidScheduleError: An operation lacks what it needs (``error.index`` says which),
            or the schedule ends before the gradient of the input is there.
        UnknownMethodError: Unknown `discards`.
        ValueError: Not one of `overheads` per operation.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=2, backward_time=3, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=5, input_gradient_bytes=0, stages=(stage, stage))
        >>> replay = simulate(chain, Schedule.parse("Fc0 Fa1 B1 Fa0 B0"))
        >>> replay.makespan, replay.peak_bytes
        (12, 45)
    """
    require_replayable(profile, schedule, ChainProfile, overheads=overheads)
    memory = ChainMemory(profile, Discards(discards))
    if overheads is None:
        memory.expect(schedule)
    timeline: list[Snapshot] = []
    clock = 0
    for index, (op, overhead) in enumerate(zip(schedule, overheads or repeat(None), strict=False)):
        start = clock
        try:
            cost = memory.apply(op, overhead)
        except InvalidOperationError as refusal:
            raise InvalidScheduleError(str(refusal), index=index, ops=schedule.ops) from None
        clock += cost.time
        timeline.append(
            Snapshot(
                op=op,
                start=start,
                end=clock,
                during_bytes=cost.during_bytes,
                overhead_bytes=cost.overhead_bytes,
                activation_bytes=memory.activation_bytes(),
                saved_bytes=memory.saved_bytes(),
                gradient_bytes=memory.gradient_bytes(),
            )
        )
    if memory.gradient > 0:
        raise InvalidScheduleError(
            f"the schedule ends before B{memory.gradient - 1}; every stage needs its backward"
        )
    peak_bytes = max(snapshot.during_bytes for snapshot in timeline)
    return Replay(makespan=clock, peak_bytes=peak_bytes, timeline=tuple(timeline))
