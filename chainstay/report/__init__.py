"""What people see: tables, pictures, pages and traces of profiles, plans and measurements.

Public names are loaded on first use, since pictures need matplotlib and trade-offs solvers.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chainstay.report.frontier import Frontier, FrontierPoint, frontier_of
    from chainstay.report.pages import page
    from chainstay.report.pictures import picture
    from chainstay.report.tracing import trace

_HOME: Final = MappingProxyType(
    {
        "Frontier": "chainstay.report.frontier",
        "FrontierPoint": "chainstay.report.frontier",
        "frontier_of": "chainstay.report.frontier",
        "page": "chainstay.report.pages",
        "picture": "chainstay.report.pictures",
        "trace": "chainstay.report.tracing",
    }
)

__all__ = ["Frontier", "FrontierPoint", "frontier_of", "page", "picture", "trace"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
