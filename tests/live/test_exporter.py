"""A controller's metrics and log over HTTP, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.datafiles import load_json
from jaxserve.errors import InputError
from jaxserve.live.exporter import ControllerMetrics, exported
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.live.faults import FAULTS
from tests.live.operated_deployment import Play, Played
from tests.live.test_kills import ENGINE, SLO, operating
from tests.mock_engine.conftest import running
from tests.patience import PATIENCE_S, wait_until

Values = dict[tuple[str, ...], float]


def metrics_of() -> ControllerMetrics:
    """Metrics without a window."""
    return ControllerMetrics("mine", "moody", "guarded")


def values(text: str) -> Values:
    """Metrics by name without the common prefix, then the values of their labels."""
    return {
        (sample.name.removeprefix("jaxserve_operate_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def reported(played: Played) -> Values:
    """The metrics after all windows."""
    metrics = metrics_of()
    for report in played.reports:
        metrics.add(report, 1e9 + report.window)
    return values(metrics.text().decode())


@pytest.mark.slow
def test_a_policy_in_control(play: Play) -> None:
    """Knobs in force, and measured and expected requests, which are those of the reports."""
    played = play(6)
    found = reported(played)
    assert found[("in_control", "policy")] == 1 and found[("in_control", "engines")] == 0
    assert found[("windows_total", "policy")] == 6 and found[("fallbacks_total",)] == 0
    assert not [name for name, *_ in found if name == "reason"]
    assert found[("knob_in_force", "batch_cap")] == found[("knob_commanded", "batch_cap")] == 40
    assert found[("knob_in_force", "speculation_depth")] == 0
    assert found[("good_requests_total",)] == found[("ended_requests_total",)] == 48
    assert found[("unjudged_requests_total",)] == 0
    expected = [report.comparison.static.good for report in played.reports if report.comparison]
    total = found[("expected_good_requests_total", "static")]
    assert total == pytest.approx(sum(expected)) and total > 0
    assert found[("itl_seconds",)] == pytest.approx(0.01)
    assert found[("expected_itl_seconds", "in_force")] > 0
    assert found[("last_window_timestamp_seconds",)] == 1e9 + 6


def test_a_fall_is_counted_once(play: Play) -> None:
    """Although its reason lasts for windows; what was in force before it is shown no longer."""
    happen, end, reason = FAULTS["the gateway cannot be reached"]
    found = reported(play(12, {4: happen, 6: end}))
    assert found[("fallbacks_total",)] == 1 and found[("unread_windows_total",)] >= 2
    assert found[("in_control", "policy")] == 1
    lasting = reported(play(6, {4: happen}))
    (why,) = [labels[0] for name, *labels in lasting if name == "reason"]
    assert reason in why
    assert lasting[("in_control", "engines")] == 1
    assert not [name for name, *_ in lasting if name == "knob_in_force"]


def test_a_switch_that_is_off(play: Play) -> None:
    """Nobody turns knobs, and nothing has fallen."""
    found = reported(play(8, {3: lambda one: setattr(one, "held", True)}))
    assert found[("in_control", "engines")] == 1 and found[("fallbacks_total",)] == 0
    assert found[("knob_in_force", "batch_cap")] == 64


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a torn line."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "header"}\n{"kind": "window"}\n{"ki')
    return path


def test_the_log_is_read_on(log: Path) -> None:
    """Whole lines from a byte on; a log that is shorter, as after a new one began, says so."""
    with (
        exported("127.0.0.1", 0, metrics_of(), log, None) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
    ):
        assert http.get("/metrics").headers["content-type"].startswith("text/plain")
        first = http.get("/log")
        assert first.text == '{"kind": "header"}\n{"kind": "window"}\n'
        following = {"from": len(first.content)}
        assert http.get("/log", params=following).text == ""
        with log.open("a") as file:
            file.write('nd": "event"}\n')
        assert http.get("/log", params=following).text == '{"kind": "event"}\n'
        assert http.get("/log", params={"from": "x"}).status_code == 400
        log.write_text("")
        assert http.get("/log", params=following).status_code == 416
        log.unlink()
        assert http.get("/log").text == "" and http.get("/log", params=following).status_code == 416


def test_pages_of_other_machines_read_nothing(log: Path) -> None:
    """A page of this machine may; another one, or one by a name that points here, may not."""
    with exported("127.0.0.1", 0, metrics_of(), log, "ignored here") as url:
        for path in ("/metrics", "/log"):

            def ask(path: str = path, **headers: str) -> httpx.Response:
                return httpx.get(url + path, headers=headers, timeout=PATIENCE_S)

            here = "http://localhost:7860"
            assert ask().status_code == 200
            assert ask(origin=here).headers["access-control-allow-origin"] == here
            assert ask(origin="https://evil.example").status_code == 403
            assert ask(origin="null").status_code == 403
            assert ask(host="evil.example").status_code == 403


def test_other_machines_need_the_token(log: Path) -> None:
    """Without one nothing is served to them at all."""
    with (
        pytest.raises(
            InputError, match=r"--metrics-host is 0\.0\.0\.0, which other machines reach"
        ),
        exported("0.0.0.0", 0, metrics_of(), log, None),
    ):
        pass
    with exported("0.0.0.0", 0, metrics_of(), log, "secret") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        for path in ("/metrics", "/log"):
            assert httpx.get(url + path, timeout=PATIENCE_S).status_code == 401
            token = {"authorization": "Bearer secret"}
            assert httpx.get(url + path, headers=token, timeout=PATIENCE_S).status_code == 200


Found = dict[str, dict[str, set[str]]]
"""Metrics by name, each with its labels and the values of these."""


def scraped(*texts: str) -> Found:
    """What metrics there are."""
    found: Found = defaultdict(lambda: defaultdict(set))
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = found[sample.name]
                for name, value in sample.labels.items():
                    labels[name].add(value)
    return found


FUNCTIONS = (
    *("rate", "increase", "sum", "max", "by", "on", "group_left"),
    *("clamp_min", "histogram_quantile", "time"),
)
TARGET = {"instance", "job"}
"""Labels that Prometheus adds."""
_MATCHER = re.compile(r'(\w+)(=|!=)"([^"]*)"')
_RANGE = re.compile(r"\[(?:\$__rate_interval|\d+[smh])\]")
_NUMBER = re.compile(r"(?<!\w)\d[\w.]*(?:-\d+)?")


def problems(expression: str, legend: str, found: Found) -> Iterator[str]:
    """What an expression or its legend names that does not exist."""
    bare = _NUMBER.sub("", _RANGE.sub("", _MATCHER.sub(r"\1", expression)))
    if re.search(r'["\[\]$]', bare) or bare.count("(") != bare.count(")"):
        yield "its brackets"
    words = set(re.findall(r"[a-z_:][a-z0-9_:]*", bare, re.I))
    metrics = {word for word in words if word in found}
    if not metrics:
        yield "no metric"
    labels = TARGET.union(*(found[metric] for metric in metrics))
    yield from words - metrics - labels - {*FUNCTIONS}
    for label, sign, value in _MATCHER.findall(expression):
        if sign == "=" and not any(value in found[metric][label] for metric in metrics):
            yield f"{label}={value}"
    kept = re.search(r"by \(([^)]*)\)", expression)
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    yield from shown - (labels if kept is None else {*re.split(r",\s*", kept[1])})


def test_problems_are_found() -> None:
    """Names that are wrong, one at a time."""
    found = scraped('m_total{class="a"} 1\n')
    right = 'sum by (class) (rate(m_total{class="a"}[$__rate_interval]))'
    assert not [*problems(right, "{{class}}", found)]
    for wrong, legend in (
        (right.replace("m_total", "n_total"), ""),
        (right.replace('"a"', '"b"'), ""),
        (right.replace("by (class)", "by (kind)"), ""),
        (right.replace("rate(", "ratio("), ""),
        (right.replace("$__rate_interval", "$interval"), ""),
        (right[:-1], ""),
        (right, "{{kind}}"),
    ):
        assert [*problems(wrong, legend, found)], (wrong, legend)


def traffic(gateway: RunningGateway) -> None:
    """Requests that end in every way, at a gateway that has room for one."""
    body = {"model": "m", "prompt": [7] * 32, "max_tokens": 20, "ignore_eos": True}
    for asked, status in (
        (body | {"stream": True}, 200),
        (body | {"stream": False}, 200),
        (body | {"model": "none"}, 404),
    ):
        wait_until(lambda: gateway.state()["in_gateway"] == 0, "room")
        answer = gateway.post(asked, "/v1/completions", headers={"x-class": "chat"})
        assert answer.status_code == status
    wait_until(lambda: gateway.state()["in_gateway"] == 0, "room")
    long = Leaver(gateway.port, body | {"max_tokens": 2000, "stream": True}, "/v1/completions")
    wait_until(lambda: gateway.state()["in_gateway"] == 1, "a request in flight")
    assert gateway.post(body, "/v1/completions").status_code == 429
    long.leave()
    gateway.records(5)


def expressions(panels: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Expressions of a dashboard, with their legends."""
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


