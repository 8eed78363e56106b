"""The model by phases: its variables, and the expressions that its constraints use.

Phase ``k`` is what happens between ``B`` of stage ``k + 1`` and ``B`` of stage ``k``: the
gradient ``δ^{k+1}`` is held, and every stage ``j <= k`` runs forward at most once, in
increasing order (one *sweep*). Stages and activations count from 0 as everywhere:
stage ``j`` has input ``a^j`` and output ``a^{j+1}``; ``ā^j`` here is what ``Fa`` of stage
``j`` saves, and option ``o`` is the number of one of its records (`Records`). ``a^0`` is always
stored. A record of several stages is made at the turn of its first one; its ``B`` ends the
phase of its last one, and the phases that it skips are *joined* to that: nothing happens in them.

==============================  ========================================================
variable (binary)               meaning
==============================  ========================================================
``keep_all[k, j, o]``           ``Fa`` of stage j runs in phase k under option o
``keep_input[k, j]``            ``Fc`` of stage j runs in phase k (j < k)
``drop_input[k, j]``            ``Fn`` of stage j runs in phase k (0 < j < k)
``activation_stored[k, i]``     ``a^i`` is stored when phase k starts (0 < i <= k)
``saved_stored[k, i, o]``       ``ā^i`` of option o is stored when phase k starts
``activation_dropped[k, i]``    ``a^i`` is dropped in phase k right after stage i's turn
``saved_dropped[k, i, o]``      ``ā^i`` of option o is dropped in phase k right after the turn
                                of the stage after its last one
``skip_stored[k, j, v]``        skip v is in memory at stage j's turn in phase k; for
                                j = k + 1, when ``B`` of stage k runs
``runs_again[k, i]``            stage i, which has an environment, runs in phase k or a later
                                one; for k = n - 1, after its first run
==============================  ========================================================

The variables of drops exist where discards in the middle of a phase may pay
(`may_discard_in_a_phase`). Nothing is stored when the first phase,
``n - 1``, starts. The memory model is Table 1 of [BEHJS24]; the model itself is ours. Below,
``a^i`` and ``ā^i`` are what they have besides skips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chainstay.formulations.integer_program import IntegerProgram, Key, LinearExpression, sum_of
from chainstay.formulations.records import Record, Records
from chainstay.profiles import ChainProfile, RunCost, Skip
from chainstay.schedule import Discards


class StoredExpressions(NamedTuple):
    """Expressions for whether ``a^i`` (by index) and records are in memory at some moment."""

    activations: Mapping[int, LinearExpression]
    saved: Mapping[Record, LinearExpression]

    def having(self, skip: Skip) -> list[LinearExpression]:
        """Return the expressions of what `skip` is part of; saved data have their output."""
        activations = [is_in for i, is_in in self.activations.items() if i in skip.states]
        return activations + [
            is_in for record, is_in in self.saved.items() if record.last + 1 in skip.states
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The program's variables, and the linear expressions that the constraints use.

    Attributes:
        program: Owner of the variables.
        records: The records that there may be, and their chain.
        discards: The rules for discards.
        unit: Bytes per unit of memory: the greatest common divisor of all sizes.
        ceiling: Units that nothing may have. What is larger counts as this, since numbers
            of unlike sizes are what solvers are wrong about.
        reruns: Whether a stage may be recorded and then run again in one phase.
        drops: Whether discards may come in the middle of a phase.
    """

    program: IntegerProgram
    records: Records
    discards: Discards
    unit: int
    ceiling: int
    reruns: bool
    drops: bool

    def __post_init__(self) -> None:
        for name, index in self._indices():
            self.program.binary(name, *index)

    @property
    def profile(self) -> ChainProfile:
        """The chain."""
        return self.records.profile

    @property
    def turns(self) -> list[tuple[int, int]]:
        """All (phase, stage) pairs, in the order of time."""
        return [(k, j) for k in reversed(range(len(self.profile))) for j in range(k + 1)]

    @property
    def moments(self) -> list[tuple[int, int]]:
        """All turns, and (k, k + 1) for the backward that ends phase k, in the order of time."""
        return [(k, j) for k in reversed(range(len(self.profile))) for j in range(k + 2)]

    def value(self, name: str, *index: int) -> LinearExpression:
        """Return the variable `name` at an index, or 0 where there is none."""
        return self.program.value(name, *index)

    def total(self, name: str, k: int, records: Iterable[Record]) -> LinearExpression:
        """Return whether the variable `name` is on in phase k for one of some records."""
        return sum_of(self.value(name, k, *record.key) for record in records)

    def makes_output(self, k: int, j: int) -> LinearExpression:
        """Return whether phase k makes ``a^{j+1}`` by itself: ``Fc`` or ``Fn`` of stage j."""
        return self.value("keep_input", k, j) + self.value("drop_input", k, j)

    def runs(self, k: int, j: int) -> LinearExpression:
        """Return whether stage j runs forward in phase k, alone or with others."""
        return self.total("keep_all", k, self.records.covering(j)) + self.makes_output(k, j)

    def available(self, k: int, i: int) -> LinearExpression:
        """Return whether ``a^i`` is stored just before stage i's turn in phase k (i > 0)."""
        return self.value("activation_stored", k, i) + self.makes_output(k, i - 1)

    def left(self, k: int, i: int) -> LinearExpression:
        """Return whether ``a^i`` is stored when ``B`` of stage k runs (i > 0)."""
        return self.program.abbreviation(
            ("left", k, i),
            lambda: (
                self.available(k, i)
                - self.value("drop_input", k, i)
                - self.value("activation_dropped", k, i)
            ),
        )

    def recorded(self, k: int, records: Iterable[Record]) -> LinearExpression:
        """Return whether one of some records is stored right after its first stage's turn."""
        return sum_of(self._recorded(k, record.key) for record in records)

    def _recorded(self, k: int, key: tuple[int, int]) -> LinearExpression:
        return self.program.abbreviation(
            ("recorded", k, *key),
            lambda: self.value("saved_stored", k, *key) + self.value("keep_all", k, *key),
        )

    def saved_left(self, k: int, records: Iterable[Record]) -> LinearExpression:
        """Return whether one of some records is stored when ``B`` of stage k runs."""
        chosen = tuple(records)
        return self.recorded(k, chosen) - self.total("saved_dropped", k, chosen)

    def is_joined(self, k: int) -> LinearExpression:
        """Return whether no phase k happens: a record of stage k and the next ended it before."""
        return sum_of(self.saved_left(record.last, [record]) for record in self.records.crossing(k))

    def used(self, k: int, records: Iterable[Record]) -> LinearExpression:
        """Return whether ``B`` at the end of phase k uses one of some records."""
        chosen = tuple(records)
        is_certain = chosen == self.records.ending(k) and not self.records.crossing(k)
        return LinearExpression() + 1 if is_certain else self.saved_left(k, chosen)

    def kept_cost(self, k: int, j: int, quantity: Callable[[RunCost], int]) -> LinearExpression:
        """Return a quantity of ``Fa`` of stage j in phase k, 0 if there is none."""
        return sum_of(
            quantity(record.costs.run(first=self._is_first(k)))
            * self.value("keep_all", k, *record.key)
            for record in self.records.starting(j)
        )

    def dropped_cost(self, k: int, j: int, quantity: Callable[[RunCost], int]) -> LinearExpression:
        """Return a quantity of ``Fc`` or ``Fn`` of stage j in phase k, 0 if there is none.

        The first phase runs every stage once, and twice where ``Fa`` comes before.
        """
        stage, made = self.profile.stages[j], self.makes_output(k, j)
        first, again = map(quantity, stage.dropped_runs)
        if not self._is_first(k) or j == k:
            return again * made
        return first * made + (again - first) * (self.runs(k, j) - 1)

    def forward_memory(self, k: int, j: int) -> LinearExpression:
        r"""Return the memory in phase k while stage j runs forward, in units.

        .. math:: turn_j + a^{j+1}\,made + o_f^j\,runs

        With a rerun the overhead is that of the second run only; the first is in
        `recording_memory`.
        """
        overhead = self.dropped_cost(k, j, self._overhead)
        return (
            self._turn_memory(k, j)
            + self._units(self._own_activation_bytes(j + 1)) * self.makes_output(k, j)
            + (overhead if self.reruns else self.kept_cost(k, j, self._overhead) + overhead)
        )

    def recording_memory(self, k: int, j: int) -> LinearExpression:
        r"""Return the memory in phase k while stage j is recorded, in units.

        .. math:: turn_j + o_f^j\,kept
        """
        return self._turn_memory(k, j) + self.kept_cost(k, j, self._overhead)

    def _overhead(self, run: RunCost) -> int:
        return self._units(run.overhead_bytes)

    def stored(self, k: int, j: int) -> StoredExpressions:
        r"""Return what is stored in phase k at stage j's turn, or for j = k + 1 when ``B`` runs.

        .. math:: a^0, \; a^i\,left \;(0<i<j), \; a^j\,available, \; a^i\,stored \;(i>j), \;
                  ā^i\,left \;(i<j-1), \; ā^{j-1}\,recorded, \; ā^j\,recorded, \;
                  ā^i\,stored \;(i>j)

        and everything as it is left when ``B`` runs. Of a record of several stages, the last
        one says whether it is left, and the first one whether it is recorded.
        """
        done = j if j <= k else k + 2
        activations = {0: LinearExpression() + 1}
        for i in range(1, k + 1):
            if i < done:
                activations[i] = self.left(k, i)
            elif i == done:
                activations[i] = self.available(k, i)
            else:
                activations[i] = self.value("activation_stored", k, i)
        saved: dict[Record, LinearExpression] = {}
        for record in (candidate for candidate in self.records.all if candidate.last <= k):
            if record.last < done - 1:
                saved[record] = self.saved_left(k, [record])
            elif record.stage <= done:
                saved[record] = self.recorded(k, [record])
            else:
                saved[record] = self.value("saved_stored", k, *record.key)
        return StoredExpressions(activations, saved)

    def having(self, k: int, j: int, v: int) -> list[LinearExpression]:
        """Return what is in memory at a moment of phase k, or made by stage j, and has skip v."""
        skip = self.profile.skips[v]
        made = [self.makes_output(k, j)] if j + 1 in skip.states else []
        return self.stored(k, j).having(skip) + made

    def stored_skips(self, on: frozenset[Key]) -> Iterator[Key]:
        """Yield the variables ``skip_stored`` that are 1 where these others are."""
        for k, j in self.moments:
            for v in self._skips:
                having = map(self.program.expanded, self.having(k, j, v))
                if any(is_in.at(on) > 0 for is_in in having):
                    yield "skip_stored", k, j, v

    def _turn_memory(self, k: int, j: int) -> LinearExpression:
        r"""Return the memory at stage j's turn without overhead and new ``a^{j+1}``, in units.

        .. math:: δ^{k+1} + \sum stored_j + \sum_v skip_v\,stored
        """
        gradient = self._units(self.profile.gradient_bytes(k + 1)) * (1 - self.is_joined(k))
        return gradient + self._in_use(k, j)

    def backward_memory(self, k: int) -> LinearExpression:
        r"""Return the memory while ``B`` runs that takes the gradient of phase k, in units.

        .. math:: |δ^{k+1} \cup δ^s| + a^0 + \sum_{0<i \le k} a^i\,left
                  + \sum_{i \le k} ā^i\,left + \sum_v skip_v\,stored + o_b

        where s, the first stage of the record, is k in most cases.
        """
        needs = {record: self._backward_bytes(record) for record in self.records.ending(k)}
        least = min(needs.values())
        more = sum_of(
            self._units(need - least) * self.saved_left(k, [record])
            for record, need in needs.items()
        )
        return self._units(least) * (1 - self.is_joined(k)) + more + self._in_use(k, k + 1)

    def _backward_bytes(self, record: Record) -> int:
        """Return the bytes of gradients and overhead while ``B`` of a record runs."""
        s, t = record.stage, record.last + 1
        passed_on = (
            skip.gradient_bytes for skip in self.profile.skips if skip.first <= s and t <= skip.last
        )
        gradients = self.profile.gradient_bytes(s) + self.profile.gradient_bytes(t)
        return gradients - sum(passed_on) + record.costs.backward_overhead_bytes

    def runs_again(self, on: frozenset[Key]) -> Iterator[Key]:
        """Yield the variables ``runs_again`` that are 1 where these others are."""
        for i in self.with_environment:
            runs = [self.program.expanded(self.runs(k, i)) for k in range(i, len(self.profile))]
            before = 0
            for k, run in enumerate(runs, start=i):
                before += run.at(on) - self._is_first(k)
                if before > 0:
                    yield "runs_again", k, i

    @property
    def with_environment(self) -> list[int]:
        """The stages that have an environment."""
        stages = self.profile.stages
        return [i for i, stage in enumerate(stages) if stage.environment_bytes]

    def _environments(self, k: int, j: int) -> LinearExpression:
        r"""Return the environments that are in memory at a moment, in units.

        .. math:: \sum_i (e_i - r_i) \, again_{n-1, i} + r_i \, again_{l, i}

        over the stages i that have begun, where l is k up to stage i's turn, and then k - 1.
        """
        total = LinearExpression()
        for i in (i for i in self.with_environment if i <= k):
            if self._is_first(k) and i > j:
                continue
            stage, later = self.profile.stages[i], k if i >= j else k - 1
            buffers = self._units(stage.environment_bytes - stage.random_bytes)
            total += buffers * self.value("runs_again", len(self.profile) - 1, i)
            total += self._units(stage.random_bytes) * self.value("runs_again", later, i)
        return total

    def _in_use(self, k: int, j: int) -> LinearExpression:
        """Return all that is stored at a moment, skips and environments included, in units."""
        stored = self.stored(k, j)
        activations = (
            self._units(self._own_activation_bytes(i)) * is_in
            for i, is_in in stored.activations.items()
        )
        saved = (
            self._units(self._own_saved_bytes(record)) * is_in
            for record, is_in in stored.saved.items()
        )
        skips = (
            self._units(self.profile.skips[v].bytes) * self.value("skip_stored", k, j, v)
            for v in self._skips
        )
        return sum_of([*activations, *saved, *skips]) + self._environments(k, j)

    @property
    def _skips(self) -> range:
        return range(len(self.profile.skips))

    def _own_activation_bytes(self, i: int) -> int:
        skips = (skip.bytes for skip in self.profile.skips if i in skip.states)
        return self.profile.activation_bytes(i) - sum(skips)

    def _own_saved_bytes(self, record: Record) -> int:
        end = record.last + 1
        skips = (
            skip.bytes
            for skip in self.profile.skips
            if record.stage < skip.first <= end <= skip.last
        )
        return record.costs.saved_bytes - sum(skips)

    def _units(self, size: int) -> int:
        return min(size // self.unit, self.ceiling)

    def _is_first(self, k: int) -> bool:
        """Return whether k is the first phase, in which every stage has its first run."""
        return k == len(self.profile) - 1

    def _indices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and index of every variable."""
        turns = self.turns
        starts = [(k, i) for k, i in turns if not self._is_first(k)]
        for k, record in self._fitting(turns):
            if record.is_made(first=self._is_first(k)):
                yield "keep_all", (k, *record.key)
        yield from (("keep_input", (k, j)) for k, j in turns if j < k)
        yield from (("drop_input", (k, j)) for k, j in turns if 0 < j < k)
        yield from (("activation_stored", (k, i)) for k, i in starts if i > 0)
        yield from (("saved_stored", (k, *record.key)) for k, record in self._fitting(starts))
        if self.drops:
            yield from (("activation_dropped", (k, i)) for k, i in turns if i > 0)
            for k, record in self._fitting(turns):
                if record.last < k:
                    yield "saved_dropped", (k, *record.key)
        yield from (("skip_stored", (k, j, v)) for k, j in self.moments for v in self._skips)
        for i in self.with_environment:
            yield from (("runs_again", (k, i)) for k in range(i, len(self.profile)))

    def _fitting(self, turns: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Record]]:
        """Yield the records that start at each turn and end within its phase."""
        for k, j in turns:
            yield from ((k, record) for record in self.records.starting(j) if record.last <= k)
