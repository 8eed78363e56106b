"""Costs of one stage: seven numbers in the papers' model, and whatever more a runtime knows.

The seven numbers are those of [BEHJS24]. A runtime can say more: several ways to keep the stage
(its *options*), and what a run costs by its kind: the first run of the stage in a schedule or a
later one, kept or dropped. ``docs/derivations/options.md`` has the program for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from chainstay.documents import Fields
from chainstay.errors import InvalidProfileError
from chainstay.profiles.quantities import all_of, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The costs of one forward, and of the backward that follows if it was kept.

    Attributes:
        time: Time of the forward, in ns.
        overhead_bytes: Bytes needed during the forward only, besides input and result.
        backward_time: Time of the backward, in ns, with what it recomputes inside the stage;
            0 for a forward whose result is not kept.

    Raises:
        InvalidProfileError: A value is not a whole number from 0 to 2**48.
    """

    time: int = 0
    overhead_bytes: int = 0
    backward_time: int = 0

    def __post_init__(self) -> None:
        _require_whole(self, _RUN_FIELDS, "run cost")

    @property
    def total_time(self) -> int:
        """Time of the forward and the backward together, in ns."""
        return self.time + self.backward_time

    @classmethod
    def from_fields(cls, document: Fields) -> Self:
        """Read the JSON object of a run."""
        return cls(**{field: document.integer(field) for field in _RUN_FIELDS})


_RUN_FIELDS: Final = tuple(field.name for field in fields(RunCost))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """One way to keep a stage: what is saved, and what its forward and backward cost.

    Attributes:
        name: The operators that its backward recomputes, for people: ``"drops gelu"``.
        saved_bytes: Bytes of everything its backward needs besides its input, the output of its
            last stage included, without skips that pass through.
        backward_overhead_bytes: Bytes needed during the backward only, besides `saved_bytes` and
            the gradients of output and input. What the backward recomputes is part of them.
        first: Costs if this is the stage's first run in a schedule.
        again: Costs if the stage ran before; by default those of a first run.
        needs_input: Whether the backward reads the stage's input.
        stages: Number of stages that are kept together, by one record and with one backward.

    Raises:
        InvalidProfileError: A size is not a whole number from 0 to 2**48, or `stages` below 1.
    """

    name: str = ""
    saved_bytes: int
    backward_overhead_bytes: int = 0
    first: RunCost
    again: RunCost | None = None
    needs_input: bool = True
    stages: int = 1

    def __post_init__(self) -> None:
        _require_name(self.name, "an option's")
        _require_whole(self, _OPTION_SIZES, f"option {self.name!r}")
        _require_kind(self.first, RunCost, "an option's first run")
        if self.again is not None:
            _require_kind(self.again, RunCost, "an option's later run")
        _require_kind(self.needs_input, bool, "an option's needs_input")
        if self.stages < 1:
            raise InvalidProfileError(f"option {self.name!r}: stages is 0, must be at least 1")

    def run(self, *, first: bool) -> RunCost:
        """Return the costs of the stage's first run, or of a later one."""
        return self.first if first or self.again is None else self.again

    @property
    def runs(self) -> tuple[RunCost, RunCost]:
        """Costs of the stage's first run, and of a later one."""
        return self.first, self.run(first=False)

    def replaces(self, other: StageOption) -> bool:
        """Return whether this option can take the place of `other` in every schedule.

        It takes no more time in any run and no more memory at any moment, and needs the input only
        if `other` does. Times of forward and backward count apart: a record may be dropped.
        """
        return (
            self.stages == other.stages
            and self.needs_input <= other.needs_input
            and all(mine <= its for mine, its in zip(_needs(self), _needs(other), strict=True))
        )

    @classmethod
    def from_fields(cls, document: Fields) -> Self:
        """Read the JSON object of an option."""
        return cls(
            name=document.string("name"),
            **{field: document.integer(field) for field in _OPTION_SIZES},
            first=RunCost.from_fields(document.child("first")),
            again=_run_in(document, "again"),
            needs_input=document.boolean("needs_input"),
        )


