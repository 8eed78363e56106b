r"""The model by phases: its variables, and the expressions that its sentences use.

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
==============================  ========================================================

The last two exist under free discards only. Nothing is stored when the first phase,
``n - 1``, starts. The memory model is Table 1 of [BEHJS24]; the model itself is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chainstay.formulations.algebra import Constraint, Expression, Model, Relation, pyo
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards

__all__ = ["Phases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The Pyomo model's variables, and the linear expressions that the sentences use.

    Attributes:
        model: Owner of the variables.
        profile: The chain.
        discards: Which operations may remove data.
        unit: Bytes per unit of the memory rows; see `scaling`.
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
        ):
            model.add_component(name, pyo.Var(index, domain=pyo.Binary))

    @property
    def turns(self) -> list[tuple[int, int]]:
        """All (phase, stage) pairs, in the order of time."""
        return [(k, j) for k in reversed(range(len(self.profile))) for j in range(k + 1)]

    def value(self, name: str, k: int, i: int) -> Expression:
        """The variable `name` at (k, i), or 0 where the model has none."""
        variable = self.model.component(name)
        return variable[k, i] if (k, i) in variable else 0  # noqa: SIM401 - it has no get

    def makes_output(self, k: int, j: int) -> Expression:
        """Whether phase k makes ``a^{j+1}`` by itself: ``Fc`` or ``Fn`` of stage j."""
        return self.value("keep_input", k, j) + self.value("drop_input", k, j)

    def runs(self, k: int, j: int) -> Expression:
        """Whether stage j runs forward in phase k."""
        return self.value("keep_all", k, j) + self.makes_output(k, j)

    def available(self, k: int, i: int) -> Expression:
        """Whether ``a^i`` is stored just before stage i's turn in phase k (i > 0)."""
        return self.value("activation_stored", k, i) + self.makes_output(k, i - 1)

    def left(self, k: int, i: int) -> Expression:
        """Whether ``a^i`` is stored when ``B`` of stage k runs (i > 0)."""
        gone = self.value("drop_input", k, i) + self.value("activation_dropped", k, i)
        return self.available(k, i) - gone

    def recorded(self, k: int, i: int) -> Expression:
        """Whether ``ā^i`` is stored just after stage i's turn in phase k."""
        return self.value("saved_stored", k, i) + self.value("keep_all", k, i)

    def saved_left(self, k: int, i: int) -> Expression:
        """Whether ``ā^i`` is stored when ``B`` of stage k runs."""
        return self.recorded(k, i) - self.value("saved_dropped", k, i)

    def indexed(self, rows: Iterable[tuple[tuple[int, ...], Relation]]) -> Constraint:
        """A constraint with one row per ``(index, relation)``."""
        table = dict(rows)
        return pyo.Constraint(list(table), rule=lambda _, *index: table[index])

    def forward_memory(self, k: int, j: int) -> Expression:
        r"""Memory in phase k while stage j runs forward, in units.

        .. math:: turn_j + a^{j+1}\,made + o_f^j\,runs

        With a rerun the overhead is that of the second run only; the first is in
        `recording_memory`.
        """
        overhead = self._units(self.profile.stages[j].forward_overhead_bytes)
        made = self.makes_output(k, j)
        return (
            self._turn_memory(k, j)
            + self._units(self.profile.activation_bytes(j + 1)) * made
            + overhead * (made if self.reruns else self.runs(k, j))
        )

    def recording_memory(self, k: int, j: int) -> Expression:
        r"""Memory in phase k while stage j is recorded, in units.

        .. math:: turn_j + o_f^j\,kept
        """
        overhead = self._units(self.profile.stages[j].forward_overhead_bytes)
        return self._turn_memory(k, j) + overhead * self.value("keep_all", k, j)

    def _turn_memory(self, k: int, j: int) -> Expression:
        r"""Memory in phase k at stage j's turn without overhead and new ``a^{j+1}``, in units.

        .. math:: δ^{k+1} + a^0 + \sum_{0<i<j} a^i\,left + a^j\,available
                  + \sum_{i>j} a^i\,stored + \sum_{i<j-1} ā^i\,left
                  + ā^{j-1}\,recorded + ā^j\,recorded + \sum_{i>j} ā^i\,stored
        """
        activations = (
            self.left(k, i)
            if i < j
            else (self.available(k, i) if i == j else self.value("activation_stored", k, i))
            for i in range(1, k + 1)
        )
        saved = (
            self.saved_left(k, i)
            if i < j - 1
            else (self.recorded(k, i) if i <= j else self.value("saved_stored", k, i))
            for i in range(k + 1)
        )
        return self._units(self.profile.gradient_bytes(k + 1)) + self._stored(activations, saved)

    def backward_memory(self, k: int) -> Expression:
        r"""Memory while ``B`` of stage k runs, in units.

        .. math:: δ^{k+1} + δ^k + a^0 + \sum_{0<i \le k} a^i\,left
                  + \sum_{i \le k} ā^i\,left + o_b^k
        """
        profile = self.profile
        always = (
            profile.gradient_bytes(k + 1)
            + profile.gradient_bytes(k)
            + profile.stages[k].backward_overhead_bytes
        )
        activations = (self.left(k, i) for i in range(1, k + 1))
        saved = (self.saved_left(k, i) for i in range(k + 1))
        return self._units(always) + self._stored(activations, saved)

    def _stored(self, activations: Iterable[Expression], saved: Iterable[Expression]) -> Expression:
        profile = self.profile
        return (
            self._units(profile.input_bytes)
            + sum(
                self._units(profile.activation_bytes(i)) * is_stored
                for i, is_stored in enumerate(activations, start=1)
            )
            + sum(
                self._units(profile.stages[i].saved_bytes) * is_stored
                for i, is_stored in enumerate(saved)
            )
        )

    def _units(self, size: int) -> float:
        return size / self.unit
