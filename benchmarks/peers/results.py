"""What the comparison with peers finds: who took part, and how each fared. Also as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Contestant", "Duel", "Forward", "Outcome", "Refusal", "Run"]

LEAST_MARGIN, LARGEST_MARGIN = 1.02, 1.05
"""Ratios of times up to this count as equally fast, on a quiet machine and on any."""

Forward = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to run the forward.

    Attributes:
        peer: Whose.
        setting: Of the peer.
        forward: Called like the model.
        share: Of what the default saves for the backward, that the peer may save; 0 if it has
            no such budget.
        budget: In bytes, likewise; chainstay's is for the peak.
    """

    peer: str
    setting: str
    forward: Forward
    share: float = 0.0
    budget: int = 0


@dataclass(frozen=True)
class Refusal:
    """A peer that does not run with this model, machine or setting."""

    peer: str
    setting: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a way fared.

    Attributes:
        peer: Whose.
        setting: Of the peer.
        peak_bytes: Measured, the sample included.
        saved_bytes: Held between forward and backward, the output apart.
        least_time: Of a step, in ns of the thread's own time.
        median_time: Likewise.
        is_equal: Whether loss, gradients, buffers and random state are those of plain training.
        is_loss_equal: Whether the loss is, but for rounding.
        difference: The largest in the loss, all gradients or all buffers, as a share of the largest
            number there.
        budget: In bytes, for what is saved; chainstay's is for the peak; 0 for none.
    """

    peer: str
    setting: str
    peak_bytes: int
    saved_bytes: int
    least_time: int
    median_time: float
    is_equal: bool
    is_loss_equal: bool
    difference: float
    budget: int = 0


@dataclass(frozen=True, kw_only=True)
class Duel:
    """A peer's way against the plan of no larger measured peak.

    Attributes:
        peer: The peer's.
        plan: chainstay's; ``None`` where none is known to need so little.
        ratio: Of its time to the peer's, least to least of steps run in turns by these two.
        median_ratio: Likewise, of medians.
        least_budget: In bytes, that chainstay says it needs; 0 if there is a plan.
    """

    peer: Run
    plan: Run | None
    ratio: float = 0.0
    median_ratio: float = 0.0
    least_budget: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything about one network.

    Attributes:
        name: The network's.
        samples: In a step.
        stages: Into which chainstay cuts it.
        plain: Plain training.
        noise: Of plain training, timed as if it were three ways: ratio of the largest least time
            to the smallest.
        duels: One for each way of a peer.
        plans: chainstay's.
        refusals: Peers that did not take part.
        seconds: For all this, of processor time.
    """

    name: str
    samples: int
    stages: int
    plain: Run
    noise: float
    duels: tuple[Duel, ...]
    plans: tuple[Run, ...]
    refusals: tuple[Refusal, ...]
    seconds: float

    @property
    def margin(self) -> float:
        """Largest ratio of times that counts as equally fast."""
        return min(max(LEAST_MARGIN, self.noise), LARGEST_MARGIN)

    def is_won(self, duel: Duel) -> bool:
        """Whether chainstay is at least as fast as the peer with no more memory."""
        return duel.plan is not None and duel.ratio <= self.margin

    def store(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """What `store` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["plain"] = Run(**fields["plain"])
        fields["plans"] = tuple(Run(**plan) for plan in fields["plans"])
        fields["refusals"] = tuple(Refusal(**refusal) for refusal in fields["refusals"])
        fields["duels"] = tuple(
            Duel(
                **{
                    **duel,
                    "peer": Run(**duel["peer"]),
                    "plan": Run(**duel["plan"]) if duel["plan"] else None,
                }
            )
            for duel in fields["duels"]
        )
        return cls(**fields)
