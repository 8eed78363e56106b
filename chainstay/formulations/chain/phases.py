"""The model by phases: its variables, and the expressions that its constraints use.

Phase ``k`` is what happens between ``B`` of stage ``k + 1`` and ``B`` of stage ``k``: the
gradient ``δ^{k+1}`` is held, and every stage ``j <= k`` runs forward at most once, in
increasing order (one *sweep*). Stages and activations count from 0 as everywhere:
stage ``j`` has input ``a^j`` and output ``a^{j+1}``; ``ā^j`` here is what ``Fa`` of stage
``j`` saves. ``a^0`` is always stored.

==============================  ========================================================
variable (binary)               meaning
==============================  ========================================================
``keep_all[k, j]``              ``Fa`` of stage j runs in phase k
``keep_input[k, j]``            ``Fc`` of stage j runs in phase k (j < k)
``drop_input[k, j]``            ``Fn`` of stage j runs in phase k (0 < j < k)
``activation_stored[k, i]``     ``a^i`` is stored when phase k starts (0 < i <= k)
``saved_stored[k, i]``          ``ā^i`` is stored when phase k starts
``activation_dropped[k, i]``    ``a^i`` is dropped in phase k right after stage i's turn
``saved_dropped[k, i]``         ``ā^i`` is dropped in phase k right after the turn of i + 1
``skip_stored[k, j, v]``        skip v is in memory at stage j's turn in phase k; for
                                j = k + 1, when ``B`` of stage k runs
==============================  ========================================================

The variables of drops exist under free discards only. Nothing is stored when the first phase,
``n - 1``, starts. The memory model is Table 1 of [BEHJS24]; the model itself is ours. Below,
``a^i`` and ``ā^i`` are what they have besides skips.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chainstay.formulations.pyomo_types import Constraint, Expression, Model, Relation, pyo
from chainstay.profiles import ChainProfile, Skip
from chainstay.schedule import Discards

__all__ = ["Phases", "StoredExpressions"]


class StoredExpressions(NamedTuple):
    """Expressions for whether ``a^i`` and ``ā^i`` are in memory at some moment, by index."""

    activations: Mapping[int, Expression]
    saved: Mapping[int, Expression]

    def having(self, skip: Skip) -> list[Expression]:
        """Return the expressions of what `skip` is part of; saved data have their output."""
        activations = [is_in for i, is_in in self.activations.items() if i in skip.states]
        return activations + [is_in for i, is_in in self.saved.items() if i + 1 in skip.states]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The Pyomo model's variables, and the linear expressions that the constraints use.

    Attributes:
        model: Owner of the variables.
        profile: The chain.
        discards: Which operations may remove data.
        unit: Bytes per unit of the memory rows; see `memory_unit`.
        reruns: Whether a stage may be recorded and then run again in one phase.
    """

    model: Model
    profile: ChainProfile
    discards: Discards
    unit: float
    reruns: bool

    def __post_init__(self) -> None:
        n, model = len(self.profile), self.model
        turns = [(k, j) for k in reversed(range(n)) for j in range(k + 1)]
        starts = [(k, i) for k, i in turns if k < n - 1]
        free = self.discards is Discards.FREE
        for name, index in (
            ("keep_all", turns),
            ("keep_input", [(k, j) for k, j in turns if j < k]),
            ("drop_input", [(k, j) for k, j in turns if 0 < j < k]),
            ("activation_stored", [(k, i) for k, i in starts if i > 0]),
            ("saved_stored", starts),
            ("activation_dropped", [(k, i) for k, i in turns if free and i > 0]),
            ("saved_dropped", [(k, i) for k, i in turns if free and i < k]),
            ("skip_stored", [(k, j, v) for k, j in self.moments for v in self._skips]),
        ):
            model.add_component(name, pyo.Var(index, domain=pyo.Binary))

    @property
    def turns(self) -> list[tuple[int, int]]:
        """All (phase, stage) pairs, in the order of time."""
        return [(k, j) for k in reversed(range(len(self.profile))) for j in range(k + 1)]

    @property
    def moments(self) -> list[tuple[int, int]]:
        """All turns, and (k, k + 1) for the backward that ends phase k, in the order of time."""
        return [(k, j) for k in reversed(range(len(self.profile))) for j in range(k + 2)]

    def value(self, name: str, k: int, i: int) -> Expression:
        """Return the variable `name` at (k, i), or 0 where the model has none."""
        variable = self.model.component(name)
        return variable[k, i] if (k, i) in variable else 0  # noqa: SIM401  # it has no get

    def makes_output(self, k: int, j: int) -> Expression:
        """Return whether phase k makes ``a^{j+1}`` by itself: ``Fc`` or ``Fn`` of stage j."""
        return self.value("keep_input", k, j) + self.value("drop_input", k, j)

    def runs(self, k: int, j: int) -> Expression:
        """Return whether stage j runs forward in phase k."""
        return self.value("keep_all", k, j) + self.makes_output(k, j)

    def available(self, k: int, i: int) -> Expression:
        """Return whether ``a^i`` is stored just before stage i's turn in phase k (i > 0)."""
        return self.value("activation_stored", k, i) + self.makes_output(k, i - 1)

    def left(self, k: int, i: int) -> Expression:
        """Return whether ``a^i`` is stored when ``B`` of stage k runs (i > 0)."""
        gone = self.value("drop_input", k, i) + self.value("activation_dropped", k, i)
        return self.available(k, i) - gone

    def recorded(self, k: int, i: int) -> Expression:
        """Return whether ``ā^i`` is stored just after stage i's turn in phase k."""
        return self.value("saved_stored", k, i) + self.value("keep_all", k, i)

    def saved_left(self, k: int, i: int) -> Expression:
        """Return whether ``ā^i`` is stored when ``B`` of stage k runs."""
        return self.recorded(k, i) - self.value("saved_dropped", k, i)

    def indexed(self, rows: Iterable[tuple[tuple[int, ...], Relation]]) -> Constraint:
        """Return a constraint with one row per ``(index, relation)``."""
        table = dict(rows)
        return pyo.Constraint(list(table), rule=lambda _, *index: table[index])

    def forward_memory(self, k: int, j: int) -> Expression:
        r"""Return the memory in phase k while stage j runs forward, in units.

        .. math:: turn_j + a^{j+1}\,made + o_f^j\,runs

        With a rerun the overhead is that of the second run only; the first is in
        `recording_memory`.
        """
        overhead = self._units(self.profile.stages[j].forward_overhead_bytes)
        made = self.makes_output(k, j)
        return (
            self._turn_memory(k, j)
            + self._units(self._own_activation_bytes(j + 1)) * made
            + overhead * (made if self.reruns else self.runs(k, j))
        )

    def recording_memory(self, k: int, j: int) -> Expression:
        r"""Return the memory in phase k while stage j is recorded, in units.

        .. math:: turn_j + o_f^j\,kept
        """
        overhead = self._units(self.profile.stages[j].forward_overhead_bytes)
        return self._turn_memory(k, j) + overhead * self.value("keep_all", k, j)

    def stored(self, k: int, j: int) -> StoredExpressions:
        r"""Return what is stored in phase k at stage j's turn, or for j = k + 1 when ``B`` runs.

        .. math:: a^0, \; a^i\,left \;(0<i<j), \; a^j\,available, \; a^i\,stored \;(i>j), \;
                  ā^i\,left \;(i<j-1), \; ā^{j-1}\,recorded, \; ā^j\,recorded, \;
                  ā^i\,stored \;(i>j)

        and everything as it is left when ``B`` runs.
        """
        done = j if j <= k else k + 2
        activations: dict[int, Expression] = {0: 1}
        for i in range(1, k + 1):
            if i < done:
                activations[i] = self.left(k, i)
            elif i == done:
                activations[i] = self.available(k, i)
            else:
                activations[i] = self.value("activation_stored", k, i)
        saved: dict[int, Expression] = {}
        for i in range(k + 1):
            if i < done - 1:
                saved[i] = self.saved_left(k, i)
            else:
                saved[i] = self.recorded(k, i) if i <= done else self.value("saved_stored", k, i)
        return StoredExpressions(activations, saved)

    def having(self, k: int, j: int, v: int) -> list[Expression]:
        """Return what is in memory at a moment of phase k, or made by stage j, and has skip v."""
        skip = self.profile.skips[v]
        made = [self.makes_output(k, j)] if j + 1 in skip.states else []
        candidates = self.stored(k, j).having(skip) + made
        return [is_in for is_in in candidates if not (isinstance(is_in, int) and is_in == 0)]

    def settle_skips(self) -> None:
        """Set ``skip_stored`` to what follows from the values of the other variables, 0 and 1."""
        for (k, j, v), variable in self.model.skip_stored.items():
            variable.set_value(max(map(pyo.value, self.having(k, j, v)), default=0))

    def _turn_memory(self, k: int, j: int) -> Expression:
        r"""Return the memory at stage j's turn without overhead and new ``a^{j+1}``, in units.

        .. math:: δ^{k+1} + \sum stored_j + \sum_v skip_v\,stored
        """
        return self._units(self.profile.gradient_bytes(k + 1)) + self._in_use(k, j)

    def backward_memory(self, k: int) -> Expression:
        r"""Return the memory while ``B`` of stage k runs, in units.

        .. math:: |δ^{k+1} \cup δ^k| + a^0 + \sum_{0<i \le k} a^i\,left
                  + \sum_{i \le k} ā^i\,left + \sum_v skip_v\,stored + o_b^k
        """
        profile = self.profile
        passed_on = (s.gradient_bytes for s in profile.skips if s.first <= k < s.last)
        always = (
            profile.gradient_bytes(k + 1)
            + profile.gradient_bytes(k)
            - sum(passed_on)
            + profile.stages[k].backward_overhead_bytes
        )
        return self._units(always) + self._in_use(k, k + 1)

    def _in_use(self, k: int, j: int) -> Expression:
        """Return all that is stored at a moment, its skips included, in units."""
        stored = self.stored(k, j)
        activations = (
            self._units(self._own_activation_bytes(i)) * is_in
            for i, is_in in stored.activations.items()
        )
        saved = (self._units(self._own_saved_bytes(i)) * is_in for i, is_in in stored.saved.items())
        skips = (
            self._units(self.profile.skips[v].bytes) * self.model.skip_stored[k, j, v]
            for v in self._skips
        )
        return sum(activations) + sum(saved) + sum(skips)

    @property
    def _skips(self) -> range:
        return range(len(self.profile.skips))

    def _own_activation_bytes(self, i: int) -> int:
        skips = (skip.bytes for skip in self.profile.skips if i in skip.states)
        return self.profile.activation_bytes(i) - sum(skips)

    def _own_saved_bytes(self, i: int) -> int:
        skips = (skip.bytes for skip in self.profile.skips if skip.first == i + 1)
        return self.profile.stages[i].saved_bytes - sum(skips)

    def _units(self, size: int) -> float:
        return size / self.unit
