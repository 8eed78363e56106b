"""Stages that a plan keeps in part: the options that it uses, what they save and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.schedule import OpKind, Schedule
from chainstay.units import format_bytes

_MOST_LINES: Final = 8
_MOST_NAMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInPart:
    """A stage, or several that are kept by one record, of which a plan drops a part.

    Attributes:
        stage: Number of the first stage, from 0; in a join, of its branch or of the tail.
        stages: Number of stages that are kept together.
        name: Name of the first stage.
        option: Number of the option, as the schedule says it: 1 in ``Fa3.1``.
        dropped: The option's name, which says what its backward makes again: ``"drops gelu"``.
        less_bytes: Bytes that are saved less than if these stages were kept whole.
        extra_time: Time in ns that the step takes longer for it.
        branch: Its branch in a join; ``None`` for a stage of the tail, or of a chain.
    """

    stage: int
    stages: int
    name: str
    option: int
    dropped: str
    less_bytes: int
    extra_time: int
    branch: int | None = None


def kept_in_part(profile: object, schedule: Schedule) -> tuple[KeptInPart, ...]:
    """Return what `schedule` keeps in part, by rising stage, branches before the tail.

    Stages that are kept as one at no cost in time are kept whole.
    """
    chains: dict[int | None, ChainProfile] = {}
    if isinstance(profile, JoinProfile):
        chains = {**dict(enumerate(profile.branches)), None: profile.closing}
    elif isinstance(profile, ChainProfile):
        chains = {None: profile}
    option: dict[tuple[int | None, int], int] = {}
    for op in schedule:
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            option[op.branch, op.stage] = op.option  # of several records the backward has the last
    parts = (
        _part(chain, branch, stage, option[branch, stage])
        for branch, chain in chains.items()
        for stage in range(len(chain))
        if option.get((branch, stage))
    )
    return tuple(part for part in parts if part.extra_time)


def _part(chain: ChainProfile, branch: int | None, first: int, number: int) -> KeptInPart:
    option = chain.stages[first].all_options[number]
    whole = [stage.all_options[0] for stage in chain.stages[first : first + option.stages]]
    whole_time = sum(full.first.total_time for full in whole)
    return KeptInPart(
        stage=first,
        stages=option.stages,
        name=chain.stages[first].name,
        option=number,
        dropped=option.name,
        less_bytes=sum(full.saved_bytes for full in whole) - option.saved_bytes,
        extra_time=option.first.total_time - whole_time,
        branch=branch,
    )


def part_text(part: KeptInPart, most_names: int | None = None) -> str:
    """Return what is dropped, and of how many stages, for people; some of the names, if many."""
    dropped = part.dropped or f"option {part.option}"
    names = dropped.split(", ")
    if most_names is not None and len(names) > most_names:
        dropped = f"{', '.join(names[:most_names])} and {len(names) - most_names} more"
    return f"{dropped} (of {part.stages} stages as one)" if part.stages > 1 else dropped


def table_of_parts(parts: Sequence[KeptInPart], stages: int, plain_time: int) -> str:
    """Return one line that counts stages, and one for each kind of part, the largest first.

    Example:
        >>> part = KeptInPart(stage=1, stages=1, name="h.0", option=1, dropped="drops gelu",
        ...                   less_bytes=3 * 2**20, extra_time=2000)
        >>> print(table_of_parts([part] * 12, 27, 1_000_000))
        keeps in part: 12 of 27 stages
           12x  drops gelu  -3.00 MiB each  +0.2 % each
    """
    if not parts:
        return ""
    totals: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for part in parts:
        cells = (
            part_text(part, _MOST_NAMES),
            _signed(-part.less_bytes),
            _share(part.extra_time, plain_time),
        )
        counts[cells] += 1
        totals[cells] += part.less_bytes
    kinds = [kind for kind, _ in totals.most_common(_MOST_LINES)]
    rows = [
        (f"{counts[kind]}x", kind[0], *(f"{cell} each" for cell in kind[1:]))
        if counts[kind] > 1
        else ("1x", *kind)
        for kind in kinds
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"keeps in part: {sum(part.stages for part in parts)} of {stages} stages",
        *(
            f"   {count:>{widths[0]}}  {text:<{widths[1]}}  {less:<{widths[2]}}  {more}"
            for count, text, less, more in rows
        ),
    ]
    if len(counts) > len(kinds):
        lines.append(f"   ... and {len(counts) - len(kinds)} more")
    return "\n".join(lines)


def _signed(size: int) -> str:
    return f"{'-' if size <= 0 else '+'}{format_bytes(abs(size))}"


def _share(time: int, plain_time: int) -> str:
    return f"{100 * time / plain_time if plain_time else 0.0:+.1f} %"
