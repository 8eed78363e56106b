"""The table of stages: the costs of each, and its runs and transfers in the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from chainstay.plans.kept_in_part import KeptInPart, kept_in_part, part_text
from chainstay.problems import AnyProblem
from chainstay.profiles import ChainProfile, HomogeneousJoin, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.units import format_bytes, format_time


class TableCell(NamedTuple):
    """One entry: its text, and the key that it is sorted by."""

    text: str
    key: float | str

    @property
    def is_number(self) -> bool:
        """True if it sorts as a number."""
        return not isinstance(self.key, str)


class StageTable(NamedTuple):
    """Columns with their meanings, and a row for each stage."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[TableCell, ...], ...]


_StageKey: TypeAlias = tuple[int | None, int]

_STAGE: Final = ("Stage", "numbered from 0")
_NAME: Final = ("Name", "of the stage")
_FORWARD: Final = ("Forward", "time of one forward")
_BACKWARD: Final = ("Backward", "time of its backward")
_RUNS: Final = ("Runs", "how often its forward runs in this plan")
_KEPT: Final = (
    ("Kept", "whole, or what of it is dropped and made again in its backward"),
    ("Saves", "bytes that are saved less for that"),
    ("Costs", "time that a step takes longer for that, in percent of plain training"),
)
_MOVES: Final = ("Moves", "what of it leaves the device and comes back")
_SIZES: Final = (
    ("Output", "bytes of its output activation"),
    ("Saved", "bytes of all that its backward needs, its output included"),
    ("Gradient", "bytes of the gradient of its output"),
    ("Temp. fwd", "bytes needed during its forward only"),
    ("Temp. bwd", "bytes needed during its backward only"),
)
_OFFLOADED_SIZES: Final = (
    ("Input", "bytes of its input, which can move"),
    ("Gradient", "bytes of the gradient of its output"),
    *_SIZES[3:],
)


def stage_table(problem: AnyProblem, schedule: Schedule) -> StageTable:
    """Return the table of all stages of a network, branches before the tail."""
    columns: tuple[tuple[str, str], ...]
    moved = _moved(schedule)
    match problem.profile:
        case OffloadProfile() as profile:
            columns = (_STAGE, _FORWARD, _BACKWARD, *_OFFLOADED_SIZES, _MOVES)
            return StageTable(columns, tuple(_offload_rows(profile, moved)))
        case HomogeneousJoin() as join:
            columns = (_STAGE, _FORWARD, _BACKWARD, _RUNS)
            runs = Counter((op.branch, op.stage) for op in schedule if op.kind.is_forward)
            return StageTable(columns, tuple(_slot_rows(join, runs)))
    chains = problem.chains
    runs = _runs(dict(chains), schedule)
    columns = (_STAGE, _NAME, _FORWARD, _BACKWARD, *_SIZES, _RUNS)
    rows: list[tuple[TableCell, ...]] = []
    parts = kept_in_part(problem.profile, schedule)
    plain_time = sum(chain.plain_time for _, chain in chains)
    for branch, chain in chains:
        own_parts = [part for part in parts if part.branch == branch]
        cells = _kept_cells(chain, own_parts, plain_time)
        for i, row in enumerate(_chain_rows(chain, branch, runs, is_join=len(chains) > 1)):
            moves = (_text(moved.get((branch, i), "")),) if moved else ()
            rows.append((*row, *(cells[i] if parts else ()), *moves))
    more = (*(_KEPT if parts else ()), *((_MOVES,) if moved else ()))
    return StageTable((*columns, *more), tuple(rows))


def _runs(chains: Mapping[int | None, ChainProfile], schedule: Schedule) -> Counter[_StageKey]:
    """Count the forwards of each stage, one that is kept together with others included."""
    runs = Counter[_StageKey]()
    for op in schedule:
        if op.kind.is_forward:
            option = chains[op.branch].stages[op.stage].all_options[op.option]
            runs.update((op.branch, op.stage + inner) for inner in range(option.stages))
    return runs


def _moved(schedule: Schedule) -> dict[_StageKey, str]:
    moved: dict[_StageKey, set[str]] = {}
    for op in schedule:
        if op.kind.is_transfer:
            data = "input" if op.item.kind == "a" else "saved"
            moved.setdefault((op.branch, op.stage), set()).add(data)
    return {stage: ", ".join(sorted(data)) for stage, data in moved.items()}


def _kept_cells(
    chain: ChainProfile, parts: Sequence[KeptInPart], plain_time: int
) -> list[tuple[TableCell, TableCell, TableCell]]:
    nothing = TableCell("–", 0)
    cells = [(_text("whole"), nothing, nothing)] * len(chain)
    for part in parts:
        for inner in range(part.stage + 1, part.stage + part.stages):
            cells[inner] = (_text(f"with stage {part.stage}"), nothing, nothing)
        share = 100 * part.extra_time / plain_time if plain_time else 0.0
        cells[part.stage] = (
            _text(part_text(part)),
            TableCell(format_bytes(part.less_bytes), part.less_bytes),
            TableCell(f"{share:.2f} %", share),
        )
    return cells


def _chain_rows(
    chain: ChainProfile, branch: int | None, runs: Counter[_StageKey], *, is_join: bool
) -> Iterator[tuple[TableCell, ...]]:
    for i, stage in enumerate(chain.stages):
        sizes = (
            stage.output_bytes,
            stage.saved_bytes,
            stage.gradient_bytes,
            stage.forward_overhead_bytes,
            stage.backward_overhead_bytes,
        )
        yield (
            _stage_cell(branch, i, is_join=is_join),
            _text(stage.name),
            *_times(stage.forward_time, stage.backward_time),
            *map(_size, sizes),
            TableCell(str(runs[branch, i]), runs[branch, i]),
        )


def _offload_rows(
    profile: OffloadProfile, moved: dict[_StageKey, str]
) -> Iterator[tuple[TableCell, ...]]:
    for i in range(len(profile)):
        sizes = (
            profile.activations[i],
            profile.gradients[i + 1],
            profile.forward_overheads[i],
            profile.backward_overheads[i],
        )
        yield (
            _stage_cell(None, i, is_join=False),
            *_times(profile.forward_times[i], profile.backward_times[i]),
            *map(_size, sizes),
            _text(moved.get((None, i), "")),
        )


def _slot_rows(
    profile: HomogeneousJoin, runs: Counter[_StageKey]
) -> Iterator[tuple[TableCell, ...]]:
    keys: Iterable[_StageKey] = [
        *((j, i) for j, length in enumerate(profile.lengths) for i in range(length)),
        *((None, i) for i in range(profile.tail_length)),
    ]
    for branch, i in keys:
        yield (
            _stage_cell(branch, i, is_join=True),
            *_times(profile.forward_time, profile.backward_time),
            TableCell(str(runs[branch, i]), runs[branch, i]),
        )


def _stage_cell(branch: int | None, stage: int, *, is_join: bool) -> TableCell:
    rank = 10**9 if branch is None and is_join else branch or 0
    text = str(stage) if branch is None else f"{branch}:{stage}"
    return TableCell(f"tail {text}" if is_join and branch is None else text, rank * 1e9 + stage)


def _text(text: str) -> TableCell:
    return TableCell(text, text)


def _size(size: int) -> TableCell:
    return TableCell(format_bytes(size) if size else "–", size)


def _times(*times: int) -> tuple[TableCell, ...]:
    return tuple(TableCell(format_time(time) if time else "–", time) for time in times)
