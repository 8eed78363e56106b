"""Reports as text: pages, traces, trade-offs and words; `test_report_browser` opens them."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from chainstay.dp import DP
from chainstay.errors import BackendError, InvalidSolutionError
from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile
from chainstay.report import Frontier, FrontierPoint, frontier_of, gantt_bars, page, picture, trace
from chainstay.report.axis_units import memory_scale, time_scale
from chainstay.report.html import elements
from chainstay.report.memory_profile import MemoryLevel
from chainstay.report.proof import proof_text
from chainstay.report.stage_table import stage_table
from chainstay.report.timeline import build_timeline
from chainstay.schedule import Discards
from chainstay.solution import Family
from chainstay.solve import solve_chain
from chainstay.timetable import Transfers
from report_plans import KINDS, a_chain, plan

_NO_FRONTIER = Frontier(points=(), method="none")
_HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><img src=x onerror=window.hacked=1>",
    "{stage} $title &amp; \" ' --> \u2028",
)


class _Reader(HTMLParser):
    """Elements of a page, and the text in cells and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {"td": [], "h1": [], "title": []}
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in self.texts:
            self.texts[self.inside][-1] += data


def _read(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    return reader


def _hostile_chain() -> ChainProfile:
    chain = a_chain(3)
    stages = (replace(stage, name=name) for stage, name in zip(chain.stages, _HOSTILE, strict=True))
    return replace(chain, stages=tuple(stages))


@pytest.mark.parametrize(
    "kind", [*KINDS, pytest.param("hybrid fractional", marks=pytest.mark.long)]
)
def test_page_of_every_kind(kind: str) -> None:
    solution, profile = plan(kind).solution, plan(kind).profile
    reader = _read(page(solution, profile, title=f"A {kind}", frontier=_NO_FRONTIER))
    assert reader.texts["h1"] == reader.texts["title"] == [f"A {kind}"]
    assert (
        reader.tags.count("tr") == len(stage_table(plan(kind).problem, solution.schedule).rows) + 1
    )
    assert "section" in reader.tags
    loads = {"src", "href", "srcset", "action", "data", "poster"}
    assert not [name for name, _ in reader.attributes if name in loads]


def test_plain_training_is_told_as_it_was_measured() -> None:
    chain = plan("chain")
    solution, profile = chain.solution, chain.profile
    time, peak = int(solution.makespan) // 2, 3 * 2**30
    text = page(
        solution, profile, frontier=_NO_FRONTIER, plain_time=time, plain_peak=peak
    )  # fmt: skip
    more = float(solution.makespan) / time - 1
    assert f"{more:.1%} more than without a budget" in text
    assert "plain training needs 3.00 GiB" in text
    assert "plain training needs" not in page(solution, profile, frontier=_NO_FRONTIER)


def test_text_from_outside_stays_text() -> None:
    profile = _hostile_chain()
    solution = replace(solve_chain(profile, "100%", method="dp"), method=_HOSTILE[1])
    tame = _read(page(solve_chain(a_chain(3), "100%", method="dp"), a_chain(3)))
    made = page(solution, profile, title=_HOSTILE[0])
    reader = _read(made)
    assert reader.tags == tame.tags
    assert reader.texts["h1"] == [_HOSTILE[0]]
    assert [text for text in reader.texts["td"] if text in _HOSTILE] == list(_HOSTILE)
    assert not [text for text in _HOSTILE if text in made]


def test_json_between_script_tags_cannot_end_them() -> None:
    value = {"name": ["<!-- <script ", "</script >", "&lt;", "é\u2028"]}
    text = elements.json_text(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_without_bokeh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "bokeh" or name in {
            "chainstay.report.html.embedded_charts",
            "chainstay.report.html.charts",
        }:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(BackendError, match="pip install 'bokeh>="):
        page(plan("chain").solution, plan("chain").profile)


def test_long_schedules_are_merged_and_never_look_better(monkeypatch: pytest.MonkeyPatch) -> None:
    solution, profile = plan("chain").solution, plan("chain").profile
    timeline = build_timeline(solution, profile)
    assert timeline is not None
    alone = gantt_bars.build_bars(timeline)
    assert [block.label for block in alone] == str(solution.schedule).split()
    monkeypatch.setattr(gantt_bars, "MAX_BARS", 6)
    merged = gantt_bars.build_bars(timeline)
    assert len(merged) <= 7
    assert (merged[0].start, merged[-1].end) == (0, solution.makespan)
    counts = [int(block.description.split()[0]) for block in merged if "…" in block.label]
    assert sum(counts) + len(merged) - len(counts) == len(alone)
    makespan = float(solution.makespan)
    levels = gantt_bars.thinned_levels(timeline.levels, makespan)
    assert len(levels) <= 14
    assert max(level.total for level in levels) == solution.peak_bytes
    for level in timeline.levels:
        covering = [
            low.total
            for low, high in zip(levels[::2], levels[1::2], strict=True)
            if low.time <= level.time <= high.time
        ]
        assert max(covering) >= level.total
    assert "are drawn as" in page(solution, profile, frontier=_NO_FRONTIER)


def test_levels_that_last_no_time_are_drawn_only_if_they_are_peaks() -> None:
    sizes = ((0, 5), (3, 5), (3, 1), (3, 4), (6, 4), (6, 9), (6, 2))
    levels = [MemoryLevel(time, size, 0, 0, 0) for time, size in sizes]
    assert [(level.time, level.total) for level in gantt_bars.thinned_levels(levels, 6.0)] == [
        (0, 5), (3, 5), (3, 4), (6, 4), (6, 9), (6, 2),
    ]  # fmt: skip


class TestFrontier:
    def test_short_chains_have_their_whole_curve(self) -> None:
        solution, profile = plan("chain").solution, plan("chain").profile
        frontier = frontier_of(solution, profile)
        assert frontier.is_complete
        assert [point for point in frontier.points if point.budget <= solution.budget][
            -1
        ].makespan == solution.makespan
        for point in frontier.points[::5]:
            assert isinstance(profile, ChainProfile)
            solved = solve_chain(profile, point.budget, method="dp")
            assert (solved.makespan, point.is_optimal) == (point.makespan, True)

    @pytest.mark.long
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "chain"])
    def test_points_reach_from_the_least_budget_to_keeping_all(self, kind: str) -> None:
        solution, profile = plan(kind).solution, plan(kind).profile
        points = frontier_of(solution, profile, seconds=60).points
        budgets = [point.budget for point in points]
        assert budgets == sorted(budgets)
        assert len(points) > 3
        assert any(point.budget == solution.budget for point in points)
        assert points[-1].makespan == profile.least_time
        assert all(point.lower_bound <= point.makespan for point in points)

    def test_of_free_discards_is_of_free_discards(self) -> None:
        solution, profile = plan("free").solution, plan("free").profile
        assert isinstance(profile, ChainProfile)
        frontier = frontier_of(solution, profile, seconds=60)
        assert frontier.method == "dp, free discards"
        point = frontier.points[1]
        solved = solve_chain(profile, point.budget, method=DP(discards="free"))
        assert solved.makespan == point.makespan

    def test_no_solve_that_takes_too_long_is_started(self) -> None:
        solution, profile = plan("join").solution, plan("join").profile
        slow = replace(solution, solve_seconds=99.0)
        (own,) = frontier_of(slow, profile).points
        assert (own.budget, own.makespan) == (solution.budget, solution.makespan)
        assert "This was not asked" in page(slow, profile)

    def test_a_given_one_is_shown_as_it_is(self) -> None:
        points = tuple(FrontierPoint(100 * i, 50 - i, 40) for i in range(3))
        text = page(
            plan("chain").solution,
            plan("chain").profile,
            frontier=Frontier(points=points, method="asking <b>somebody</b>"),
        )
        assert "3 plans, this one and others by asking &lt;b&gt;somebody&lt;/b&gt;; 0 pr" in text


