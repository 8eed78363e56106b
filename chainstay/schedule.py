"""The language of schedules: what to do, in which order, and nothing about what it costs.

A schedule is a sequence of operations on the stages of a chain, written
``Fa0 Fc1 Fn2 Fa3 B3 …``. Simulator, executor and plots are its interpreters.

====== ============== ==========================================================
text   [BEHJS24]      meaning (stage ``i`` has input ``a^i`` and output ``a^{i+1}``)
====== ============== ==========================================================
``Fn`` ``F_∅``        forward, then drop the input
``Fc`` ``F_ck``       forward, keep the input as a checkpoint
``Fa`` ``F_all``      forward, keep the input and everything backward needs
``B``  ``B``          backward
``Da`` --             drop activation ``a^i``
``Db`` --             drop what ``Fa`` of stage ``i`` saved
====== ============== ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, overload

from chainstay import documents
from chainstay.errors import InvalidScheduleError

__all__ = ["Discards", "Op", "OpKind", "Schedule"]

_KIND: Final = "schedule"
_VERSION: Final = 1
_WORD: Final = re.compile(r"(Fn|Fc|Fa|B|Da|Db)(0|[1-9][0-9]{0,8})")


class OpKind(StrEnum):
    """What an operation does; the value is its spelling in the text form."""

    FORWARD_DROP = "Fn"
    FORWARD_KEEP_INPUT = "Fc"
    FORWARD_KEEP_ALL = "Fa"
    BACKWARD = "B"
    DISCARD_ACTIVATION = "Da"
    DISCARD_SAVED = "Db"

    @property
    def is_forward(self) -> bool:
        """Whether the operation runs a stage forward."""
        return self in _FORWARDS


_FORWARDS: Final = frozenset(
    {OpKind.FORWARD_DROP, OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_KEEP_ALL}
)


_KINDS: Final = frozenset(OpKind)
_STAGES: Final = range(10**9)


class Discards(StrEnum):
    """Which operations may remove data: three readings of the paper, three optima.

    Attributes:
        TABLE1: Only ``Fn`` and ``B``, literally Table 1 of [BEHJS24].
        TAPE: ``Da`` and ``Db`` too, but never the input of recorded saved data, which is
            what autograd's own tape would hold.
        FREE: Any stage's input but ``a^0``, and any saved data, at any time; saved data
            may outlive its input, which is recomputed later.
    """

    TABLE1 = "table1"
    TAPE = "tape"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one stage (``Da``: on the input of that stage).

    Raises:
        InvalidScheduleError: An unknown kind, or a stage that is no number from 0 to
            999,999,999.

    Example:
        >>> str(Op(OpKind.FORWARD_KEEP_INPUT, 3))
        'Fc3'
    """

    kind: OpKind
    stage: int

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidScheduleError(f"kind is {self.kind!r}, must be one of {', '.join(OpKind)}")
        if self.stage not in _STAGES:
            raise InvalidScheduleError(f"stage is {self.stage!r}, must be from 0 to {_STAGES[-1]}")

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}"


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
        words = text.split()
        matches = [_WORD.fullmatch(word) for word in words]
        for index, (word, match) in enumerate(zip(words, matches, strict=True)):
            if match is None:
                raise InvalidScheduleError(
                    f"{word[:20]!r} is not an operation; write Fn, Fc, Fa, B, Da or Db and a "
                    "stage number, as in 'Fa0'",
                    index=index,
                    ops=[word[:20] for word in words],
                )
        return cls(tuple(Op(OpKind(match[1]), int(match[2])) for match in matches if match))

    @classmethod
    def keep_all(cls, stages: int) -> Self:
        """Plain training of `stages` stages: every forward once, everything kept.

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
        """The schedule as a JSON document; `from_json` gives an equal schedule back."""
        return documents.dump(_KIND, _VERSION, {"ops": str(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json`'s document.

        Raises:
            InvalidScheduleError: Malformed, of another kind or version, or not a schedule.
        """
        document = documents.parse(text, _KIND, _VERSION, InvalidScheduleError)
        return cls.parse(document.string("ops"))
