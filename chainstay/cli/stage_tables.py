"""Tables of stages for the terminal, none wider than 80 columns."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from chainstay.cli.terminal import new_table, printable, short_bytes
from chainstay.profiles import AnyProfile, ChainProfile, JoinProfile, OffloadProfile
from chainstay.units import format_time

__all__ = ["stage_tables"]


def stage_tables(profile: AnyProfile) -> list[Table]:
    """Return tables of the costs of every stage; of a join, one a branch and the tail's."""
    if isinstance(profile, ChainProfile):
        return [_chain_table(profile)]
    if isinstance(profile, JoinProfile):
        titled = [(f"branch {j}", branch) for j, branch in enumerate(profile.branches)]
        titled += [("tail", profile.tail)] if profile.tail else []
        return [_chain_table(chain, title) for title, chain in titled]
    if isinstance(profile, OffloadProfile):
        return [_offload_table(profile)]
    table = new_table()
    for heading in ("branch", "steps", "forward", "backward"):
        table.add_column(heading, justify="right")
    for j, length in enumerate(profile.lengths):
        times = (profile.forward_time, profile.backward_time)
        table.add_row(str(j), str(length), *map(format_time, times))
    return [table]


def _chain_table(profile: ChainProfile, title: str = "") -> Table:
    table = new_table(title)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("stage", overflow="fold", ratio=1)
    for heading in ("forward", "backward", "passes on", "saves", "needs more"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(profile.stages):
        table.add_row(
            str(index),
            Text(printable(stage.name)),
            format_time(stage.forward_time),
            format_time(stage.backward_time),
            short_bytes(stage.output_bytes),
            short_bytes(stage.saved_bytes),
            short_bytes(max(stage.forward_overhead_bytes, stage.backward_overhead_bytes)),
        )
    return table


def _offload_table(profile: OffloadProfile) -> Table:
    table = new_table()
    for heading in ("", "forward", "backward", "keeps", "gradient", "needs more"):
        table.add_column(heading, justify="right", no_wrap=True)
    for i in range(len(profile)):
        table.add_row(
            str(i),
            format_time(profile.forward_times[i]),
            format_time(profile.backward_times[i]),
            short_bytes(profile.activations[i + 1]),
            short_bytes(profile.gradients[i + 1]),
            short_bytes(max(profile.forward_overheads[i], profile.backward_overheads[i])),
        )
    return table
