"""The variables of the constraint program: which forwards run, what is stored when.

Time is cut into phases: phase ``k`` ends with ``B`` of stage ``k`` and holds the gradient
``δ^{k+1}``. In a phase, stages ``0 .. k`` take their turn once each, in this order; at its
turn a stage may run as ``Fa``, ``Fc`` or ``Fn``. Indices count from 0 as everywhere.

==========================  =============================================================
variable (Boolean)          meaning
==========================  =============================================================
``ran(form, k, j)``         stage j runs as `form` at its turn in phase k
``stored(what, when, k, i)``  ``a^i`` or ``ā^i`` is stored at a moment of phase k:
                            at its `START`; at the `TURN` of stage i, for ``a^i`` just
                            before it runs and for ``ā^i`` just after; at its `END`, when
                            ``B`` of stage k runs
==========================  =============================================================

``a^0`` is always stored, nothing else is when the first phase, ``n - 1``, starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple, TypeAlias

from chainstay.formulations.cpsat.ortools_backend import Literal, Model
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, OpKind

__all__ = ["FORMS", "ChainVariables", "DataKind", "Key", "RanKey", "StoredKey", "TimePoint"]

FORMS: Final = (OpKind.FORWARD_KEEP_ALL, OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_DROP)
"""Forms of a forward, in the order in which they run at one turn."""


class DataKind(StrEnum):
    """The kinds of data that memory holds besides one gradient, as an `Item` names them."""

    ACTIVATION = "a"
    SAVED = "b"


class TimePoint(Enum):
    """Points in time within a phase."""

    START = auto()
    TURN = auto()
    END = auto()


class RanKey(NamedTuple):
    """The meaning of a variable: stage `stage` ran as `form` in `phase`."""

    form: OpKind
    phase: int
    stage: int


class StoredKey(NamedTuple):
    """The meaning of a variable: ``a^item`` or ``ā^item`` was stored at a time point of `phase`."""

    what: DataKind
    when: TimePoint
    phase: int
    item: int


Key: TypeAlias = RanKey | StoredKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVariables:
    """All variables of a chain, by meaning.

    Attributes:
        model: Owner of the variables.
        profile: The chain.
        discards: Which operations may remove data.
        by_key: The variables by meaning; what is always or never so has none.
    """

    model: Model
    profile: ChainProfile
    discards: Discards
    by_key: dict[Key, Literal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self._keys():
            self.by_key[key] = self.model.new_bool_var("")

    @property
    def phases(self) -> range:
        """All phases, in the order of time."""
        return range(len(self.profile) - 1, -1, -1)

    @property
    def turns(self) -> list[tuple[int, int]]:
        """All pairs of phase and stage, in the order of time."""
        return [(k, j) for k in self.phases for j in range(k + 1)]

    def ran(self, form: OpKind, k: int, j: int) -> Literal:
        """Return whether stage j runs as `form` in phase k."""
        return self._literal(RanKey(form, k, j))

    def stored(self, what: DataKind, when: TimePoint, k: int, i: int) -> Literal:
        """Return whether ``a^i`` or ``ā^i`` is stored at a time point of phase k."""
        return self._literal(StoredKey(what, when, k, i))

    def _literal(self, key: Key) -> Literal:
        """Return the variable of a meaning, or a constant."""
        if key in self.by_key:
            return self.by_key[key]
        is_input = isinstance(key, StoredKey) and key.what is DataKind.ACTIVATION and key.item == 0
        return self.model.new_constant(is_input)

    def _keys(self) -> list[Key]:
        """Return the meanings that need a variable."""
        last = len(self.profile) - 1
        keep_all, keep_input, drop_input = FORMS
        keys: list[Key] = []
        for k, i in self.turns:
            keys.append(RanKey(keep_all, k, i))
            keys += [RanKey(keep_input, k, i)] * (i < k)
            keys += [RanKey(drop_input, k, i)] * (0 < i < k)
            for what in DataKind if i else (DataKind.SAVED,):
                keys += [
                    StoredKey(what, when, k, i)
                    for when in TimePoint
                    if when is not TimePoint.START or k < last
                ]
        return keys
