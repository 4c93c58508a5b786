"""What the charts of the page draw: the numbers behind the lines, axes, limits and marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.local import LocalServer
from tests.server import operated_log
from tests.server.browser import opened, wait_until_idle

pytestmark = pytest.mark.slow

TASK = "adversarial_multitenant"
PLAYED = 30
READ = """() => ['charts', 'lanes'].map((place) =>
  [...document.querySelectorAll(`#${place} .chart`)].map((figure) => [figure, figure.chart])
  .map(([figure, chart]) => ({
    title: figure.querySelector('h2').firstChild.textContent,
    unit: figure.querySelector('small')?.textContent ?? '',
    lines: chart.series.slice(1).map(({ label }, at) => [label, chart.data[at + 1]])
      .filter(([label]) => !/ (highest|lowest)$/.test(label)),
    colours: chart.series.slice(1).filter(({ label }) => !/ (highest|lowest)$/.test(label))
      .map((series) => series.stroke()),
    x: [chart.scales.x.min, chart.scales.x.max],
    windows: chart.data[0],
    limits: chart.limits,
    marks: chart.marks,
    marksTurns: Boolean(chart.marksTurns),
  })))"""
# What is painted at the upper edge of a chart in the middle of each window: "burst", "away" or "".
PAINTED = """(windows) => {
  const { chart } = document.querySelector('#lanes .chart');
  const canvas = document.createElement('canvas');
  const probe = canvas.getContext('2d', { willReadFrequently: true });
  const image = chart.ctx.getImageData(0, 0, chart.ctx.canvas.width, chart.ctx.canvas.height);
  const look = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return String(probe.getImageData(0, 0, 1, 1).data);
  };
  const style = (name) => {
    const one = document.body.appendChild(document.createElement('i'));
    one.style.color = `var(--${name})`;
    return look(getComputedStyle(one).color);
  };
  const names = { [style('burst')]: 'burst', [style('away')]: 'away' };
  const y = Math.round(chart.bbox.top) + 1;
  return windows.map((window) => {
    const x = Math.round(chart.valToPos(window - 0.5, 'x', true));
    const at = 4 * (y * image.width + x);
    return names[String(image.data.slice(at, at + 4))] ?? '';
  });
}"""
UNITS = {
    "Traffic and queue": "requests",
    "Time to first token": "ms",
    "Inter-token latency": "ms",
    "Inside all their SLOs": "%",
    "Reward": "per window",
    "Throughput": "tokens/s",
    "KV blocks in use": "%",
    "Preemptions": "sequences",
    "Draft acceptance": "%",
    "Mean lengths": "tokens",
    "Arrivals by priority, 0 first": "%",
    "First tokens inside SLO, by class": "%",
    "TPOT by class, its SLO dashed": "ms",
    "Memory of one GPU, peak": "GiB",
}
GHOSTS = {
    "Traffic and queue": ("queue", "queue_depth", 1),
    "Time to first token": ("p99", "p99_ttft_ms", 1),
    "Inter-token latency": ("mean", "mean_itl_ms", 1),
    "Throughput": ("output", "throughput_tps", 1),
    "KV blocks in use": ("in use", "kv_cache_occupancy", 100),
    "Preemptions": ("preempted", "eviction_events", 1),
    "Memory of one GPU, peak": ("peak", "gpu_memory_used_gb", 1),
}
"""Of a chart: the line that others have too, its field, and the factor to its unit."""


class Drawn:
    """The charts of an episode of which ``PLAYED`` windows were played with other knobs, and what
    the server says of it."""

    def __init__(self, page: Any, url: str) -> None:
        page.select_option("#task", TASK)
        page.wait_for_function("document.getElementById('about').innerText.startsWith('Three')")
        wait_until_idle(page)
        page.fill("#batch_cap_exact", "24")
        page.press("#batch_cap_exact", "Tab")
        page.fill("#windows", str(PLAYED))
        page.click("#run")
        wait_until_idle(page)
        there = {"session_id": page.url.partition("#")[2]}
        with httpx.Client(base_url=url, timeout=300.0) as http:
            self.theirs = http.get("/yardsticks", params=there).json()["agents"]
            self.classes = http.get("/classes", params=there).json()["classes"]
            log = http.get("/episode_log", params=there).json()["episode_log"]
            (self.task,) = (t for t in http.get("/tasks").json()["tasks"] if t["task_id"] == TASK)
        self.mine = [entry["observation"] for entry in log]
        page.wait_for_function(f"document.querySelector('.chart').chart.data[1][{PLAYED}] !== null")
        page.wait_for_function(
            f"""[...document.querySelectorAll('.chart')].find(({{ innerText }}) =>
              innerText.startsWith('TPOT')).chart.data.slice(1)
              .some((line) => line[{PLAYED}] != null)"""
        )
        charts, lanes = page.evaluate(READ)
        self.charts = {chart["title"]: chart for chart in charts}
        self.lanes = {lane["title"]: lane for lane in lanes}


@pytest.fixture(scope="module")
def drawn(
    browser: Any, server: LocalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drawn]:
    picture = tmp_path_factory.mktemp("charts") / "drawn.png"
    with opened(browser, server.url, picture) as page:
        yield Drawn(page, server.url)


def near(column: list[float | None]) -> list[Any]:
    """Compares with a column up to rounding; where nothing was measured, a line has a gap."""
    return [None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6) for value in column]


def test_ghosts_are_those_who_play_the_same_seed(drawn: Drawn) -> None:
    """Both of them in every chart that has them, up to the present window and no further."""
    for title, (line, field, factor) in GHOSTS.items():
        lines = dict(drawn.charts[title]["lines"])
        # Before the first window there is a queue, but nothing has been measured.
        first = 0 if field == "queue_depth" else 1
        for agent in ("best static", "heuristic"):
            column = drawn.theirs[agent.replace(" ", "_")]["observation"][field]
            expected = [factor * value for value in column[first : PLAYED + 1]]
            assert lines[f"{agent} {line}"][first:] == near(expected), (title, agent)
        mine = [factor * observation[field] for observation in drawn.mine[first:]]
        assert lines[line][first:] == near(mine), title
    inside, means = (drawn.charts[title]["lines"] for title in ("Inside all their SLOs", "Reward"))
    for agent in ("best_static", "heuristic"):
        name, theirs = agent.replace("_", " "), drawn.theirs[agent]
        mean = sum(theirs["reward"][1 : PLAYED + 1]) / PLAYED
        assert dict(means)[f"{name} mean so far"][PLAYED] == pytest.approx(mean, rel=1e-4)
        good, ended = (
            sum(theirs["figures"][f"worth_{part}"][PLAYED - 9 : PLAYED + 1])
            for part in ("good", "ended")
        )
        by_worth = dict(inside)[f"{name} by worth, last 10"][PLAYED]
        assert by_worth == pytest.approx(100 * good / ended, rel=1e-4)


def test_axes_have_names_and_reach_to_the_end(drawn: Drawn) -> None:
    """The x axis goes over the whole episode, however little of it was played."""
    assert {title: chart["unit"] for title, chart in drawn.charts.items()} == UNITS
    every = [*drawn.charts.values(), *drawn.lanes.values()]
    assert {tuple(chart["x"]) for chart in every} == {(0, drawn.task["max_steps"])}
    assert drawn.task["max_steps"] > PLAYED


def test_each_class_has_a_line_and_its_own_objective(drawn: Drawn) -> None:
    """The dashed line of an objective has the colour of the class's own line."""
    chart = drawn.charts["TPOT by class, its SLO dashed"]
    names = [one["name"] for one in drawn.task["classes"]]
    assert [label for label, _ in chart["lines"]] == names
    for (_, shown), one in zip(chart["lines"], drawn.classes, strict=True):
        assert shown[1:] == near(one["tpot_ms"][:PLAYED])
    slos = [one["tpot_slo_ms"] for one in drawn.task["classes"]]
    assert [(limit["value"], limit["mark"]) for limit in chart["limits"]] == list(
        zip(slos, chart["colours"], strict=True)
    )
    assert len(set(chart["colours"])) == len(names) > 1
    ttft = drawn.charts["Time to first token"]["limits"]
    assert {limit["value"] for limit in ttft} == {
        one["ttft_slo_ms"] for one in drawn.task["classes"]
    }
    shares = drawn.charts["First tokens inside SLO, by class"]["lines"]
    assert [label for label, _ in shares] == names


