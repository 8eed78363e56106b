"""The techniques by which `chainstay.fit` may save memory: recomputing, transfers, or both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

import torch

from chainstay.problems.arguments import whole_bytes
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.transfer import Engine, engine_for, measure_link
from chainstay.solution import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The arguments of `chainstay.fit` that say how memory may be saved, checked.

    Attributes:
        recompute: Whether stages may run again.
        offload: Whether activations may go to the host.
        is_offload_asked: Whether the user asked for it, so that it is not left out silently.
        link: The link to the host; ``None`` to have it measured.
        host_budget: Bytes for what is away at a time; ``None`` for no limit.
        obstacle: Why nothing may go to the host, for people.
        engines: Those of the model's plans, which share their host memory.
    """

    recompute: bool
    offload: bool
    is_offload_asked: bool = False
    link: Link | None = None
    host_budget: int | None = None
    obstacle: str = ""
    engines: WeakSet[Engine] = field(default_factory=WeakSet, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        *,
        recompute: bool,
        offload: bool | None,
        link: object,
        host_budget: int | str | None,
        device: torch.device,
    ) -> MemoryOptions:
        """Return the options that these arguments mean; `device` is the model's.

        Raises:
            ValueError: They do not go together.
            InvalidBudgetError: `host_budget` is no number of bytes.
        """
        if link is not None and not isinstance(link, Link):
            raise ValueError(f"link is {link!r}, must be a Link, or None to have it measured")
        limit = None if host_budget is None else whole_bytes("host_budget", host_budget)
        has_link = link is not None or accelerator_at(device) is not None
        is_here = bool(offload) or (offload is None and has_link)
        obstacle = ""
        if not is_here:
            no_link = f"a {device.type} model has no link to the host but one passed as link="
            obstacle = "offload is False" if offload is False else no_link
        if obstacle and (link is not None or limit is not None):
            raise ValueError(
                f"link and host_budget are for offloading, and {obstacle}; leave them out, or set "
                "offload=True"
            )
        if obstacle and not recompute:
            raise ValueError(
                f"recompute is False and {obstacle}, so that nothing can save memory; set one of "
                "them"
            )
        return cls(
            recompute=recompute,
            offload=is_here,
            is_offload_asked=is_here and (offload is not None or not recompute),
            link=link,
            host_budget=limit,
            obstacle=obstacle,
        )

    def link_on(self, device: torch.device) -> Link:
        """Return the link, its memory held to the host's budget."""
        limit = self.host_budget
        if limit is not None and accelerator_at(device) is not None:
            limit -= limit // 8  # pinned memory is rounded up; see `pinned_pieces`
        return (self.link or measure_link(device)).within(limit)

    def engine_for(self, solution: Solution, device: torch.device) -> Engine | None:
        """Return the engine for the transfers of `solution`; ``None`` if it has none."""
        if not isinstance(solution, OffloadSolution):
            return None
        beside = next((other for other in self.engines if other.device.type == device.type), None)
        engine = engine_for(device, link=solution.link, host_budget=self.host_budget, beside=beside)
        self.engines.add(engine)
        return engine


RECOMPUTING: Final = MemoryOptions(recompute=True, offload=False)
"""Nothing goes to the host."""
