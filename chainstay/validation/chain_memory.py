"""The memory of a chain while a schedule runs, and what each operation does to it.

The rules are those that `chainstay.validation.simulate` states.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from chainstay.profiles import ChainProfile, RunCost, StageOption
from chainstay.schedule import Discards, Op, OpKind, Schedule


class InvalidOperationError(Exception):
    """The reason why one operation cannot run; the simulators add its position in the schedule."""


class OpCost(NamedTuple):
    """The cost of an operation.

    Attributes:
        time: Time in ns.
        during_bytes: Bytes in use while it runs, the overhead included.
        overhead_bytes: Bytes that it needs besides what is stored, and what it adds.
    """

    time: int
    during_bytes: int
    overhead_bytes: int


class SavedData(NamedTuple):
    """The data that one ``Fa`` saved.

    Attributes:
        op: The operation that made it.
        first: The first stage that it covers.
        last: The last one.
        option: The option under which it was made.
        run: Costs of the run that made it.
        own_bytes: Its bytes without skips.
    """

    op: Op
    first: int
    last: int
    option: StageOption
    run: RunCost
    own_bytes: int

    @property
    def stages(self) -> range:
        """The stages that it covers."""
        return range(self.first, self.last + 1)

    def __str__(self) -> str:
        what = f"what {self.op} saved"
        return what if len(self.stages) == 1 else f"{what}, of stages {self.first} to {self.last},"


@dataclass(slots=True)
class ChainMemory:
    """The stored data: activations and records by index, and one gradient.

    Attributes:
        profile: The chain.
        discards: The rules that say what may be dropped.
        activations: Indices of the stored activations.
        records: By stage, the stored record that covers it; one object for all of its stages.
        has_run: Stages of which a forward has run.
        forwards_left: By stage with an environment, forwards of it that are still to come.
        environments: By stage, bytes of its environment that are stored.
        gradient: Index of the gradient that is held.
        options: By stage, every way to keep it.
        own_activation_bytes: Bytes of each activation without its skips.
        skips_in: Indices of the skips that each activation has.
    """

    profile: ChainProfile
    discards: Discards
    activations: set[int] = field(default_factory=lambda: {0})
    records: dict[int, SavedData] = field(default_factory=dict)
    has_run: set[int] = field(default_factory=set)
    forwards_left: Counter[int] = field(default_factory=Counter)
    environments: dict[int, int] = field(default_factory=dict)
    gradient: int = -1
    options: tuple[tuple[StageOption, ...], ...] = ()
    own_activation_bytes: tuple[int, ...] = ()
    skips_in: tuple[frozenset[int], ...] = ()

    def __post_init__(self) -> None:
        profile = self.profile
        self.gradient = len(profile)
        self.options = tuple(stage.all_options for stage in profile.stages)
        self.skips_in = tuple(
            frozenset(k for k, skip in enumerate(profile.skips) if i in skip.states)
            for i in range(len(profile) + 1)
        )
        self.own_activation_bytes = tuple(
            profile.activation_bytes(i) - self._skip_bytes(self.skips_in[i])
            for i in range(len(profile) + 1)
        )

    def expect(self, schedule: Schedule) -> None:
        """Look ahead: stages that run more than once save their environments."""
        if self.profile.has_environments:
            for op in schedule:
                if op.kind.is_forward:
                    self.forwards_left.update(self._stages_run(op))

    def activation_bytes(self) -> int:
        """Return the bytes of all stored activations; each skip in them counts once."""
        own = sum(self.own_activation_bytes[index] for index in self.activations)
        return own + self._skip_bytes(self._skips_in_activations())

    def saved_bytes(self) -> int:
        """Return the bytes of saved data and environments.

        A skip counts once, or not if an activation has it.
        """
        records = [record for stage, record in self.records.items() if stage == record.first]
        own = sum(record.own_bytes for record in records) + sum(self.environments.values())
        if not self.profile.skips:
            return own
        in_saved = frozenset[int]().union(*(self.skips_in[record.last + 1] for record in records))
        return own + self._skip_bytes(in_saved - self._skips_in_activations())

    def gradient_bytes(self) -> int:
        """Return the bytes of the gradient that is held."""
        return self.profile.gradient_bytes(self.gradient)

    def stored_bytes(self) -> int:
        """Return all bytes that are stored."""
        return self.activation_bytes() + self.saved_bytes() + self.gradient_bytes()

    def apply(self, op: Op, overhead_bytes: int | None = None) -> OpCost:
        """Run `op` and return its cost, with the overhead that the profile says by default.

        The methods that it calls return bytes without the overhead.

        Raises:
            InvalidOperationError: It cannot run here; the memory is then of no further use.
        """
        if op.branch is not None:
            raise InvalidOperationError(f"{op} names a branch, and this chain has none")
        if op.stage >= len(self.profile) and not self._is_last_output(op):
            raise InvalidOperationError(
                f"{op} names stage {op.stage}, the last one is {len(self.profile) - 1}"
            )
        match op.kind:
            case OpKind.FORWARD_DROP | OpKind.FORWARD_KEEP_INPUT:
                cost = self._forward(op)
            case OpKind.FORWARD_KEEP_ALL:
                cost = self._forward_keep_all(op)
            case OpKind.BACKWARD:
                cost = self._backward(op)
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                cost = self._discard(op)
            case OpKind.TURN:
                raise InvalidOperationError(
                    f"{op} is an operation of joins, and this is a single chain"
                )
            case (
                OpKind.OFFLOAD_ACTIVATION
                | OpKind.OFFLOAD_SAVED
                | OpKind.PREFETCH_ACTIVATION
                | OpKind.PREFETCH_SAVED
            ):
                raise InvalidOperationError(f"{op} moves data over a link, and here there is none")
            case _:
                assert_never(op.kind)
        if self.discards is Discards.TAPE:
            self._require_tape(op)
        overhead = cost.overhead_bytes if overhead_bytes is None else overhead_bytes
        return OpCost(cost.time, cost.during_bytes + overhead, overhead)

    def _is_last_output(self, op: Op) -> bool:
        """Return whether `op` drops ``a^n``, left by a first run of the loss that made it warm."""
        drops = op.kind is OpKind.DISCARD_ACTIVATION and op.stage == len(self.profile)
        return drops and not self.profile.is_plain

    def _forward(self, op: Op) -> OpCost:
        stage, drops = op.stage, op.kind is OpKind.FORWARD_DROP
        if drops and stage not in self.activations:
            raise InvalidOperationError(
                f"{op} needs a{stage} itself to drop it, and it is not stored"
            )
        if drops and stage == 0 and not self.profile.is_plain:
            raise InvalidOperationError(f"{op} would drop the network's input; write Fc0")
        self._require_input(op)
        record = self.records.get(stage)
        if record is not None and len(record.stages) > 1:
            raise InvalidOperationError(
                f"{op} runs a stage of {record} which are one while that is stored; run it before "
                f"{record.op}, or after B{record.first}"
            )
        stages = range(stage, stage + 1)
        run = self.profile.stages[stage].dropped(first=self._is_first(stages))
        self.activations.add(stage + 1)
        during_bytes = self.stored_bytes()
        self._end_forwards(stages)
        if drops:
            self.activations.remove(stage)
        return OpCost(run.time, during_bytes, run.overhead_bytes)

    def _forward_keep_all(self, op: Op) -> OpCost:
        options = self.options[op.stage]
        if op.option >= len(options):
            raise InvalidOperationError(
                f"{op} names option {op.option}, and stage {op.stage} has {len(options)}, counted "
                f"from 0; write Fa{op.stage}"
                + (f" or an option up to .{len(options) - 1}" if len(options) > 1 else "")
            )
        self._require_input(op)
        option = options[op.option]
        last = op.stage + option.stages - 1
        stages = range(op.stage, last + 1)
        for stage in stages:
            # The papers' model lets Fa run again on what it has saved, which gains nothing.
            if stage in self.records and not self.profile.is_plain:
                raise InvalidOperationError(
                    f"{op} would save stage {stage} twice: {self.records[stage]} is still stored; "
                    f"run B{self.records[stage].first} first"
                )
        run = option.run(first=self._is_first(stages))
        made = sum(
            skip.bytes
            for skip in self.profile.skips
            if op.stage < skip.first <= last + 1 <= skip.last
        )
        record = SavedData(op, op.stage, last, option, run, option.saved_bytes - made)
        self.records.update(dict.fromkeys(stages, record))
        during_bytes = self.stored_bytes()
        self._end_forwards(stages)
        return OpCost(run.time, during_bytes, run.overhead_bytes)

    def _stages_run(self, op: Op) -> range:
        """Return the stages of a forward; of one that cannot run, those that are there."""
        options = self.options[op.stage : op.stage + 1]
        is_kept = op.kind is OpKind.FORWARD_KEEP_ALL and options and op.option < len(options[0])
        return range(op.stage, op.stage + (options[0][op.option].stages if is_kept else 1))

    def _is_first(self, stages: range) -> bool:
        """Return whether a stage of these runs for the first time; from now on none does.

        Those that will run again have their environments saved.
        """
        new = set(stages) - self.has_run
        self.has_run.update(new)
        for stage in new:
            if self.forwards_left[stage] > 1:
                self.environments[stage] = self.profile.stages[stage].environment_bytes
        return bool(new)

    def _end_forwards(self, stages: range) -> None:
        """Remove what the last forwards of these stages were the last to need."""
        for stage in self.environments.keys() & stages:
            if self.forwards_left[stage] == 1:
                self.environments[stage] -= self.profile.stages[stage].random_bytes
        self.forwards_left.subtract(stages)

    def _backward(self, op: Op) -> OpCost:
        stage = op.stage
        record = self.records.get(stage)
        if record is not None and record.first < stage:
            raise InvalidOperationError(
                f"{op} is part of the backward of {record} which is B{record.first}"
            )
        end = stage + 1 if record is None else record.last + 1
        if self.gradient != end:
            raise InvalidOperationError(
                f"{op} needs the gradient of a{end}, but that of a{self.gradient} is held"
            )
        if record is None:
            raise InvalidOperationError(f"{op} needs what Fa{stage} saves, and it is not stored")
        if record.option.needs_input:
            self._require_input(op)
        passed_on = sum(
            self.profile.skips[k].gradient_bytes for k in self.skips_in[stage] & self.skips_in[end]
        )
        during_bytes = self.stored_bytes() + self.profile.gradient_bytes(stage) - passed_on
        self.gradient = stage
        self._remove(record)
        self.activations.difference_update(record.stages)
        for covered in record.stages:
            self.environments.pop(covered, None)
        overhead = record.option.backward_overhead_bytes
        return OpCost(record.run.backward_time, during_bytes, overhead)

    def _remove(self, record: SavedData) -> None:
        for stage in record.stages:
            del self.records[stage]

    def _discard(self, op: Op) -> OpCost:
        if self.discards is Discards.TABLE1:
            raise InvalidOperationError(
                f"{op} is a discard, and under 'table1' only Fn and B remove data"
            )
        if op == Op(OpKind.DISCARD_ACTIVATION, 0):
            raise InvalidOperationError(
                "Da0 would drop the network's input, which nothing can recompute"
            )
        during_bytes = self.stored_bytes()
        record = self.records.get(op.stage)
        if op.kind is OpKind.DISCARD_SAVED and record is not None:
            if record.first < op.stage:
                raise InvalidOperationError(
                    f"{op} is part of {record} which Db{record.first} drops whole"
                )
            self._remove(record)
        elif op.kind is OpKind.DISCARD_ACTIVATION and op.stage in self.activations:
            self.activations.remove(op.stage)
        else:
            raise InvalidOperationError(f"{op} drops what is not stored")
        return OpCost(0, during_bytes, 0)

    def _require_input(self, op: Op) -> None:
        if op.stage == 0 and not self._has_input(0):
            raise InvalidOperationError(f"{op} needs the network's input a0, which is gone")
        if not self._has_input(op.stage):
            raise InvalidOperationError(
                f"{op} needs its input a{op.stage}, and neither it nor what Fa{op.stage - 1} "
                "saves is stored"
            )

    def _require_tape(self, op: Op) -> None:
        for stage, record in self.records.items():
            is_bound = stage == record.first and record.option.needs_input
            if is_bound and not self._has_input(stage):
                raise InvalidOperationError(
                    f"{op} removes the input of stage {stage}, whose saved data stays"
                )

    def _has_input(self, stage: int) -> bool:
        record = self.records.get(stage - 1)
        return stage in self.activations or (record is not None and record.last == stage - 1)

    def _skips_in_activations(self) -> frozenset[int]:
        if not self.profile.skips:
            return frozenset()
        return frozenset[int]().union(*(self.skips_in[index] for index in self.activations))

    def _skip_bytes(self, indices: frozenset[int]) -> int:
        return sum(self.profile.skips[k].bytes for k in indices)