def test_each_open_knob_has_a_lane(drawn: Drawn) -> None:
    """With what was chosen, and what the others chose, in the knob's own unit."""
    assert len(drawn.lanes) == len(drawn.task["active_knobs"])
    (_, best_static), _, (_, mine) = drawn.lanes["batch cap"]["lines"]
    assert [2**value for value in mine[1:]] == near([24.0] * PLAYED)
    chosen = drawn.theirs["best_static"]["action"][:PLAYED]
    theirs = [2**value for value in best_static[1:]]
    assert theirs == near([action["batch_cap"] for action in chosen])


def test_marks_are_at_their_windows(browser: Any, server: LocalServer, tmp_path: Path) -> None:
    """A burst, a GPU that was away and turned knobs of a log, in every chart; bands are painted."""
    log = operated_log.write_log(tmp_path / "operated.jsonl")
    with opened(browser, server.url, tmp_path / "marks.png") as page:
        page.click("#tab_live")
        page.set_input_files("#log", log)
        page.wait_for_function("document.querySelector('#lanes .chart')?.chart.marks?.away.length")
        charts, lanes = page.evaluate(READ)
        marks = {
            "turned": list(operated_log.TURNED),
            "bursts": [list(operated_log.BURST)],
            "away": [list(operated_log.AWAY)],
        }
        assert all(chart["marks"] == marks for chart in [*charts, *lanes])
        assert [chart["marksTurns"] for chart in charts] == [True] + [False] * (len(charts) - 1)
        windows = range(1, operated_log.WINDOWS + 1)
        painted = page.evaluate(PAINTED, list(windows))
        for kind, (first, last) in (("burst", operated_log.BURST), ("away", operated_log.AWAY)):
            assert [n for n, what in zip(windows, painted, strict=True) if what == kind] == list(
                range(first, last + 1)
            )
        events = page.locator("#happened li").all_inner_texts()
        assert [event.split()[0] for event in events] == ["31\u201333", "29", "21\u201326", "11"]


