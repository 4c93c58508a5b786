"""The control port: its own token, and figures that add up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.gateway.stub_engine import PROMPT_TOKENS, StubEngine
from tests.patience import wait_until

CONTROL = ("window", "records", "state", "engines", "knobs")
PAGES = ("/metrics", *(f"/control/{page}" for page in CONTROL))


def samples(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    """Metrics by name without the common prefix, then the values of their labels."""
    found = {}
    for family in text_string_to_metric_families(gateway.control.get("/metrics").text):
        for sample in family.samples:
            name = sample.name.removeprefix("jaxserve_gateway_")
            assert name != sample.name
            found[(name, *sample.labels.values())] = sample.value
    return found


def test_its_own_port(engine: StubEngine, start: Start) -> None:
    """Clients do not reach control, controllers do not reach engines, and a token of one is none
    of the other."""
    gateway = start([engine], tokens=AccessTokens(client="for-clients", control="for-control"))
    client, control = (
        {"authorization": f"Bearer {token}"} for token in ("for-clients", "for-control")
    )
    for page in PAGES:
        assert gateway.http.get(page, headers=client).status_code == 404
        assert gateway.control.get(page, headers=control).status_code == 200
        for headers in ({}, client):
            answer = gateway.control.get(page, headers=headers)
            assert answer.status_code == 401 and "token" in answer.json()["error"]
    assert gateway.control.post("/v1/completions", headers=control, json={}).status_code == 404
    assert gateway.control.post("/control/state", headers=control).status_code == 405
    for method, page in (("PUT", "knobs"), ("DELETE", "knobs"), ("PUT", "hold")):
        for headers in ({}, client):
            answer = gateway.control.request(method, f"/control/{page}", headers=headers, json={})
            assert answer.status_code == 401
    assert not engine.seen


def test_a_window_of_traffic(engine: StubEngine, start: Start) -> None:
    """Everything that happened is in it, by class; the next window begins where it ended."""
    slos = ("chat:ttft=1000,tpot=1000", "strict:ttft=0.000001")
    gateway = start([engine], slo=slos)
    before = gateway.control.get("/control/window", params={"seconds": 60}).json()
    assert before["arrivals"] == 0 and before["ttft_p50_s"] is None
    for name, count in (("chat", 3), ("strict", 2), ("made up", 1)):
        for _ in range(count):
            body = {"stream": True, "stub": {"tokens": 4}, "priority": 2}
            gateway.post(body, headers={"x-class": name})
    gateway.post({"stub": {"status": 500}})
    records = gateway.records(7)
    window = gateway.control.get("/control/window", params={"since": before["until_s"]}).json()
    assert window["complete"] and window["since_s"] == before["until_s"]
    assert (window["arrivals"], window["first_tokens"], window["completed"]) == (7, 6, 6)
    assert window["arrivals_by_priority"] == {"2": 6, "0": 1}
    assert window["token_events"] == 24 and window["output_tokens"] == 24
    assert window["prompt_tokens"] == 6 * PROMPT_TOKENS
    assert (window["good"], window["failed"]) == (4, 1)
    assert window["slo_attainment"] == pytest.approx(4 / 7)
    assert window["classes"]["chat"]["slo_attainment"] == 1.0
    assert window["classes"]["strict"]["slo_attainment"] == 0.0
    assert window["classes"]["other"]["arrivals"] == 1
    ttft = sorted(one["first_token_s"] - one["arrival_s"] for one in records if one["streamed"])
    assert window["ttft_p50_s"] == pytest.approx(ttft[2])
    assert window["ttft_p99_s"] == pytest.approx(ttft[5])
    spans = sum(one["last_token_s"] - one["first_token_s"] for one in records if one["streamed"])
    assert window["itl_mean_s"] == pytest.approx(spans / 18)
    after = gateway.control.get("/control/window", params={"since": window["until_s"]}).json()
    assert (after["arrivals"], after["completed"], after["token_events"]) == (0, 0, 0)
    assert after["pools"]["default"]["running"] == 0 and after["gateway"] == before["gateway"]


@pytest.mark.parametrize(
    "query",
    ["seconds=0", "seconds=nan", "seconds=x", "seconds=inf", "since=-1", "since=1e99", "since="],
)
def test_a_window_that_cannot_be(query: str, gateway: RunningGateway) -> None:
    """One sentence; a time from before a restart is not taken for one of this gateway."""
    answer = gateway.control.get(f"/control/window?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(query.partition("=")[0])


COMMANDS = [
    (b"", "the command is not JSON"),
    (b"[]", "the command is []; it must be a JSON object"),
    (b'{"knobs": {}}', "the command: lease_s is missing"),
    (b'{"lease_s": 0, "knobs": {}}', "lease_s is 0; it must be a number from 0.1 to 3600"),
    (b'{"lease_s": 1e9, "knobs": {}}', "lease_s is 1000000000.0; it must be"),
    (b'{"lease_s": true, "knobs": {}}', "lease_s is True"),
    (b'{"lease_s": 1}', "the command: knobs is missing"),
    (b'{"lease_s": 1, "knobs": {"warp": 1}}', "field 'warp' is unknown"),
    (b'{"lease_s": 1, "knobs": {"batch_cap": "8"}}', "batch_cap is '8'; it must be a finite"),
    (b'{"lease_s": 1, "knobs": {}, "now": 1}', "field 'now' is unknown"),
]


@pytest.mark.parametrize(("body", "message"), COMMANDS)
def test_commands_that_cannot_be(body: bytes, message: str, gateway: RunningGateway) -> None:
    """One sentence, and nothing is turned."""
    answer = gateway.control.put("/control/knobs", content=body)
    assert answer.status_code == 400 and message in answer.json()["error"]
    assert gateway.control.get("/control/knobs").json()["mode"] == "static"


def test_commands_have_a_limit(gateway: RunningGateway) -> None:
    """Of bytes; and the switch is on or off, nothing between."""
    answer = gateway.control.put("/control/knobs", content=b" " * 20_000)
    assert answer.status_code == 413
    answer = gateway.control.put("/control/hold", json={"held": 1})
    assert answer.json()["error"] == "the command: held is 1; it must be true or false"


def test_what_is_in_flight(engine: StubEngine, start: Start) -> None:
    """By class: without a first token, and with one; and the objectives of each."""
    gateway = start([engine], slo=("chat:ttft=0.5,tpot=0.05", "batch:ttft=9"))
    first = Leaver(gateway.port, {"stream": True, "stub": {"gated": True}})
    engine.wait_for(1)
    assert gateway.state()["in_flight"] == {"default": {"waiting": 1, "running": 0}}
    engine.seen[0].allow(1)
    wait_until(lambda: gateway.state()["in_flight"]["default"]["running"] == 1)
    whole = Leaver(gateway.port, {"stub": {"gated": True}})
    wait_until(lambda: gateway.state()["in_flight"]["default"]["running"] == 2)
    objectives = gateway.state()["objectives"]
    assert objectives["chat"] == {"ttft_s": 0.5, "tpot_s": 0.05}
    assert objectives["batch"] == {"ttft_s": 9.0, "tpot_s": None}
    for client in (first, whole):
        client.leave()


def test_draining_engines_get_no_new_requests(start: Start) -> None:
    """What they have ends well; named again, they serve again; a pool keeps one that serves."""
    with StubEngine() as first, StubEngine() as second:
        gateway = start([first, second])
        held = Leaver(gateway.port, {"stream": True, "stub": {"gated": True}})
        wait_until(lambda: first.seen or second.seen)
        busy, idle, name = (first, second, 0) if first.seen else (second, first, 1)

        def serve_with(*places: int) -> Any:
            names = [f"vllm-{place}" for place in places]
            return gateway.control.put("/control/serving", json={"engines": names})

        engines = serve_with(1 - name).json()["pools"]["default"]["engines"]
        assert [one["serving"] for one in engines] == [name == 1, name == 0]
        for _ in range(4):
            gateway.post()
        assert len(idle.seen) == 4 and len(busy.seen) == 1
        busy.seen[0].allow(100)
        assert gateway.records(5)[-1]["outcome"] == "completed"
        held.leave()
        serve_with(0, 1)
        for _ in range(2):
            gateway.post()
        assert len(busy.seen) == 2
        for body, message in (
            ({"engines": []}, "it must be a list with at least one entry"),
            ({"engines": ["vllm-9"]}, "engines is 'vllm-9'; it must be one of vllm-0, vllm-1"),
            ({"engine": ["vllm-0"]}, "field 'engine' is unknown"),
        ):
            answer = gateway.control.put("/control/serving", json=body)
            assert answer.status_code == 400 and message in answer.json()["error"]


def test_a_pool_keeps_an_engine_that_serves(start: Start) -> None:
    """Requests of a pool without one would wait for ever."""
    engines = ["vllm=http://127.0.0.1:9,pool=a", "vllm=http://127.0.0.1:10,pool=b"]
    answer = start(engines).control.put("/control/serving", json={"engines": ["vllm-0"]})
    assert answer.json()["error"] == "engines leaves pool b without an engine that serves"


def test_slices_of_a_window(gateway: RunningGateway) -> None:
    """Single measurements on demand, not without bound."""
    since = gateway.state()["now_s"]
    for _ in range(3):
        gateway.post({"stream": True})
    asked = {"since": since, "slices": 4}
    window = gateway.control.get("/control/window", params=asked).json()["classes"]["default"]
    assert len(window["arrivals_by_slice"]) == 4 and sum(window["arrivals_by_slice"]) == 3
    assert len(window["ttft_s"]) == 3
    answer = gateway.control.get("/control/window", params={"slices": 1e6})
    assert answer.status_code == 400


def test_engines_without_metrics(gateway: RunningGateway) -> None:
    """Each has figures or the reason why not."""
    (found,) = gateway.control.get("/control/engines").json()["engines"].values()
    assert found == {"error": "engine vllm-0 answers /metrics with status 404"}


def test_metrics_add_up(engine: StubEngine, start: Start) -> None:
    """Arrivals are those that completed, failed, left or were rejected, and those inside."""
    gateway = start([engine], ",cap=2", look_ahead=0, queue=1, slo=("chat:ttft=2",))
    for tokens in (1, 5):
        gateway.post({"stream": True, "stub": {"tokens": tokens}})
    gateway.post({"stub": {"status": 500}})
    inside = [Leaver(gateway.port, {"stub": {"gated": True}}) for _ in range(2)]
    engine.wait_for(5)
    waiting = Leaver(gateway.port, {"stub": {"gated": True}})
    gateway.wait_for_queue(1)
    assert gateway.post().status_code == 429
    found = samples(gateway)
    assert found[("arrivals_total", "default", "chat")] == 7
    assert found[("completed_total", "default")] == 2
    assert found[("judged_total", "default")] == 4 and found[("good_total", "default")] == 2
    assert found[("failed_total", "default", "engine_5xx")] == 1
    assert found[("rejected_total", "default", "queue_full")] == 1
    assert found[("running", "vllm-0")] == 2
    assert found[("waiting", "default")] == 1
    assert found[("in_gateway", gateway.app.ledger.id)] == 3
    assert found[("engine_up", "vllm-0")] == 1
    assert found[("ttft_objective_seconds", "chat")] == 2
    assert ("tpot_objective_seconds", "chat") not in found
    for name in ("control_held", "lease_seconds", "paused"):
        assert found[(name, gateway.app.ledger.id)] == 0
    assert found[("ttft_seconds_count", "default")] == 2
    assert found[("itl_seconds_count", "default")] == 4
    assert found[("tpot_seconds_count", "default")] == 1
    assert found[("e2e_seconds_count", "default")] == 2
    assert found[("queue_seconds_count", "default")] == 5
    assert found[("prompt_tokens_total",)] == 2 * PROMPT_TOKENS
    assert found[("output_tokens_total",)] == 6
    assert found[("sent_bytes_total",)] == sum(one["bytes_out"] for one in gateway.records(4))
    for client in (*inside, waiting):
        client.leave()
    gateway.records(7)
    found = samples(gateway)
    assert found[("cancelled_total", "default", "client_left")] == 3
    assert found[("running", "vllm-0")] == found[("waiting", "default")] == 0


def test_several_outputs_have_no_gaps(gateway: RunningGateway) -> None:
    """Events of several outputs come between each other: only the first token is counted."""
    gateway.post({"stream": True, "n": 2, "stub": {"tokens": 5}})
    window = gateway.control.get("/control/window").json()
    assert (window["first_tokens"], window["itl_p50_s"], window["tpot_mean_s"]) == (1, None, None)


def test_control_under_load(engine: StubEngine, gateway: RunningGateway) -> None:
    """Pages answer while streams run, and windows that follow each other see every arrival once."""
    seen = 0
    since = gateway.state()["now_s"]

    async def load() -> None:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=300.0) as client:
            body = {"model": "stub", "stream": True, "stub": {"tokens": 20}}
            for _ in range(5):
                posts = [client.post("/v1/completions", json=body) for _ in range(20)]
                answers = await asyncio.gather(*posts)
                assert {answer.status_code for answer in answers} == {200}

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(asyncio.run, load())
        while not loading.done():
            window = gateway.control.get("/control/window", params={"since": since}).json()
            seen, since = seen + window["arrivals"], window["until_s"]
        loading.result()
    window = gateway.control.get("/control/window", params={"since": since}).json()
    assert seen + window["arrivals"] == 100