class TestTrace:
    @pytest.mark.parametrize("kind", KINDS)
    def test_has_every_operation_in_its_lane(self, kind: str) -> None:
        solution, profile = plan(kind).solution, plan(kind).profile
        timeline = build_timeline(solution, profile)
        assert timeline is not None
        found = trace(solution, profile)
        json.dumps(found, allow_nan=False)
        events = found["traceEvents"]
        threads = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        assert list(threads.values()) == [lane.name for lane in timeline.lanes]
        shown = [
            (e["name"], threads[e["tid"]], e["ts"], e["dur"]) for e in events if e["ph"] == "X"
        ]
        assert shown == [
            (
                str(activity.op),
                timeline.lanes[activity.lane].name,
                pytest.approx(float(activity.start) / 1000),
                pytest.approx(float(activity.end - activity.start) / 1000),
            )
            for activity in timeline.activities
        ]
        counted = [sum(e["args"].values()) for e in events if e["ph"] == "C"]
        assert max(counted) == pytest.approx(solution.peak_bytes)

    def test_has_the_keys_of_torch_profiler(self, tmp_path: Path) -> None:
        real = _torch_trace(tmp_path / "torch.json")
        ours = trace(plan("hybrid integral").solution, plan("hybrid integral").profile)
        assert set(ours) <= set(real)
        assert ours["displayTimeUnit"] == real["displayTimeUnit"]
        assert ours["schemaVersion"] == real["schemaVersion"]
        for name in ("process_name", "thread_name", "thread_sort_index"):
            (mine, *_), (other, *_) = (
                [e for e in t["traceEvents"] if e["ph"] == "M" and e["name"] == name]
                for t in (ours, real)
            )
            assert (set(mine), set(mine["args"])) == (set(other), set(other["args"]))
        mine, other = (
            next(e for e in t["traceEvents"] if e["ph"] == "X" and e.get("cat") != "Trace")
            for t in (ours, real)
        )
        assert set(mine) == set(other)
        assert {key: type(value) for key, value in mine.items()} == {
            key: type(value) for key, value in other.items()
        }

    def test_fractional_hybrid_has_no_times(self) -> None:
        fractional = plan("hybrid fractional")
        with pytest.raises(InvalidSolutionError, match="transfers is 'fractional'"):
            trace(fractional.solution, fractional.profile)


