"""Measurements for Prometheus, and how answers and the page are sent."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from server.local import LocalServer
from tests.server.routes.episode_calls import post


def measured(http: httpx.Client) -> dict[tuple[str, ...], float]:
    """Samples by name and values of labels."""
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, *s.labels.values()): s.value for each in families for s in each.samples}


def test_the_server_counts_what_it_does(server: LocalServer, http: httpx.Client) -> None:
    """Requests by route and status, refused ones too; windows; sessions and WebSockets; a path that
    is no route gets no label of its own."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    before = measured(http)
    post(http, "/step", session_id=session_id, action={})
    http.post("/step", json={"session_id": session_id, "action": {"batch_cap": 0}})
    http.get("/nowhere/invented")
    http.get("/dashboard/app.js")
    with connect(server.url.replace("http", "ws") + "/ws"):
        after = measured(http)
    grown = {key: after[key] - before.get(key, 0.0) for key in after}
    assert grown["jaxserve_windows_total",] == 1
    for labels in (
        ("POST", "/step", "200"),
        ("POST", "/step", "422"),
        ("GET", "none", "404"),
        ("GET", "/dashboard", "200"),
    ):
        assert grown["jaxserve_requests_total", *labels] == 1, labels
    assert grown["jaxserve_request_seconds_count", "/step"] == 2
    assert after["jaxserve_websockets",] >= 1
    assert after["jaxserve_sessions_in_memory",] >= 1
    assert "process_resident_memory_bytes" in {name for name, *_ in after}
    assert not any("invented" in part for key in after for part in key)


def test_long_answers_to_get_are_compressed(http: httpx.Client) -> None:
    """A third of the bytes or less; to clients that ask for it, and no answer to a step."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    sizes = []
    for encoding in ("gzip", "identity"):
        asked = {"params": {"session_id": session_id}, "headers": {"accept-encoding": encoding}}
        with http.stream("GET", "/yardsticks", **asked) as answer:
            assert answer.headers.get("content-encoding") == {"gzip": "gzip"}.get(encoding)
            sizes.append(sum(map(len, answer.iter_raw())))
    assert sizes[0] < sizes[1] / 3
    steps = [{"session_id": session_id, "action": {}}]
    assert "content-encoding" not in http.post("/step_many", json={"steps": steps}).headers


def test_the_page_is_framed_by_spaces_only(http: httpx.Client) -> None:
    """And by the server's own pages."""
    for path in ("/dashboard/", "/dashboard/app.js"):
        headers = http.get(path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["frame-ancestors"] == "'self' https://huggingface.co https://*.hf.space"
        assert "x-frame-options" not in headers  # it knows no sites, and older browsers obey it
        assert headers["x-content-type-options"] == "nosniff"
