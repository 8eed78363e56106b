"""Results of an estimate: a profile, and where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.cuts.stage_table import as_text, stage_table
from chainstay.runtime.estimate.devices import DeviceModel
from chainstay.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A model's costs on a device that need not be there.

    Attributes:
        model: Name of the model's class.
        device: Whose times these are.
        profile: Costs of the stages, the loss last, and of their options; for
            `chainstay.solve_chain`.
        movable_profile: The same for `chainstay.solve_hybrid`, with options that keep one stage:
            overheads include what several states share, which stays on the device.
        parameters: Numbers in the model's parameters, each counted once.
        parameter_bytes: Their size; no part of the profile.
        trained_bytes: Size of those that require a gradient: so large are their gradients.
    """

    model: str
    device: DeviceModel
    profile: ChainProfile
    movable_profile: ChainProfile
    parameters: int
    parameter_bytes: int
    trained_bytes: int

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        columns = ("forward", "backward", "passes on", "saves", "forward +", "backward +")
        rows = (
            (
                stage.name,
                format_time(stage.forward_time),
                format_time(stage.backward_time),
                format_bytes(stage.output_bytes),
                format_bytes(stage.saved_bytes),
                format_bytes(stage.forward_overhead_bytes),
                format_bytes(stage.backward_overhead_bytes),
            )
            for stage in self.profile.stages
        )
        title = (
            f"{self.model} on {self.device.name}: {self.parameters:,} parameters of "
            f"{format_bytes(self.parameter_bytes)}, {len(self.profile)} stages, a step of plain "
            f"training in {format_time(self.profile.plain_time)}"
        )
        return stage_table(title, columns, rows)

    def __str__(self) -> str:
        return as_text(self.table())
