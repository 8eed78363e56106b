r"""What the constraint program says about memory, in whole units of exact bytes.

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

from chainstay.formulations.cpsat.binding import Literal
from chainstay.formulations.cpsat.moments import FORMS, Data, Moment, Moments
from chainstay.profiles import ChainProfile

__all__ = ["Need", "limit_memory", "most_bytes"]

Need: TypeAlias = Any
"""A linear expression over literals, in units."""

_Item: TypeAlias = tuple[Data, int]
_Makers: TypeAlias = Sequence[Literal]

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
        made = [self.of.ran(form, k, j) for form in (_KEEP_INPUT, _DROP_INPUT)]
        stored = {
            **{(Data.ACTIVATION, i): _moment(i, done=j - 1, now=j) for i in range(k + 1)},
            **{(Data.SAVED, i): _moment(i, done=j - 2, now=j) for i in range(k + 1)},
        }
        gradient = profile.gradient_bytes(k + 1) // self.unit
        base = gradient + self._stored(k, stored, {j + 1: made})
        overhead = profile.stages[j].forward_overhead_bytes // self.unit
        output = self._own_size(Data.ACTIVATION, j + 1)
        recording = base + overhead * self.of.ran(_KEEP_ALL, k, j)
        return recording, base + (overhead + output) * sum(made)

    def backward(self, k: int) -> Need:
        """While ``B`` of stage k runs: all that is left, both gradients, the overhead."""
        profile = self.of.profile
        gradients = profile.gradient_bytes(k + 1) + profile.gradient_bytes(k)
        for skip in profile.skips:
            if {k, k + 1} <= set(skip.states):
                gradients -= skip.gradient_bytes
        overhead = profile.stages[k].backward_overhead_bytes
        left = {(what, i): Moment.END for what in Data for i in range(k + 1)}
        return (gradients + overhead) // self.unit + self._stored(k, left, {})

    def _stored(self, k: int, stored: Mapping[_Item, Moment], made: Mapping[int, _Makers]) -> Need:
        """Everything in memory in phase k, each item at its moment; each skip once.

        Args:
            k: The phase.
            stored: At which moment each item counts.
            made: What makes activations that are not among them; of these the skips only.
        """
        need: Need = 0
        holders = {index: [*makers] for index, makers in made.items()}
        for (what, i), when in stored.items():
            literal = self.of.stored(what, when, k, i)
            need += self._own_size(what, i) * literal
            holders.setdefault(i + (what is Data.SAVED), []).append(literal)
        for skip in self.of.profile.skips:
            is_there = self.of.model.new_bool_var("")
            for literal in chain.from_iterable(holders.get(i, ()) for i in skip.states):
                self.of.model.add_implication(literal, is_there)
            need += skip.bytes // self.unit * is_there
        return need

    def _own_size(self, what: Data, index: int) -> int:
        """Without skips that others may have; of saved data, without those that pass through."""
        profile = self.of.profile
        if what is Data.ACTIVATION:
            size = profile.activation_bytes(index)
            size -= sum(skip.bytes for skip in profile.skips if index in skip.states)
        else:
            size = profile.stages[index].saved_bytes
            size -= sum(skip.bytes for skip in profile.skips if index + 1 == skip.first)
        return size // self.unit


def _moment(index: int, *, done: int, now: int) -> Moment:
    """At which moment the state of `index` counts: up to `done` the last, up to `now` its own."""
    if index <= done:
        return Moment.END
    return Moment.TURN if index <= now else Moment.START
