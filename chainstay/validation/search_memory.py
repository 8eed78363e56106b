"""Memory states of exhaustive search as masks of bits: which records there can be, and sizes.

A record is what ``Fa`` saves under one option. It has one bit; two where its backward takes a
time of its own if the run was the stage's first, or a later run has buffers beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from chainstay.profiles import ChainProfile, StageOption
from chainstay.schedule import Op, OpKind


class RecordMask(NamedTuple):
    """One kind of record, as masks of stages, of activations and of bytes.

    Attributes:
        bit: Its bit in the mask of stored records.
        first: Its first stage.
        stages: Mask of the stages that it covers.
        output: Mask of the activation that it holds.
        own_bytes: Bytes without skips.
        needs_input: Whether its backward reads the input of its first stage.
        backward_time: Time of its backward, in ns.
        backward_overhead: Bytes needed during its backward only.
    """

    bit: int
    first: int
    stages: int
    output: int
    own_bytes: int
    needs_input: bool
    backward_time: int
    backward_overhead: int


class KeptRun(NamedTuple):
    """One kind of run of ``Fa``: the bit of its record, time in ns, bytes added meanwhile."""

    bit: int
    time: int
    bytes: int


class KeepAll(NamedTuple):
    """``Fa`` of a stage under an option.

    Attributes:
        op: The operation.
        stages: Mask of the stages that it covers.
        output: Mask of the activation that its record holds.
        runs: A later run, and a first one.
    """

    op: Op
    stages: int
    output: int
    runs: tuple[KeptRun, KeptRun]


class StoredRecords(NamedTuple):
    """A set of records as a whole.

    Attributes:
        own_bytes: Bytes without skips.
        stages: Mask of the stages that they cover.
        closed: Mask of those that records of several stages cover.
        outputs: Mask of the activations that they hold.
        inputs: Mask of the activations that their backwards read.
    """

    own_bytes: int
    stages: int
    closed: int
    outputs: int
    inputs: int


class RecordMasks:
    """All records of a chain.

    Attributes:
        keeps: By stage, ``Fa`` under each of its options.
        ending: By the gradient that a backward needs, the records that it may be of.
        all: Every record, in ascending order of its bit.
        counted: Mask of the stages whose costs depend on whether they have run.
    """

    def __init__(self, profile: ChainProfile) -> None:
        self.all: list[RecordMask] = []
        self.ending: list[list[RecordMask]] = [[] for _ in range(len(profile) + 1)]
        self.counted = 0
        self._sets: dict[int, StoredRecords] = {}
        self._profile = profile
        self.keeps = [
            [self._keep_all(i, number, option) for number, option in enumerate(stage.all_options)]
            for i, stage in enumerate(profile.stages)
        ]
        for i, stage in enumerate(profile.stages):
            if len(set(stage.dropped_runs)) > 1 or stage.environment_bytes:
                self.counted |= 1 << i

    def _keep_all(self, i: int, number: int, option: StageOption) -> KeepAll:
        end = i + option.stages
        stages, own_bytes = (1 << end) - (1 << i), option.saved_bytes
        for skip in self._profile.skips:
            if skip.last >= end and i < skip.first <= end:
                own_bytes -= skip.bytes
        covered = self._profile.stages[i:end]
        buffers = sum(stage.environment_bytes - stage.random_bytes for stage in covered)
        bits: dict[tuple[int, int], int] = {}
        runs = []
        for run, beside in zip(option.runs[::-1], (buffers, 0), strict=True):
            kind = run.backward_time, beside
            if kind not in bits:
                bits[kind] = 1 << len(self.all)
                record = RecordMask(
                    bit=bits[kind],
                    first=i,
                    stages=stages,
                    output=1 << end,
                    own_bytes=own_bytes + beside,
                    needs_input=option.needs_input,
                    backward_time=run.backward_time,
                    backward_overhead=option.backward_overhead_bytes,
                )
                self.all.append(record)
                self.ending[end].append(record)
            needed = own_bytes + run.overhead_bytes
            runs.append(KeptRun(bits[kind], run.time, needed))
        if len(set(option.runs)) > 1:
            self.counted |= stages
        op = Op(OpKind.FORWARD_KEEP_ALL, i, option=number)
        return KeepAll(op, stages, 1 << end, (runs[0], runs[1]))

    def stored(self, saved: int) -> StoredRecords:
        """Return the set of records whose bits are set in `saved`."""
        if (known := self._sets.get(saved)) is not None:
            return known
        own_bytes = stages = closed = outputs = inputs = 0
        for record in self.all:
            if saved & record.bit:
                own_bytes += record.own_bytes
                stages |= record.stages
                closed |= record.stages * (record.stages.bit_count() > 1)
                outputs |= record.output
                inputs |= record.needs_input << record.first
        return self._sets.setdefault(
            saved, StoredRecords(own_bytes, stages, closed, outputs, inputs)
        )


class StateSizes:
    """Bytes of memory states and of what operations add to them.

    Attributes:
        gradient: Bytes of ``δ^0 .. δ^n``.
    """

    def __init__(self, profile: ChainProfile) -> None:
        states = range(len(profile) + 1)
        self._activation = [profile.activation_bytes(i) for i in states]
        self._gradient_skips: list[tuple[int, int]] = []
        self.gradient = [profile.gradient_bytes(i) for i in states]
        self._skips: list[tuple[int, int]] = []
        for skip in profile.skips:
            for i in range(skip.first, skip.last + 1):
                self._activation[i] -= skip.bytes
            mask = (2 << skip.last) - (1 << skip.first)
            self._skips.append((mask, skip.bytes))
            self._gradient_skips.append((mask, skip.gradient_bytes))
        self._activations: dict[int, int] = {}

    def stored(self, gradient: int, activations: int, records: StoredRecords) -> int:
        """Return the bytes in memory between two operations."""
        own = self._activations.get(activations)
        if own is None:
            own = sum(size for i, size in enumerate(self._activation) if activations >> i & 1)
            self._activations[activations] = own
        total = self.gradient[gradient] + own + records.own_bytes
        return total + self._in_skips(activations | records.outputs)

    def added_output(self, held: int, i: int) -> int:
        """Return the bytes that ``a^i`` adds to a state that holds the activations `held`."""
        return self._activation[i] + self.added_skips(held, 1 << i)

    def added_skips(self, held: int, output: int) -> int:
        """Return the bytes of skips that the activation of mask `output` adds."""
        return self._in_skips(held | output) - self._in_skips(held) if self._skips else 0

    def input_gradient(self, first: int, end: int) -> int:
        """Return the bytes of ``δ^first`` that are no part of ``δ^end``."""
        both = 1 << first | 1 << end
        shared = sum(size for mask, size in self._gradient_skips if mask & both == both)
        return self.gradient[first] - shared

    def _in_skips(self, states: int) -> int:
        return sum(size for mask, size in self._skips if mask & states) if self._skips else 0
