"""Models that run by a plan: what each tells. Each kind has its class beside its executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.stage.chain import Chain
from chainstay.solution import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(ABC):
    """A model's forward by a plan.

    Attributes:
        solution: The plan, and how good it is.
        profile: The costs of the stages.
        origin: A word to people on where the stages come from, if that needs saying.
        overheads: The bytes of each operation besides what is stored, where that was measured.
        plain_time: Time of plain training in ns; where there is none, that of `profile` comes
            close: there, stages that the plan runs again take longer.
        plain_peak: Peak of plain training in bytes, where that was measured.
        alternatives: The alternatives of the plan, itself included; empty where there was no
            choice.
    """

    solution: Solution
    profile: ChainProfile | JoinProfile
    origin: str = ""
    overheads: tuple[int, ...] | None = None
    plain_time: int | None = None
    plain_peak: int | None = None
    alternatives: tuple[Alternative, ...] = ()

    @property
    @abstractmethod
    def chain(self) -> Chain:
        """The stages that the schedule speaks about, with the options that it uses."""

    @property
    def slowdown(self) -> float:
        """A step takes so much longer than one of plain training, as a share of that."""
        least = self.plain_time or self.profile.least_time
        return float(self.solution.makespan) / least - 1 if least else 0.0

    def close(self) -> None:  # noqa: B027  # few hold anything
        """Let go of what the plan holds besides the model; it is not called again."""
