"""Colours of reports, told apart by most people and on light and dark ground."""

from __future__ import annotations

from typing import Final

CATEGORY_COLOURS: Final = {
    "activation": "#4477aa",
    "saved": "#66ccee",
    "gradient": "#ccbb44",
    "temporary": "#aaaaaa",
}
STYLE_COLOURS: Final = {
    "forward": "#4477aa",
    "again": "#ee7733",
    "backward": "#228833",
    "turn": "#888888",
    "out": "#aa3377",
    "back": "#cc88bb",
}
BUDGET_COLOUR: Final = "#dd3322"
