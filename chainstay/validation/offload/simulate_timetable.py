"""The meaning of a timetable: bytes that flow over the link, freed and taken one by one.

For transfers that may be interrupted, and for parts of activations ([BES20], Problem 2 and
its relaxation). What of ``x_j`` has moved before ``F_j`` ends is free when it ends; later
bytes are free as they leave. A prefetch takes memory as it arrives, and is complete before
``B_j`` starts. At one time, what ends frees its memory before what starts takes any.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind
from chainstay.timetable import Move, Time, Timetable, Transfers, computations, exact
from chainstay.validation.event_machine import TransferReplay


def simulate_timetable(
    profile: OffloadProfile,
    timetable: Timetable,
    *,
    link: Link,
    transfers: Transfers | str = Transfers.INTERRUPTIBLE,
) -> TransferReplay:
    """Check a timetable and count its makespan and peak.

    Args:
        profile: Costs of n stages.
        timetable: The start of every computation, and the start and end of every transfer.
        link: The link to the host, without latency.
        transfers: ``"interruptible"`` or ``"fractional"``.

    Raises:
        InvalidProfileError: The link has a latency, or transfers are integral.
        InvalidScheduleError: Two things at once on one stream or link, something moved before
            it is there or after it is needed, or a part of an activation where only whole
            ones move.
    """
    _require_fluid(link, Transfers(transfers))
    ends = _ends(profile, timetable)
    _require_one_at_a_time(timetable.moves, link)
    for j in sorted({move.op.stage for move in timetable.moves}):
        _require_order(profile, timetable, ends, j)
        _require_amounts(profile, timetable.moves, link, j, Transfers(transfers))
    peak = max(use.total for use in memory_over_time(profile, timetable, link))
    return TransferReplay(
        makespan=exact(ends[-1]), peak_bytes=-int(-peak // 1), timetable=timetable
    )


def _require_fluid(link: Link, transfers: Transfers) -> None:
    """Refuse links and models in which bytes do not flow one by one.

    Raises:
        InvalidProfileError: Transfers are integral, or the link has a latency.
    """
    if transfers is Transfers.INTEGRAL:
        raise InvalidProfileError(
            "transfers is 'integral', whose times follow from the schedule; a timetable is for "
            "'interruptible' or 'fractional' ones"
        )
    if link.latency:
        raise InvalidProfileError(
            f"the link's latency is {link.latency}, and {transfers} transfers have none; use "
            "latency=0, or transfers='integral'"
        )


def _ends(profile: OffloadProfile, timetable: Timetable) -> list[Time]:
    """Return when every computation ends, forwards 0 .. n-1 and backwards n-1 .. 0."""
    times = (*profile.forward_times, *reversed(profile.backward_times))
    if len(timetable.starts) != len(times):
        raise InvalidScheduleError(
            f"the timetable starts {len(timetable.starts)} computations, this chain of "
            f"{len(profile)} stages has {len(times)}"
        )
    ends = [start + time for start, time in zip(timetable.starts, times, strict=True)]
    for index, (end, start) in enumerate(zip([0, *ends], timetable.starts, strict=False)):
        if start < end:
            raise InvalidScheduleError(
                f"{computations(len(profile))[index]} starts at {start}, before {end}, when the "
                "computation before it ends"
            )
    return ends


def _require_one_at_a_time(moves: tuple[Move, ...], link: Link) -> None:
    for move in moves:
        if move.op.kind not in (OpKind.OFFLOAD_ACTIVATION, OpKind.PREFETCH_ACTIVATION):
            raise InvalidScheduleError(f"{move.op} moves no activation; write Oa or Pa")
        if not 0 <= move.start <= move.end:
            raise InvalidScheduleError(f"{move.op} moves from {move.start} to {move.end}")
    for kind in (OpKind.OFFLOAD_ACTIVATION, OpKind.PREFETCH_ACTIVATION):
        alike = [move for move in moves if move.op.kind is kind or not link.is_full_duplex]
        for one, other in pairwise(alike):
            if other.start < one.end:
                raise InvalidScheduleError(
                    f"{other.op} moves from {other.start}, while {one.op} has the link until "
                    f"{one.end}"
                )


def _require_order(profile: OffloadProfile, timetable: Timetable, ends: list[Time], j: int) -> None:
    """Require ``F_{j-1}``, offload, prefetch, ``B_j`` in order, ``F_j`` before the prefetch."""
    stages = len(profile)
    if j >= stages:
        raise InvalidScheduleError(f"a{j} moves; only a0 to a{stages - 1} can be offloaded")
    offload, prefetch = (
        [move for move in timetable.moves if move.op == Op(kind, j)]
        for kind in (OpKind.OFFLOAD_ACTIVATION, OpKind.PREFETCH_ACTIVATION)
    )
    if not offload or not prefetch:
        raise InvalidScheduleError(f"a{j} moves in one direction only")
    made = ends[j - 1] if j else 0
    if offload[0].start < made:
        raise InvalidScheduleError(f"a{j} leaves at {offload[0].start}, it is made at {made}")
    if prefetch[0].start < (gone := max(ends[j], offload[-1].end)):
        raise InvalidScheduleError(f"a{j} comes back at {prefetch[0].start}, it is away at {gone}")
    if prefetch[-1].end > (needed := timetable.starts[2 * stages - 1 - j]):
        raise InvalidScheduleError(f"a{j} is back at {prefetch[-1].end}, B{j} needs it at {needed}")


def _require_amounts(
    profile: OffloadProfile, moves: tuple[Move, ...], link: Link, j: int, transfers: Transfers
) -> None:
    """Require that as much comes back as leaves, and all of it unless parts may move."""
    away, back = (
        sum((move.end - move.start) * link.bandwidth for move in moves if move.op == Op(kind, j))
        for kind in (OpKind.OFFLOAD_ACTIVATION, OpKind.PREFETCH_ACTIVATION)
    )
    size = profile.activations[j]
    if away != back:
        raise InvalidScheduleError(f"{away} bytes of a{j} leave, {back} come back")
    if away > size or (away < size and transfers is not Transfers.FRACTIONAL):
        raise InvalidScheduleError(f"{away} bytes of a{j} move, it has {size}")


class MemoryUse(NamedTuple):
    """Bytes in use at a time in ns: of activations, of gradients, and of overheads."""

    time: Time
    activation: Time
    gradient: int = 0
    overhead: int = 0

    @property
    def total(self) -> Time:
        """All bytes in use."""
        return self.activation + self.gradient + self.overhead


def memory_over_time(
    profile: OffloadProfile, timetable: Timetable, link: Link
) -> Iterator[MemoryUse]:
    """Yield the memory in use before and after every time at which its rate of change changes.

    The timetable is one that `simulate_timetable` accepts.
    """
    stages, use = len(profile), MemoryUse(0, profile.activations[0])
    flowing: set[Op] = set()
    waiting: dict[int, Fraction] = {}
    used: set[int] = set()
    for time, _, change in _changes(timetable, _ends(profile, timetable)):
        flow, arrived = (time - use.time) * link.bandwidth, Fraction(0)
        for op in flowing if flow else ():
            if op.kind is OpKind.PREFETCH_ACTIVATION:
                arrived += flow
            elif op.stage in used:
                arrived -= flow
            else:
                waiting[op.stage] = waiting.get(op.stage, Fraction(0)) + flow
        use = use._replace(time=time, activation=use.activation + arrived)
        yield use
        match change:
            case Op() as op:
                flowing ^= {op}
            case int() as event:
                computation, is_end = divmod(event, 2)
                i = min(computation, 2 * stages - 1 - computation)
                is_forward = computation < stages
                activation, gradient, overhead = _taken(
                    profile, i, is_forward=is_forward, is_end=bool(is_end)
                )
                if is_forward and is_end:
                    used.add(i)
                    activation -= waiting.pop(i, 0)
                use = MemoryUse(
                    time,
                    use.activation + activation,
                    use.gradient + gradient,
                    use.overhead + overhead,
                )
        yield use


def _changes(timetable: Timetable, ends: list[Time]) -> list[tuple[Time, int, Op | int]]:
    """Return all changes in time; computation k is 2k at its start and 2k + 1 at its end."""
    changes: list[tuple[Time, int, Op | int]] = []
    for number, (start, end) in enumerate(zip(timetable.starts, ends, strict=True)):
        changes += [(start, 2 * number, 2 * number), (end, 2 * number + 1, 2 * number + 1)]
    for move in timetable.moves:
        if move.start < move.end:
            changes += [(move.start, 4 * len(ends), move.op), (move.end, -1, move.op)]
    return sorted(changes, key=lambda change: change[:2])


def _taken(
    profile: OffloadProfile, i: int, *, is_forward: bool, is_end: bool
) -> tuple[Time, int, int]:
    """Return what the start or end of a computation takes (negative if it frees it).

    In bytes of activations, of gradients, and of overheads.
    """
    if is_forward:
        overhead = profile.forward_overheads[i]
        return (0, 0, -overhead) if is_end else (profile.activations[i + 1], 0, overhead)
    overhead = profile.backward_overheads[i]
    if not is_end:
        first = profile.gradients[i + 1] * (i == len(profile) - 1)
        return 0, profile.gradients[i] + first, overhead
    input_bytes = profile.activations[0] * (i == 0)
    return -(profile.activations[i + 1] + input_bytes), -profile.gradients[i + 1], -overhead