@pytest.mark.slow
def test_the_dashboard_shows_what_there_is(setup: TaskSetup, tmp_path: Path) -> None:
    """Every metric, label and function in it, of a gateway before an engine and of a controller,
    whose gateway is gone in the end."""
    metrics, log = metrics_of(), tmp_path / "log.jsonl"
    with (
        running(**ENGINE) as engine,
        RunningGateway([f"vllm={engine.url}"], slo=SLO, max_requests=1) as gateway,
        exported("127.0.0.1", 0, metrics, log, None) as url,
        operating(setup, gateway.control_url, log, lambda one: metrics.add(one, time.time())),
    ):

        def scrape() -> str:
            return httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text

        wait_until(lambda: "knob_commanded{" in scrape(), "a window")
        traffic(gateway)
        texts = [scrape(), gateway.control.get("/metrics").text]
        gateway.stop()
        wait_until(lambda: "jaxserve_operate_reason{" in scrape(), "a reason")
        texts.append(scrape())
        lines = httpx.get(f"{url}/log", timeout=PATIENCE_S).text.splitlines()
    assert {json.loads(line)["kind"] for line in lines} >= {"header", "window", "event"}
    found = scraped(*texts)
    dashboard = load_json("grafana/jaxserve.json")
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    shown = [*expressions(dashboard["panels"])]
    assert len(shown) > 30
    wrong = {expression: [*problems(expression, legend, found)] for expression, legend in shown}
    assert {expression: why for expression, why in wrong.items() if why} == {}
