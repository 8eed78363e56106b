"""Tables, images, pages and traces of profiles, plans and measurements.

Read `timeline` (a plan in time) and `memory_profile` (memory over time), which all drawings use;
`html/` makes pages. Public names are loaded on first use: images need matplotlib, pages Bokeh.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chainstay.report.chrome_trace import trace
    from chainstay.report.frontier import Frontier, FrontierPoint, frontier_of
    from chainstay.report.html.page import page
    from chainstay.report.plan_image import picture

_HOME: Final = MappingProxyType(
    {
        "Frontier": "chainstay.report.frontier",
        "FrontierPoint": "chainstay.report.frontier",
        "frontier_of": "chainstay.report.frontier",
        "page": "chainstay.report.html.page",
        "picture": "chainstay.report.plan_image",
        "trace": "chainstay.report.chrome_trace",
    }
)

__all__ = ["Frontier", "FrontierPoint", "frontier_of", "page", "picture", "trace"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