def _torch_trace(path: Path) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        torch.ones(2, 2).sum()
    profiler.export_chrome_trace(str(path))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


class TestPicture:
    @pytest.mark.parametrize("kind", ["slots", "offload interruptible"])
    def test_is_a_file(self, kind: str, tmp_path: Path) -> None:
        solution, profile, file = plan(kind).solution, plan(kind).profile, tmp_path / "plan.svg"
        picture(solution, profile, file, title="A <b> of $x$")
        ET.parse(file)
        content = io.BytesIO()
        picture(solution, profile, content, kind="png")
        assert content.getvalue().startswith(b"\x89PNG")

    def test_shows_memory_and_every_operation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[Figure] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
        hybrid = plan("hybrid integral")
        timeline = build_timeline(hybrid.solution, hybrid.profile)
        assert timeline is not None
        picture(hybrid.solution, hybrid.profile, io.BytesIO(), kind="png")
        upper, lower = drawn[0].axes
        areas = [area.get_datalim(upper.transData) for area in upper.collections]
        highest = max(area.y1 for area in areas)
        assert highest == pytest.approx(hybrid.solution.peak_bytes / 2**20)
        (blocks_drawn,) = lower.collections
        boxes = [path.get_extents() for path in blocks_drawn.get_paths()]
        spans = sorted((round(box.x0, 6), round(box.x1, 6)) for box in boxes)
        assert spans == sorted(
            (round(float(a.start) / 1e6, 6), round(float(a.end) / 1e6, 6))
            for a in timeline.activities
        )

    def test_title_counts_in_slots_where_memory_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[Figure] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
        slots = plan("slots")
        picture(slots.solution, slots.profile, io.BytesIO(), kind="png")
        title = drawn[0].axes[0].get_title(loc="left")
        assert f" in {slots.solution.peak_bytes} of {slots.solution.budget} slots: " in title

    def test_fractional_hybrid_has_no_times(self) -> None:
        fractional = plan("hybrid fractional")
        with pytest.raises(InvalidSolutionError, match="transfers is 'fractional'"):
            picture(fractional.solution, fractional.profile, io.BytesIO(), kind="png")


