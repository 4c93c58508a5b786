"""What the charts of the page draw: the numbers behind the lines, axes, limits and marks."""

from __future__ import annotations

from collections.abc import Iterator
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
  [...document.querySelectorAll(`#${place} .chart`)].map(({ chart, innerText }) => ({
    title: innerText.split('\\n')[0],
    lines: chart.series.slice(1).map(({ label }, index) => [label, chart.data[index + 1]]),
    colours: chart.series.slice(1).map((series) => series.stroke()),
    x: [chart.scales.x.min, chart.scales.x.max],
    axes: chart.axes.map((axis) => axis.label ?? ''),
    limits: chart.limits,
    marks: chart.marks,
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
    "Requests inside all their SLOs": "%",
    "Throughput": "tokens/s",
    "Reward": "per window",
    "First tokens inside SLO, by class": "%",
    "TPOT by class, its SLO dashed": "ms",
    "Memory of one GPU, peak": "GiB",
}
GHOSTS = {
    "Traffic and queue": ("queue", "queue_depth", 1),
    "Time to first token": ("p99", "p99_ttft_ms", 1),
    "Inter-token latency": ("mean", "mean_itl_ms", 1),
    "Requests inside all their SLOs": ("inside", "slo_compliance_rate", 100),
    "Throughput": ("output", "throughput_tps", 1),
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
              innerText.startsWith('TPOT')).chart.data[1][{PLAYED}] != null"""
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
    for agent in ("best_static", "heuristic"):
        rewards = dict(drawn.charts["Reward"]["lines"])[f"{agent.replace('_', ' ')} reward"]
        assert rewards[1:] == near(drawn.theirs[agent]["reward"][1 : PLAYED + 1])


def test_axes_have_names_and_reach_to_the_end(drawn: Drawn) -> None:
    """The x axis goes over the whole episode, however little of it was played."""
    assert {title: chart["axes"][1] for title, chart in drawn.charts.items()} == UNITS
    assert {chart["axes"][0] for chart in drawn.charts.values()} == {"window (1 s each)"}
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
    dots = """() => [...document.querySelectorAll('#charts .chart')].every(({ chart }) =>
      chart.series.some((one, index) => index && one.points.show(chart, index)))"""
    with opened(browser, server.url, tmp_path / "one.png") as page:
        assert not page.evaluate(dots)
        page.click("#step")
        wait_until_idle(page)
        page.wait_for_function(f"({dots})()")
