"""How `chainstay.fit` is to offload."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.profiles import Link
from chainstay.runtime.device_memory import plain_bytes

__all__ = ["OffloadSettings"]


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """Arguments of `chainstay.fit` for offloading.

    Attributes:
        link: To the host; ``None`` to have it measured.
        host_budget: Bytes for what is away at a time; ``None`` for no limit.
    """

    link: Link | None
    host_budget: int | None

    @classmethod
    def of(
        cls, *, offload: bool, recompute: bool, link: object, host_budget: int | str | None
    ) -> OffloadSettings | None:
        """The settings, if anything is to be offloaded.

        Raises:
            ValueError: They do not go together.
            InvalidBudgetError: `host_budget` is no number of bytes.
        """
        if not offload:
            if not recompute:
                raise ValueError(
                    "recompute is False and offload is False, so that nothing can save memory; "
                    "set one of them"
                )
            if link is not None or host_budget is not None:
                raise ValueError("link and host_budget are for offload=True; leave them out")
            return None
        if recompute:
            raise ValueError(
                "offload is True and recompute is True, which are not joined yet; set "
                "recompute=False"
            )
        if link is not None and not isinstance(link, Link):
            raise ValueError(f"link is {link!r}, must be a Link, or None to have it measured")
        limit = None if host_budget is None else plain_bytes("host_budget", host_budget)
        return cls(link, limit)
