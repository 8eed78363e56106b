"""Optima of persistent schedules of small chains by exhaustive search.

Definition 4.1 of [BEHJS24] as it is to be read with options: ``Fc`` and ``Fa`` protect their
stage, until its backward or that of a record that it lies in. Meanwhile it keeps its input, which
no ``Fn`` may take, and no stage below it runs, forward or backward. Theorem 4.8 is about fewer
schedules: those in which every ``Fc`` or ``Fn`` is followed at once by a forward of the next stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, OpKind
from chainstay.solution import Claim, Family
from chainstay.validation.search import (
    ChainState,
    ChainTransitions,
    Transition,
    fastest_path,
    least_peak,
)


def persistent_optimum(profile: ChainProfile, budget: int, *, whole_sweeps: bool = True) -> Claim:
    """Return the fastest persistent schedule within `budget`.

    Args:
        profile: A chain of at most `LARGEST_CHAIN` stages.
        budget: Bytes.
        whole_sweeps: Whether every ``Fc`` and ``Fn`` must be followed at once by a forward of the
            next stage, as in `Family.PERSISTENT`; without that, it is Definition 4.1 alone.

    Raises:
        InfeasibleBudgetError: No such schedule fits; ``error.required`` says what would.
        InvalidProfileError: The chain is too long to search.
    """
    rules = _PersistentTransitions(profile, whole_sweeps=whole_sweeps)
    return fastest_path(rules, budget, Family.PERSISTENT, Discards.TABLE1)


def persistent_least_budget(profile: ChainProfile, *, whole_sweeps: bool = True) -> int:
    """Return the least budget, in bytes, for which such a schedule exists.

    Raises:
        InvalidProfileError: The chain is too long to search.
    """
    return least_peak(_PersistentTransitions(profile, whole_sweeps=whole_sweeps))


class _PersistentState(NamedTuple):
    """A memory state, and what binds the next operations.

    Attributes:
        gradient: Index of the gradient that is held.
        memory: The memory state.
        protected: Bit i is set while stage i is protected.
        following: The stage whose forward comes next; 0 if it may be any operation.
    """

    gradient: int
    memory: ChainState
    protected: int
    following: int


class _PersistentTransitions:
    """All transitions of persistent schedules out of a state."""

    def __init__(self, profile: ChainProfile, *, whole_sweeps: bool) -> None:
        self._all = ChainTransitions(profile, Discards.TABLE1, every_drop=True, is_persistent=True)
        self._whole_sweeps = whole_sweeps
        self.start = _PersistentState(len(profile), self._all.start, 0, 0)

    def steps(self, state: _PersistentState) -> Iterator[Transition[_PersistentState]]:
        """Yield every operation that a persistent schedule may run in `state`."""
        for step in self._all.steps(state.memory):
            (op,) = step.ops
            kind, bit = op.kind, 1 << op.stage
            if kind is OpKind.BACKWARD:
                if state.following or state.protected >> state.gradient:
                    continue
                protected, following = state.protected & (bit - 1), 0
            else:
                drops = kind is OpKind.FORWARD_DROP
                is_bound = state.following and state.following != op.stage
                if is_bound or state.protected >> op.stage + (not drops):
                    continue
                protected = state.protected if drops else state.protected | bit
                goes_on = self._whole_sweeps and kind is not OpKind.FORWARD_KEEP_ALL
                following = op.stage + 1 if goes_on else 0
            after = _PersistentState(step.after.gradient, step.after, protected, following)
            yield Transition(step.ops, after, step.time, step.bytes)
