r"""The memory constraints of the program of a chain, in whole units of exact bytes.

At the turn of stage j in phase k, memory holds the gradient, ``a^0``, and of everything
else what is stored then: what had its turn as it is at the `END`, what has yet to come as
it was at the `START`. ``ā^{j-1}`` is still there: stage j reads its input from it.

.. math:: δ^{k+1} + a^0 + \sum_{0<i<j} a^i\,end + a^j\,turn + \sum_{i>j} a^i\,start
          + \sum_{i<j-1} ā^i\,end + ā^{j-1}\,turn + ā^j\,turn + \sum_{i>j} ā^i\,start
          + \sum_v skip_v

where ``a^i`` and ``ā^i`` are what is theirs alone, and a skip is there if anything that has it
is, or is just being made. Of a record of several stages, the first one says whether it is there
since its turn, and the last one whether as it is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from chainstay.formulations.chain.records import Record
from chainstay.formulations.cpsat.chain_variables import ChainVariables, TimePoint
from chainstay.formulations.cpsat.ortools_backend import Literal
from chainstay.profiles import RunCost

MemoryExpression: TypeAlias = Any
"""A linear expression over literals, in units."""

_Item: TypeAlias = int | Record
"""The index of an activation, or a record."""
_Makers: TypeAlias = Sequence[Literal]


def limit_memory(variables: ChainVariables, limit: int | Literal, *, unit: int) -> None:
    """Limit memory at every turn and every backward to `limit` units of `unit` bytes."""
    memory = _MemoryExpressions(variables, unit)
    for k, j in variables.turns:
        for need in memory.forwards(k, j):
            variables.model.add(need <= limit)
    for k in variables.phases:
        variables.model.add(memory.backward(k) <= limit)


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
        variables = self.variables
        made = variables.made(k, j)
        stored: dict[_Item, TimePoint] = {
            i: _time_point(i, i, done=j - 1, now=j) for i in range(k + 1)
        }
        for record in variables.fitting(k, variables.records.all):
            stored[record] = _time_point(record.stage, record.last, done=j - 2, now=j)
        gradient = variables.profile.gradient_bytes(k + 1) // self.unit
        base = gradient * (1 - sum(variables.joined(k))) + self._stored(k, stored, {j + 1: made})
        recording = base + kept_cost(variables, k, j, self._overhead)
        output = self._own_size(j + 1) * sum(made)
        return recording, base + output + dropped_cost(variables, k, j, self._overhead)

    def _overhead(self, run: RunCost) -> int:
        return run.overhead_bytes // self.unit

    def backward(self, k: int) -> MemoryExpression:
        """Return the memory while ``B`` ends phase k: all that is left, gradients, overhead."""
        variables = self.variables
        left: dict[_Item, TimePoint] = dict.fromkeys(range(k + 1), TimePoint.END)
        left |= dict.fromkeys(variables.fitting(k, variables.records.all), TimePoint.END)
        needs = (
            self._backward_bytes(record) // self.unit * variables.recorded(TimePoint.END, k, record)
            for record in variables.records.ending(k)
        )
        return sum(needs) + self._stored(k, left, {})

    def _backward_bytes(self, record: Record) -> int:
        """Return the bytes of gradients and overhead while ``B`` of a record runs."""
        profile, first, end = self.variables.profile, record.stage, record.last + 1
        need = profile.gradient_bytes(end) + profile.gradient_bytes(first)
        for skip in profile.skips:
            if {first, end} <= set(skip.states):
                need -= skip.gradient_bytes
        return need + record.costs.backward_overhead_bytes

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
        for item, when in stored.items():
            if isinstance(item, Record):
                literal, end = self.variables.recorded(when, k, item), item.last + 1
            else:
                literal, end = self.variables.stored(when, k, item), item
            need += self._own_size(item) * literal
            holders.setdefault(end, []).append(literal)
        for skip in self.variables.profile.skips:
            is_there = self.variables.model.new_bool_var("")
            for literal in chain.from_iterable(holders.get(i, ()) for i in skip.states):
                self.variables.model.add_implication(literal, is_there)
            need += skip.bytes // self.unit * is_there
        return need

    def _own_size(self, item: _Item) -> int:
        """Return the units of an item without skips, or without those that pass through it."""
        profile = self.variables.profile
        if isinstance(item, Record):
            size, made = item.costs.saved_bytes, range(item.stage + 1, item.last + 2)
            own = [skip for skip in profile.skips if skip.first in made and made[-1] <= skip.last]
        else:
            size = profile.activation_bytes(item)
            own = [skip for skip in profile.skips if item in skip.states]
        return (size - sum(skip.bytes for skip in own)) // self.unit


def kept_cost(
    variables: ChainVariables, k: int, j: int, quantity: Callable[[RunCost], int]
) -> MemoryExpression:
    """Return a quantity of ``Fa`` of stage j in phase k, 0 if there is none."""
    return sum(
        quantity(record.costs.run(first=variables.is_first(k))) * variables.kept(k, record)
        for record in variables.fitting(k, variables.records.starting(j))
    )


def dropped_cost(
    variables: ChainVariables, k: int, j: int, quantity: Callable[[RunCost], int]
) -> MemoryExpression:
    """Return a quantity of ``Fc`` or ``Fn`` of stage j in phase k, 0 if there is none.

    The first phase runs every stage once, and twice where ``Fa`` comes before.
    """
    stage, made = variables.profile.stages[j], sum(variables.made(k, j))
    first, again = map(quantity, stage.dropped_runs)
    if first == again or j == k or not variables.is_first(k):
        return again * made
    return first * made + (again - first) * (sum(variables.runs(k, j)) - 1)


def _time_point(first: int, last: int, *, done: int, now: int) -> TimePoint:
    """Return the time point at which the state of an activation or a record counts.

    If its last stage is at most `done` it is the end; if its first one is at most `now`, its
    own turn; the start otherwise.
    """
    if last <= done:
        return TimePoint.END
    return TimePoint.TURN if first <= now else TimePoint.START