class TestProof:
    def test_every_family_and_rule_is_explained(self) -> None:
        solution = plan("chain").solution
        for family in Family:
            for discards in Discards:
                proof = proof_text(replace(solution, family=family, discards=discards))
                assert proof.verdict == "proved optimal"
                assert len(proof.notes) == 2
        offload = plan("offload integral").solution
        for transfers in Transfers:
            proof = proof_text(replace(offload, transfers=transfers))  # type: ignore[call-arg]
            assert str(transfers) in proof.notes[-1]

    def test_a_gap_is_told_as_one(self) -> None:
        solution = plan("chain").solution
        makespan = int(solution.makespan)
        near = replace(solution, lower_bound=makespan - makespan // 4, unrestricted_bound=0)
        assert proof_text(near).verdict == "within 25.00%"
        assert "at most 25.00% of this plan's time could be saved" in proof_text(near).sentence
        unknown = replace(solution, lower_bound=0, unrestricted_bound=0)
        assert proof_text(unknown).verdict == "no bound known"

    def test_how_much_others_could_save_is_told(self) -> None:
        solution = replace(plan("chain").solution, unrestricted_bound=0)
        assert "No schedule at all" not in proof_text(solution).sentence
        bound = int(solution.makespan) * 99 // 100
        told = proof_text(replace(solution, unrestricted_bound=bound)).sentence
        assert "No schedule at all, of whatever family, saves more than 1.0" in told

    def test_all_schedules_are_those_by_rules_that_are_named(self) -> None:
        """Under free discards there are more, of which the bound says nothing."""
        made = plan("chain")
        bound = int(made.solution.makespan) - 1
        everything = replace(made.solution, family=Family.ALL, unrestricted_bound=bound)
        text = "all schedules with table1 discards"
        assert everything.proof.startswith(f"proved optimal among {text}; no schedule at all saves")
        assert f"Of {text}, none within this budget" in proof_text(everything).sentence
        assert "No schedule at all" in proof_text(everything).sentence
        assert f"among {text}" in page(everything, made.profile)
        free = replace(everything, discards=Discards.FREE)
        assert free.proof == "proved optimal among all schedules with free discards"
        offload = plan("offload integral").solution
        assert "among all schedules with offloading only; " in offload.describe()


def test_stage_table_counts_runs_and_moves() -> None:
    hybrid = plan("hybrid integral")
    table = stage_table(hybrid.problem, hybrid.solution.schedule)
    names = [name for name, _ in table.columns]
    text = str(hybrid.solution.schedule).split()
    for row in table.rows:
        stage, runs = row[0].text, row[names.index("Runs")].text
        assert int(runs) == sum(word in (f"Fn{stage}", f"Fc{stage}", f"Fa{stage}") for word in text)
        moves = row[names.index("Moves")].text.split(", ")
        assert ("input" in moves) == (f"Oa{stage}" in text)
        assert ("saved" in moves) == (f"Ob{stage}" in text)
    join = plan("join")
    rows = stage_table(join.problem, join.solution.schedule).rows
    text = str(join.solution.schedule).split()
    for row in rows:
        prefix, _, stage = row[0].text.removeprefix("tail ").rpartition(":")
        names = [f"{prefix}{':' * bool(prefix)}{kind}{stage}" for kind in ("Fn", "Fc", "Fa")]
        assert int(row[-1].text) == sum(map(text.count, names))
    places = [row[0] for row in rows]
    assert [place.text for place in places][::4] == ["0:0", "1:1", "tail 1"]
    assert sorted(places, key=lambda place: place.key) == places


def test_scales() -> None:
    chain = a_chain(1)
    assert [memory_scale(ChainProblem(chain, n)).unit for n in (5, 2000, 2**21, 2**30)] == [
        "bytes", "KiB", "MiB", "GiB",
    ]  # fmt: skip
    assert [time_scale(time).unit for time in (5, 1000, 10**6, 10**9)] == ["ns", "µs", "ms", "s"]