def replacement(options: Sequence[StageOption], k: int) -> int:
    """Return the first option that replaces option `k` and that none replaces."""
    better = [
        j
        for j, option in enumerate(options)
        if j != k and option.replaces(options[k]) and (j < k or not options[k].replaces(option))
    ]
    return replacement(options, better[0]) if better else k


def undominated(options: Sequence[StageOption]) -> list[int]:
    """Return the numbers of the options that no other replaces."""
    return [k for k in range(len(options)) if replacement(options, k) == k]


def _needs(option: StageOption) -> list[int]:
    """Return times and sizes of an option, each of which is better if smaller."""
    needs = [option.saved_bytes, option.saved_bytes + option.backward_overhead_bytes]
    for run in option.runs:
        needs += [run.time, run.backward_time, option.saved_bytes + run.overhead_bytes]
    return needs


_OPTION_SIZES: Final = ("saved_bytes", "backward_overhead_bytes", "stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a chain: a forward and a backward step.

    Attributes:
        name: Free text, for people.
        forward_time: Time of one forward, in ns.
        backward_time: Time of one backward, in ns.
        output_bytes: Bytes of the stage's output activation.
        saved_bytes: Bytes of everything its backward needs besides its input: saved tensors
            and the output, without skips that pass through. A measured value may lie a
            little below ``output_bytes``.
        gradient_bytes: Bytes of the gradient with respect to the output.
        forward_overhead_bytes: Bytes needed during a forward only, besides input and result.
        backward_overhead_bytes: Bytes needed during the backward only, besides ``saved_bytes``
            and the gradients of output and input.
        options: Further ways to keep the stage. Option 0 is the stage as the numbers above
            describe it, the first of these is option 1.
        first: Costs of option 0 in the stage's first run, where they are not the numbers above.
        again: Costs of option 0 in a later run, likewise.
        dropped_first: Costs of a first run that is not kept (``Fc``, ``Fn``), likewise.
        dropped_again: Costs of a later run that is not kept, likewise.
        needs_input: Whether the backward of option 0 reads the stage's input.
        environment_bytes: Bytes of buffers and random states that the stage's first forward saves
            if it runs more than once. They are in memory until its backward has ended.
        random_bytes: The part of these that is in memory until its last forward has ended.

    Raises:
        InvalidProfileError: A size or time is not a whole number from 0 to 2**48, or
            `random_bytes` exceeds `environment_bytes`.

    Example:
        >>> Stage(name="loss", backward_time=3).backward_time
        3
    """

    name: str = ""
    forward_time: int = 0
    backward_time: int = 0
    output_bytes: int = 0
    saved_bytes: int = 0
    gradient_bytes: int = 0
    forward_overhead_bytes: int = 0
    backward_overhead_bytes: int = 0
    options: tuple[StageOption, ...] = ()
    first: RunCost | None = None
    again: RunCost | None = None
    dropped_first: RunCost | None = None
    dropped_again: RunCost | None = None
    needs_input: bool = True
    environment_bytes: int = 0
    random_bytes: int = 0

    def __post_init__(self) -> None:
        _require_name(self.name, "a stage's")
        title = f"stage {self.name!r}" if self.name else "a stage"
        _require_whole(self, (*QUANTITIES, *_ENVIRONMENT), title)
        if self.random_bytes > self.environment_bytes:
            raise InvalidProfileError(
                f"{title}: random_bytes is {self.random_bytes}, must be at most "
                f"environment_bytes, {self.environment_bytes}, which count them"
            )
        options = all_of(self.options, StageOption, f"{title}: options")
        object.__setattr__(self, "options", options)
        for kind in _RUNS:
            if getattr(self, kind) is not None:
                _require_kind(getattr(self, kind), RunCost, f"{title}: {kind}")
        _require_kind(self.needs_input, bool, f"{title}: needs_input")

    @property
    def is_plain(self) -> bool:
        """Whether the seven numbers say all: one option, and every run costs the same."""
        has_more = self.options or self.has_costs_by_kind or self.environment_bytes
        return self.needs_input and not has_more

    @property
    def has_costs_by_kind(self) -> bool:
        """Whether some kind of run of the whole stage has costs of its own."""
        return not (self.first is self.again is self.dropped_first is self.dropped_again is None)

    @property
    def all_options(self) -> tuple[StageOption, ...]:
        """Every way to keep the stage, by number."""
        plain = RunCost(
            time=self.forward_time,
            overhead_bytes=self.forward_overhead_bytes,
            backward_time=self.backward_time,
        )
        whole_stage = StageOption(
            saved_bytes=self.saved_bytes,
            backward_overhead_bytes=self.backward_overhead_bytes,
            first=self.first or plain,
            again=self.again or plain,
            needs_input=self.needs_input,
        )
        return (whole_stage, *self.options)

    def dropped(self, *, first: bool) -> RunCost:
        """Return the costs of a run that is not kept: the stage's first one, or a later one."""
        plain = RunCost(time=self.forward_time, overhead_bytes=self.forward_overhead_bytes)
        return (self.dropped_first if first else self.dropped_again) or plain

    @property
    def dropped_runs(self) -> tuple[RunCost, RunCost]:
        """Costs of runs that are not kept: of the stage's first one, and of a later one."""
        return self.dropped(first=True), self.dropped(first=False)

    @property
    def all_runs(self) -> tuple[RunCost, ...]:
        """Costs of every kind of run: kept under each option, and dropped."""
        kept = (run for option in self.all_options for run in option.runs)
        return (*kept, *self.dropped_runs)

    def to_fields(self) -> dict[str, object]:
        """Return the stage as a JSON object; what a plain stage leaves out is not in it."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _UNSAID or value != _UNSAID[name]
        }

    @classmethod
    def from_fields(cls, document: Fields) -> Self:
        """Read the JSON object that `to_fields` writes."""
        options = document.children("options") if document.has("options") else []
        found: dict[str, Any] = {field: document.integer(field) for field in QUANTITIES}
        found |= {name: _run_in(document, name) for name in _RUNS}
        found["name"] = document.string("name")
        found["options"] = tuple(map(StageOption.from_fields, options))
        found |= {name: document.integer(name) for name in _ENVIRONMENT if document.has(name)}
        if document.has("needs_input"):
            found["needs_input"] = document.boolean("needs_input")
        try:
            return cls(**found)
        except InvalidProfileError as refusal:  # of many stages, which often have no names
            raise InvalidProfileError(f"{document.path}: {refusal}") from None


_RUNS: Final = ("first", "again", "dropped_first", "dropped_again")
_ENVIRONMENT: Final = ("environment_bytes", "random_bytes")
QUANTITIES: Final = tuple(
    field.name
    for field in fields(Stage)
    if field.name.endswith(("_time", "_bytes")) and field.name not in _ENVIRONMENT
)
"""The seven numbers of the papers' model."""
_UNSAID: Final = {
    field.name: field.default for field in fields(Stage) if field.name not in ("name", *QUANTITIES)
}
"""What a document of a plain stage leaves out, and the values that it has then."""


def _run_in(document: Fields, name: str) -> RunCost | None:
    if not document.has(name):
        return None
    return RunCost.from_fields(document.child(name))


def _require_name(name: object, whose: str) -> None:
    if not isinstance(name, str):
        raise InvalidProfileError(f"{whose} name is {name!r}, must be a string")


def _require_kind(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise InvalidProfileError(f"{what} is {value!r}, must be a {kind.__name__}")


def _require_whole(costs: object, names: tuple[str, ...], what: str) -> None:
    """Replace every named field by an int, or refuse it."""
    for field in names:
        object.__setattr__(costs, field, whole(getattr(costs, field), f"{what}: {field}"))
