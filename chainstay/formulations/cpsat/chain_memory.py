r"""The memory constraints of the program of a chain, in whole units of exact bytes.

At the turn of stage j in phase k, memory holds the gradient, ``a^0``, and of everything
else what is stored then: what had its turn as it is at the `END`, what has yet to come as
it was at the `START`. ``ā^{j-1}`` is still there: stage j reads its input from it.

.. math:: δ^{k+1} + a^0 + \sum_{0<i<j} a^i\,end + a^j\,turn + \sum_{i>j} a^i\,start
          + \sum_{i<j-1} ā^i\,end + ā^{j-1}\,turn + ā^j\,turn + \sum_{i>j} ā^i\,start
          + \sum_v skip_v

where ``a^i`` and ``ā^i`` are what is theirs alone, and a skip is there if anything that has it
is, or is just being made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, DataKind, TimePoint
from chainstay.formulations.cpsat.ortools_backend import Literal
from chainstay.profiles import ChainProfile

__all__ = ["MemoryExpression", "limit_memory", "most_bytes"]

MemoryExpression: TypeAlias = Any
"""A linear expression over literals, in units."""

_Item: TypeAlias = tuple[DataKind, int]
_Makers: TypeAlias = Sequence[Literal]

_KEEP_ALL, _KEEP_INPUT, _DROP_INPUT = FORMS


def limit_memory(variables: ChainVariables, limit: int | Literal, *, unit: int) -> None:
    """Limit memory at every turn and every backward to `limit` units of `unit` bytes."""
    memory = _MemoryExpressions(variables, unit)
    for k, j in variables.turns:
        for need in memory.forwards(k, j):
            variables.model.add(need <= limit)
    for k in variables.phases:
        variables.model.add(memory.backward(k) <= limit)


def most_bytes(profile: ChainProfile) -> int:
    """Return more bytes than any schedule needs: everything at once."""
    return (
        profile.input_bytes
        + profile.input_gradient_bytes
        + sum(
            stage.output_bytes
            + stage.saved_bytes
            + stage.gradient_bytes
            + stage.forward_overhead_bytes
            + stage.backward_overhead_bytes
            for stage in profile.stages
        )
    )


@dataclass(frozen=True, slots=True)
class _MemoryExpressions:
    """Memory during operations, as expressions of the variables.

    Attributes:
        variables: The variables.
        unit: Bytes per unit; they divide every size.
    """

    variables: ChainVariables
    unit: int

    def forwards(self, k: int, j: int) -> tuple[MemoryExpression, ...]:
        """Return the memory while stage j is recorded in phase k, and while it makes its output."""
        profile = self.variables.profile
        made = [self.variables.ran(form, k, j) for form in (_KEEP_INPUT, _DROP_INPUT)]
        stored = {
            **{(DataKind.ACTIVATION, i): _time_point(i, done=j - 1, now=j) for i in range(k + 1)},
            **{(DataKind.SAVED, i): _time_point(i, done=j - 2, now=j) for i in range(k + 1)},
        }
        gradient = profile.gradient_bytes(k + 1) // self.unit
        base = gradient + self._stored(k, stored, {j + 1: made})
        overhead = profile.stages[j].forward_overhead_bytes // self.unit
        output = self._own_size(DataKind.ACTIVATION, j + 1)
        recording = base + overhead * self.variables.ran(_KEEP_ALL, k, j)
        return recording, base + (overhead + output) * sum(made)

    def backward(self, k: int) -> MemoryExpression:
        """Return the memory while ``B`` of stage k runs: all that is left, gradients, overhead."""
        profile = self.variables.profile
        gradients = profile.gradient_bytes(k + 1) + profile.gradient_bytes(k)
        for skip in profile.skips:
            if {k, k + 1} <= set(skip.states):
                gradients -= skip.gradient_bytes
        overhead = profile.stages[k].backward_overhead_bytes
        left = {(what, i): TimePoint.END for what in DataKind for i in range(k + 1)}
        return (gradients + overhead) // self.unit + self._stored(k, left, {})

    def _stored(
        self, k: int, stored: Mapping[_Item, TimePoint], made: Mapping[int, _Makers]
    ) -> MemoryExpression:
        """Return everything in memory in phase k, each item at its time point; each skip once.

        Args:
            k: The phase.
            stored: The time point at which each item counts.
            made: The literals that make activations which are not among them; only their skips
                count.
        """
        need: MemoryExpression = 0
        holders = {index: [*makers] for index, makers in made.items()}
        for (what, i), when in stored.items():
            literal = self.variables.stored(what, when, k, i)
            need += self._own_size(what, i) * literal
            holders.setdefault(i + (what is DataKind.SAVED), []).append(literal)
        for skip in self.variables.profile.skips:
            is_there = self.variables.model.new_bool_var("")
            for literal in chain.from_iterable(holders.get(i, ()) for i in skip.states):
                self.variables.model.add_implication(literal, is_there)
            need += skip.bytes // self.unit * is_there
        return need

    def _own_size(self, what: DataKind, index: int) -> int:
        """Return the units of an item without skips, or without those that pass through it."""
        profile = self.variables.profile
        if what is DataKind.ACTIVATION:
            size = profile.activation_bytes(index)
            size -= sum(skip.bytes for skip in profile.skips if index in skip.states)
        else:
            size = profile.stages[index].saved_bytes
            size -= sum(skip.bytes for skip in profile.skips if index + 1 == skip.first)
        return size // self.unit


def _time_point(index: int, *, done: int, now: int) -> TimePoint:
    """Return the time point at which the state of `index` counts.

    Up to `done` it is the last one, up to `now` its own turn, and the start otherwise.
    """
    if index <= done:
        return TimePoint.END
    return TimePoint.TURN if index <= now else TimePoint.START
