"""The language of schedules: what to do, in which order, and nothing about what it costs.

A schedule is a sequence of operations on the stages of a chain, written
``Fa0 Fc1 Fn2 Fa3 B3 …``. Simulator, executor and plots are its interpreters. In a join,
operations on branch ``j`` are written ``j:Fa0``, those on the tail without a prefix, and
the turn, where forward becomes backward, ``T``. Operations that move data to the host and
back stand where they are issued, and run beside computation. ``Fa3.1`` keeps stage 3 under
its option 1; option 0 has no suffix, and ``B3`` follows the option of what is there.

====== ============== ==========================================================
text   [BEHJS24]      meaning (stage ``i`` has input ``a^i`` and output ``a^{i+1}``)
====== ============== ==========================================================
``Fn`` ``F_∅``        forward, then drop the input
``Fc`` ``F_ck``       forward, keep the input as a checkpoint
``Fa`` ``F_all``      forward, keep the input and everything backward needs
``B``  ``B``          backward
``Da`` --             drop activation ``a^i``
``Db`` --             drop what ``Fa`` of stage ``i`` saved
``Oa`` --             offload: send activation ``a^i`` to the host, then drop it here
``Ob`` --             offload what ``Fa`` of stage ``i`` saved
``Pa`` --             prefetch: bring activation ``a^i`` back from the host
``Pb`` --             prefetch what ``Fa`` of stage ``i`` saved
``T``  --             the turn of a join: all branches' outputs in, their gradients out
====== ============== ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, NoReturn, Self, overload

from chainstay import documents
from chainstay.errors import InvalidScheduleError, UnknownMethodError

_KIND: Final = "schedule"
_VERSION: Final = 1
_WORD: Final = re.compile(
    r"(?:(?P<branch>0|[1-9][0-9]{0,8}):)?"
    r"(?P<kind>Fn|Fc|(?P<keeps>Fa)|B|Da|Db|Oa|Ob|Pa|Pb)(?P<stage>0|[1-9][0-9]{0,8})"
    r"(?(keeps)(?:\.(?P<option>[1-9][0-9]{0,8}))?)|T"
)


class OpKind(StrEnum):
    """The kinds of operations; each value is the spelling in the text form."""

    FORWARD_DROP = "Fn"
    FORWARD_KEEP_INPUT = "Fc"
    FORWARD_KEEP_ALL = "Fa"
    BACKWARD = "B"
    DISCARD_ACTIVATION = "Da"
    DISCARD_SAVED = "Db"
    OFFLOAD_ACTIVATION = "Oa"
    OFFLOAD_SAVED = "Ob"
    PREFETCH_ACTIVATION = "Pa"
    PREFETCH_SAVED = "Pb"
    TURN = "T"

    @property
    def is_forward(self) -> bool:
        """True if the operation runs a stage forward."""
        return self in _FORWARDS

    @property
    def is_computation(self) -> bool:
        """True if the operation runs a stage, forward or backward."""
        return self in _FORWARDS or self is OpKind.BACKWARD

    @property
    def is_transfer(self) -> bool:
        """True if the operation moves data away from the device, or back."""
        return self in _AWAY or self in _BACK

    @property
    def is_offload(self) -> bool:
        """True if the operation moves data away from the device."""
        return self in _AWAY

    @property
    def is_prefetch(self) -> bool:
        """True if the operation moves data back to the device."""
        return self in _BACK

    @property
    def is_discard(self) -> bool:
        """True if the operation lets data go."""
        return self in _DISCARDS


_DISCARDS: Final = frozenset({OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED})
_FORWARDS: Final = frozenset(
    {OpKind.FORWARD_DROP, OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_KEEP_ALL}
)
_AWAY: Final = frozenset({OpKind.OFFLOAD_ACTIVATION, OpKind.OFFLOAD_SAVED})
_BACK: Final = frozenset({OpKind.PREFETCH_ACTIVATION, OpKind.PREFETCH_SAVED})
_MOVES_SAVED: Final = frozenset({OpKind.OFFLOAD_SAVED, OpKind.PREFETCH_SAVED, OpKind.DISCARD_SAVED})

_KINDS: Final = frozenset(OpKind)
_NUMBERS: Final = range(10**9)


class Discards(StrEnum):
    """The operations that may remove data: three readings of the paper, three optima.

    Attributes:
        TABLE1: Only ``Fn`` and ``B``, literally Table 1 of [BEHJS24].
        TAPE: ``Da`` and ``Db`` too, but never the input of recorded saved data, which is
            what autograd's own tape would hold.
        FREE: Any stage's input but ``a^0``, and any saved data, at any time; saved data
            may outlive its input, which is recomputed later.

    Raises:
        UnknownMethodError: When called with something else: there are no such rules.
    """

    TABLE1 = "table1"
    TAPE = "tape"
    FREE = "free"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(repr(str(rules)) for rules in cls)
        raise UnknownMethodError(f"discards is {value!r}, must be one of {known}")


class Item(NamedTuple):
    """Something that a schedule of a chain stores.

    Attributes:
        kind: ``"a"``: activation ``a^number``; ``"b"``: what ``Fa`` of stage `number` saved.
        number: The index of the activation, or of the stage that saved data.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"

    @property
    def stage(self) -> int:
        """The stage that makes the item; -1 for the network's input."""
        return self.number - (self.kind == "a")

    @property
    def offload(self) -> Op:
        """The operation that sends the item to the host."""
        return Op(OpKind(f"O{self.kind}"), self.number)

    @property
    def prefetch(self) -> Op:
        """The operation that brings the item back."""
        return Op(OpKind(f"P{self.kind}"), self.number)

    @property
    def discard(self) -> Op:
        """The operation that drops the item."""
        return Op(OpKind(f"D{self.kind}"), self.number)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one stage (``Da``, ``Oa``, ``Pa``: on the input of that stage).

    Attributes:
        kind: The kind of operation.
        stage: Counted from 0 in its branch; 0 for the turn, which has none.
        branch: In a join, the branch, counted from 0; None for the tail and the turn, and
            wherever there are no branches.
        option: The option under which ``Fa`` keeps the stage; 0 for other operations.

    Raises:
        InvalidScheduleError: An unknown kind, a stage, branch or option that is no number from 0
            to 999,999,999, a turn of one stage or branch, or an option of something else than
            ``Fa``.

    Example:
        >>> str(Op(OpKind.FORWARD_KEEP_INPUT, 3)), str(Op(OpKind.BACKWARD, 3, branch=1))
        ('Fc3', '1:B3')
        >>> str(Op(OpKind.FORWARD_KEEP_ALL, 3, option=1))
        'Fa3.1'
    """

    kind: OpKind
    stage: int = 0
    branch: int | None = None
    option: int = 0

    def __post_init__(self) -> None:
        kind: object = self.kind  # whatever somebody passed
        if not isinstance(kind, str) or kind not in _KINDS:
            raise InvalidScheduleError(f"kind is {self.kind!r}, must be one of {', '.join(OpKind)}")
        numbers = {"stage": self.stage, "branch": self.branch or 0, "option": self.option}
        for name, number in numbers.items():
            # A range looks for what is no int in one number after another.
            is_whole = hasattr(number, "__index__") and not isinstance(number, bool)
            if not is_whole or int(number) not in _NUMBERS:
                raise InvalidScheduleError(
                    f"{name} is {number!r}, must be from 0 to {_NUMBERS[-1]}"
                )
        if self.kind is OpKind.TURN and (self.stage or self.branch is not None):
            raise InvalidScheduleError(
                f"a turn has stage {self.stage!r} and branch {self.branch!r}; it joins all "
                "branches, so leave both out"
            )
        if self.option and self.kind is not OpKind.FORWARD_KEEP_ALL:
            raise InvalidScheduleError(
                f"{self.kind}{self.stage} has option {self.option!r}, and only Fa has options; "
                "what Fa saved knows its own"
            )

    def __str__(self) -> str:
        if self.kind is OpKind.TURN:
            return str(self.kind)
        prefix = "" if self.branch is None else f"{self.branch}:"
        suffix = f".{self.option}" if self.option else ""
        return f"{prefix}{self.kind}{self.stage}{suffix}"

    @property
    def item(self) -> Item:
        """The item that a transfer moves or a discard drops."""
        return Item("b" if self.kind in _MOVES_SAVED else "a", self.stage)

    @property
    def makes(self) -> Item | None:
        """The item that a forward makes; None for other operations."""
        if self.kind is OpKind.FORWARD_KEEP_ALL:
            return Item("b", self.stage)
        return Item("a", self.stage + 1) if self.kind in _FORWARDS else None

    @property
    def frees(self) -> tuple[Item, ...]:
        """The items that a computation or discard removes where they are stored."""
        match self.kind:
            case OpKind.BACKWARD:
                return (Item("a", self.stage), Item("b", self.stage))
            case OpKind.FORWARD_DROP:
                return (Item("a", self.stage),)
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                return (self.item,)
        return ()

    def reads(self, stored: Collection[Item]) -> tuple[Item, ...]:
        """Return the items that a computation reads.

        Its input is ``a^i`` where that is stored, else part of what the stage before saved.
        """
        plain = Item("a", self.stage)
        source = plain if plain in stored else Item("b", self.stage - 1)
        return (source, Item("b", self.stage)) if self.kind is OpKind.BACKWARD else (source,)


def forwards_dropping_inputs(first: int, last: int, branch: int | None = None) -> Iterator[Op]:
    """Yield the forwards of stages `first` to `last`, of which only the input of `first` stays."""
    for stage in range(first, last + 1):
        kind = OpKind.FORWARD_KEEP_INPUT if stage == first else OpKind.FORWARD_DROP
        yield Op(kind, stage, branch)


def update_stored(stored: set[Item], op: Op) -> None:
    """Add to `stored` what `op` makes, and remove what it frees, whether or not it may run.

    Example:
        >>> stored = {Item("a", 0)}
        >>> for op in Schedule.parse("Fc0 Fa1 Fn1 Da0 Fa2 B2"):
        ...     update_stored(stored, op)
        >>> sorted(map(str, stored))
        ['b1']
    """
    if (made := op.makes) is not None:
        stored.add(made)
    stored.difference_update(op.frees)


@dataclass(frozen=True, slots=True)
class Schedule:
    """An immutable sequence of operations; `parse` reads what `str` writes.

    Example:
        >>> schedule = Schedule.parse("Fc0 Fa1 B1 Fa0 B0")
        >>> len(schedule), str(schedule[1]), Schedule.parse(str(schedule)) == schedule
        (5, 'Fa1', True)
    """

    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.ops, Iterable):
            raise InvalidScheduleError(f"ops is {self.ops!r}, must be a tuple of Op")
        object.__setattr__(self, "ops", tuple(self.ops))
        for position, op in enumerate(self.ops):
            if not isinstance(op, Op):
                raise InvalidScheduleError(f"ops[{position}] is {op!r}, must be an Op")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; white space separates operations.

        Raises:
            InvalidScheduleError: A word is not an operation; ``error.index`` counts words.
        """
        if not isinstance(text, str):
            raise InvalidScheduleError(f"the text of a schedule is {text!r}, must be a string")
        words = text.split()
        matches = [_WORD.fullmatch(word) for word in words]
        for index, (word, match) in enumerate(zip(words, matches, strict=True)):
            if match is None:
                raise InvalidScheduleError(
                    f"{word[:20]!r} is not an operation; write Fn, Fc, Fa, B, Da, Db, Oa, Ob, Pa "
                    "or Pb and a stage number, as in 'Fa0', with an option as in 'Fa0.1', after a "
                    "branch and a colon in a join, as in '1:Fa0', or T for its turn",
                    index=index,
                    ops=[word[:20] for word in words],
                )
        return cls(tuple(map(_op, filter(None, matches))))

    @classmethod
    def keep_all(cls, stages: int) -> Self:
        """Return plain training of `stages` stages: every forward once, everything kept.

        Example:
            >>> str(Schedule.keep_all(2))
            'Fa0 Fa1 B1 B0'
        """
        forward = [Op(OpKind.FORWARD_KEEP_ALL, stage) for stage in range(stages)]
        backward = [Op(OpKind.BACKWARD, stage) for stage in reversed(range(stages))]
        return cls((*forward, *backward))

    def __str__(self) -> str:
        return " ".join(map(str, self.ops))

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Op, ...]: ...
    def __getitem__(self, index: int | slice) -> Op | tuple[Op, ...]:
        return self.ops[index]

    def to_json(self) -> str:
        """Return the schedule as a JSON document; `from_json` gives an equal schedule back."""
        return documents.dump(_KIND, _VERSION, {"ops": str(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes.

        Raises:
            InvalidScheduleError: Malformed, of another kind or version, or not a schedule.
        """
        with documents.parse(text, _KIND, _VERSION, InvalidScheduleError) as document:
            return cls.parse(document.string("ops"))


def _op(word: re.Match[str]) -> Op:
    if word["kind"] is None:
        return Op(OpKind.TURN)
    branch = None if word["branch"] is None else int(word["branch"])
    option = int(word["option"] or 0)
    return Op(OpKind(word["kind"]), int(word["stage"]), branch, option)
