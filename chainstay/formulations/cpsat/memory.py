r"""What the constraint program says about memory, in whole units of exact bytes.

At the turn of stage j in phase k, memory holds the gradient, ``a^0``, and of everything
else what is stored then: what had its turn as it is at the `END`, what has yet to come as
it was at the `START`. ``ā^{j-1}`` is still there: stage j reads its input from it.

.. math:: δ^{k+1} + a^0 + \sum_{0<i<j} a^i\,end + a^j\,turn + \sum_{i>j} a^i\,start
          + \sum_{i<j-1} ā^i\,end + ā^{j-1}\,turn + ā^j\,turn + \sum_{i>j} ā^i\,start
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chainstay.formulations.cpsat.binding import Literal
from chainstay.formulations.cpsat.moments import FORMS, Data, Moment, Moments
from chainstay.profiles import ChainProfile

__all__ = ["Need", "limit_memory", "most_bytes"]

Need: TypeAlias = Any
"""A linear expression over literals, in units."""

_KEEP_ALL, _KEEP_INPUT, _DROP_INPUT = FORMS


def limit_memory(of: Moments, limit: int | Literal, *, unit: int) -> None:
    """At every turn and every backward, memory is at most `limit` units of `unit` bytes."""
    memory = _Memory(of, unit)
    for k, j in of.turns:
        for need in memory.forwards(k, j):
            of.model.add(need <= limit)
    for k in of.phases:
        of.model.add(memory.backward(k) <= limit)


def most_bytes(profile: ChainProfile) -> int:
    """More than any schedule needs, in bytes: everything at once."""
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
class _Memory:
    """Memory during operations; `unit` bytes divide every size."""

    of: Moments
    unit: int

    def forwards(self, k: int, j: int) -> tuple[Need, ...]:
        """While stage j is recorded in phase k, and while it makes ``a^{j+1}``."""
        profile = self.of.profile
        base = self._turn(k, j)
        overhead = profile.stages[j].forward_overhead_bytes // self.unit
        output = profile.activation_bytes(j + 1) // self.unit
        made = self.of.ran(_KEEP_INPUT, k, j) + self.of.ran(_DROP_INPUT, k, j)
        recording = base + overhead * self.of.ran(_KEEP_ALL, k, j)
        return recording, base + (overhead + output) * made

    def backward(self, k: int) -> Need:
        """While ``B`` of stage k runs: all that is left, both gradients, the overhead."""
        profile = self.of.profile
        gradients = profile.gradient_bytes(k + 1) + profile.gradient_bytes(k)
        overhead = profile.stages[k].backward_overhead_bytes
        left = sum(
            self._size(what, i) * self.of.stored(what, Moment.END, k, i)
            for what in Data
            for i in range(k + 1)
        )
        return (gradients + overhead) // self.unit + left

    def _turn(self, k: int, j: int) -> Need:
        gradient = self.of.profile.gradient_bytes(k + 1) // self.unit
        activations = sum(
            self._size(Data.ACTIVATION, i)
            * self.of.stored(Data.ACTIVATION, _moment(i, done=j - 1, now=j), k, i)
            for i in range(k + 1)
        )
        saved = sum(
            self._size(Data.SAVED, i)
            * self.of.stored(Data.SAVED, _moment(i, done=j - 2, now=j), k, i)
            for i in range(k + 1)
        )
        return gradient + activations + saved

    def _size(self, what: Data, index: int) -> int:
        profile = self.of.profile
        size = (
            profile.activation_bytes(index)
            if what is Data.ACTIVATION
            else profile.stages[index].saved_bytes
        )
        return size // self.unit


def _moment(index: int, *, done: int, now: int) -> Moment:
    """At which moment the state of `index` counts: up to `done` the last, up to `now` its own."""
    if index <= done:
        return Moment.END
    return Moment.TURN if index <= now else Moment.START
