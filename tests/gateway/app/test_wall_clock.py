"""A wall clock that jumps: only what is written for people may have it."""

from __future__ import annotations

import time

import pytest

from tests.gateway.conftest import Start
from tests.gateway.knob_engines import PluginEngine
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps(
    jump_s: float, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a stream and of a lease: both go on, and the window and the record count the
    time that passed."""
    wall = time.time
    with PluginEngine() as engine:
        gateway = start([engine], idle_s=PATIENCE_S)
        since_s = gateway.control.get("/control/window").json()["until_s"]
        command = {"lease_s": 600.0, "knobs": {"batch_cap": 8}}
        gateway.control.put("/control/knobs", json=command).raise_for_status()
        began_s = time.monotonic()
        body = {"stream": True, "stub": {"tokens": 3, "gated": True}}
        with gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
            engine.seen[0].allow()
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        (record,) = gateway.records(1)
        window = gateway.control.get("/control/window", params={"since": since_s}).json()
        took_s = time.monotonic() - began_s
        knobs = gateway.control.get("/control/knobs").json()
        assert knobs["mode"] == "leased" and engine.now("batch_cap") == 8
        assert 600.0 - took_s - 1.0 <= knobs["lease_left_s"] <= 600.0
        assert gateway.post().status_code == 200
        late, soon = gateway.records(2)[-1]["arrival_unix_s"], record["arrival_unix_s"]
    assert record["outcome"] == "completed"
    assert 0 <= record["first_token_s"] - record["arrival_s"] <= took_s
    assert record["first_token_s"] <= record["last_token_s"] <= record["ended_s"]
    assert window["complete"] and window["classes"]["default"]["completed"] == 1
    assert 0 <= window["ttft_p99_s"] <= took_s
    assert abs(late - soon - jump_s) < PATIENCE_S