def test_one_window_is_seen(browser: Any, server: LocalServer, tmp_path: Path) -> None:
    """A line cannot be drawn through one value: it is a dot."""
    dots = """() => [...document.querySelectorAll('#charts .chart')].filter(({ chart }) =>
      chart.series.some((one, index) => index && one.points.filter(chart, index)?.length)).length"""
    with opened(browser, server.url, tmp_path / "one.png") as page:
        assert page.evaluate(dots) <= 1  # the queue that an episode begins with
        page.click("#step")
        wait_until_idle(page)
        page.wait_for_function(f"({dots})() >= 8")


def test_a_day_is_drawn_as_means_and_can_be_zoomed(
    browser: Any, server: LocalServer, tmp_path: Path
) -> None:
    """A line has few points however long the log, with the least and greatest value around each;
    dragging shows every window of a part, and the clock of the log stands below."""
    count = 20_000
    log = operated_log.write_log(tmp_path / "operated.jsonl", count)
    shown = """() => document.querySelectorAll('.chart')[0].chart.data[0].length"""
    with opened(browser, server.url, tmp_path / "long.png") as page:
        page.click("#tab_live")
        page.set_input_files("#log", log)
        page.wait_for_function(f"document.getElementById('window').textContent === '{count}'")
        page.wait_for_function(f"({shown})() > 100 && ({shown})() <= 400")
        edges = """() => { const { chart } = document.querySelectorAll('.chart')[0];
          const of = (label) => chart.data[chart.series.findIndex((one) => one.label === label)];
          return [' lowest', '', ' highest'].map((edge) => of('arrivals /s' + edge)); }"""
        lows, means, highs = page.evaluate(edges)
        assert all(low <= mean <= high for low, mean, high in zip(lows, means, highs, strict=True))
        assert max(highs) == 40.0 and min(lows) == 10.0 < max(means) < 40.0
        box = page.locator("#charts .u-over").first.bounding_box()
        for part in (0.1, 0.01):  # of all windows that are shown then
            page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
            page.mouse.down()
            page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 30, steps=4)
            page.mouse.up()
            width = "(({ max, min }) => max - min)(document.querySelector('.chart').chart.scales.x)"
            page.wait_for_function(f"{width} < {1.1 * part * count}")
        assert page.input_value("#range") == "zoom"
        charts, lanes = page.evaluate(READ)
        for chart in (*charts, *lanes):
            low, high = chart["x"]
            assert 0.54 * count < low < high < 0.57 * count
            assert chart["windows"] == list(range(int(low), int(high) + 1))
        assert page.locator("#range option:checked").inner_text() == "zoomed"
        page.locator("#charts .u-over").first.hover(position={"x": 100, "y": 20})
        second = datetime.fromtimestamp(operated_log.UNIX_S + low).minute
        assert re.search(
            rf":(?:{second:02}|{(second + 1) % 60:02}):\d\d", page.inner_text("#cursor")
        )
        page.mouse.dblclick(box["x"] + 50, box["y"] + 20)
        page.wait_for_function(
            f"({shown})() > 100 && document.getElementById('range').value === 'all'"
        )
        page.select_option("#range", "200")
        page.wait_for_function(f"({shown})() === 201")
