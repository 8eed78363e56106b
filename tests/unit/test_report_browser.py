"""Report pages in headless Chromium: they open in silence, draw, follow the mouse, load nothing.

`make test` installs Chromium where it can; without it, these tests skip.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from chainstay.profiles import ChainProfile
from chainstay.report import Frontier, page
from chainstay.report.timeline import Timeline, build_timeline
from chainstay.solve import solve_chain
from chainstay.units import format_bytes
from report_plans import a_chain, plan

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.long  # a browser is another process

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_NO_FRONTIER = Frontier(points=(), method="none")
_FRAME = """name => {
  const view = [...Bokeh.index].find(view => view.model.name === name);
  const place = view.el.getBoundingClientRect(), frame = view.frame.bbox;
  const range = view.model.x_range, rows = view.model.y_range;
  return {left: place.left + frame.left, top: place.top + frame.top, width: frame.width,
          height: frame.height, end: range.end, high: rows.end};
}"""
_INK = """name => {
  const view = [...Bokeh.index].find(view => view.model.name === name);
  const canvas = view.canvas_view.primary.canvas;
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
}"""


@dataclass
class Opened:
    """A page in a tab, and what came of it besides."""

    tab: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def point(self, chart: str, x: float, y: float = 0.5) -> None:
        """Move the mouse to shares of a chart's frame, from its left and from its bottom."""
        frame = self.tab.evaluate(_FRAME, chart)
        left = frame["left"] + x * frame["width"]
        self.tab.mouse.move(left, frame["top"] + (1 - y) * frame["height"])

    def text(self, selector: str) -> str:
        """What an element says."""
        found: str = self.tab.inner_text(selector)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("Chromium is not installed: make chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    tabs: list[Any] = []

    def opened(text: str, **settings: object) -> Opened:
        file = tmp_path / f"page{len(tabs)}.html"
        file.write_text(text, encoding="utf-8")
        tab = browser.new_page(viewport={"width": 1280, "height": 1400}, **settings)
        tabs.append(tab)
        found = Opened(tab)
        tab.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: found.said.append(f"error: {error}"))
        tab.on("request", lambda request: found.asked.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")
        assert found.asked == [file.as_uri()]
        assert not [said for said in found.said if not said.startswith(("info:", "log:"))]
        return found

    yield opened
    for tab in tabs:
        tab.close()


def _timeline(kind: str) -> Timeline:
    timeline = build_timeline(plan(kind).solution, plan(kind).profile)
    assert timeline is not None
    return timeline


@pytest.mark.parametrize("kind", ["chain", "join", "offload integral", "hybrid integral"])
def test_opens_draws_and_follows_the_mouse(kind: str, open_page: Callable[..., Opened]) -> None:
    solution, profile, timeline = plan(kind).solution, plan(kind).profile, _timeline(kind)
    opened = open_page(page(solution, profile, title=kind))
    for chart in ("memory", "schedule", "frontier"):
        assert opened.tab.evaluate(_INK, chart) > 20
    computed = [a for a in timeline.activities if not timeline.lanes[a.lane].is_link]
    for activity in (computed[0], computed[len(computed) // 2], computed[-1]):
        middle = float(activity.start + activity.end) / 2
        opened.point("memory", middle / float(timeline.makespan))
        assert opened.text("#op-label") == str(activity.op)
        assert f"of stage {activity.op.stage}" in opened.text("#op-description")
        total = next(
            one.total
            for one, other in zip(timeline.levels, timeline.levels[1:], strict=False)
            if one.time <= middle < other.time
        )
        assert f"{format_bytes(int(total))} in use at" in opened.text("#op-memory")
    for lane in [lane for lane, known in enumerate(timeline.lanes) if known.is_link]:
        moves = [a for a in timeline.activities if a.lane == lane]
        low = (len(timeline.lanes) - 1 - lane) * (0.25 + 0.16) + 0.16 / 2
        height = opened.tab.evaluate(_FRAME, "schedule")["high"]
        middle = float(moves[-1].start + moves[-1].end) / 2 / float(timeline.makespan)
        opened.point("schedule", middle, (low + 0.125) / height)
        assert opened.text("#op-label") == str(moves[-1].op)
    assert not [said for said in opened.said if not said.startswith(("info:", "log:"))]
    assert len(opened.asked) == 1


def test_arrow_keys_go_from_operation_to_operation(open_page: Callable[..., Opened]) -> None:
    timeline = _timeline("chain")
    opened = open_page(page(plan("chain").solution, plan("chain").profile, frontier=_NO_FRONTIER))
    for activity in timeline.activities[:3]:
        opened.tab.keyboard.press("ArrowRight")
        assert opened.text("#op-label") == str(activity.op)
    opened.tab.keyboard.press("ArrowLeft")
    assert opened.text("#op-label") == str(timeline.activities[1].op)


def test_a_heading_sorts_the_stages(open_page: Callable[..., Opened]) -> None:
    profile = plan("chain").profile
    assert isinstance(profile, ChainProfile)
    opened = open_page(page(plan("chain").solution, profile, frontier=_NO_FRONTIER))
    sizes = [stage.saved_bytes for stage in profile.stages]
    cells = (
        "[...document.querySelectorAll('table.stages tbody tr')].map(r => +r.cells[5].dataset.key)"
    )
    assert opened.tab.evaluate(cells) == sizes
    for expected in (sorted(sizes), sorted(sizes, reverse=True)):
        opened.tab.click("table.stages th >> text=Saved")
        assert opened.tab.evaluate(cells) == expected


def test_names_cannot_run(open_page: Callable[..., Opened]) -> None:
    chain = a_chain(2)
    name = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    stages = (replace(chain.stages[0], name=name), chain.stages[1])
    profile = replace(chain, stages=stages)
    solution = solve_chain(profile, "100%", method="dp")
    opened = open_page(page(solution, profile, title=name))
    opened.tab.keyboard.press("ArrowRight")
    assert name in opened.text("#op-description")
    assert opened.text("h1") == name
    assert opened.tab.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, open_page: Callable[..., Opened]) -> None:
    text = page(plan("chain").solution, plan("chain").profile, frontier=_NO_FRONTIER)
    opened = open_page(text, color_scheme=scheme)
    paper = opened.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    axis = "Bokeh.documents[0].get_model_by_name('memory').below[0].major_label_text_color"
    brightness = [sum(int(n) for n in paper[4:-1].split(",")) / 3]
    brightness.append(sum(bytes.fromhex(opened.tab.evaluate(axis)[1:])) / 3)
    assert (brightness[0] > 128, brightness[1] > 128) == (scheme == "light", scheme == "dark")


def test_narrow_screens_need_no_scrolling_sideways(open_page: Callable[..., Opened]) -> None:
    opened = open_page(page(plan("join").solution, plan("join").profile))
    opened.tab.set_viewport_size({"width": 800, "height": 900})
    # Bokeh lays its plots out anew some time after the window has another width.
    opened.tab.wait_for_function("document.documentElement.scrollWidth <= 800", timeout=20_000)


@pytest.mark.long
def test_plans_without_times(open_page: Callable[..., Opened]) -> None:
    opened = open_page(page(plan("hybrid fractional").solution, plan("hybrid fractional").profile))
    assert opened.tab.evaluate(_INK, "frontier") > 20
    assert "there is no timetable to draw" in opened.text("main")
