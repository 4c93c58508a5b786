"""The port for clients: routes, tokens, and no key where it does not belong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.gateway.stub_engine import RawServer, StubEngine, nobody_there

INFERENCE = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def test_what_an_engine_says_of_itself(engine: StubEngine, gateway: RunningGateway) -> None:
    """Models and health pass."""
    assert gateway.http.get("/v1/models").json() == httpx.get(f"{engine.url}/v1/models").json()
    assert gateway.http.get("/health").status_code == 200
    assert gateway.http.head("/health").status_code == 200


def test_any_engine_can_say_it(engine: StubEngine, start: Start) -> None:
    """One that is gone is passed over."""
    with nobody_there() as gone:
        gateway = start([f"vllm={gone}", engine])
        assert gateway.http.get("/v1/models").json()["data"] == [{"id": "stub"}]
        assert gateway.http.get("/health").status_code == 200


COUNTS = ("/v1/messages/count_tokens", "/tokenize")


def test_an_engine_counts_tokens(start: Start) -> None:
    """Bodies pass byte for byte, and so do answers and refusals, but for that of the own key."""

    async def echo(request: Request) -> JSONResponse:
        said = (await request.body()).decode()
        return JSONResponse({"path": request.url.path, "said": said}, 400 if said == "bad" else 200)

    with StubEngine(more=[Route(path, echo, methods=["POST"]) for path in COUNTS]) as counting:
        gateway = start([counting])
        for path in COUNTS:
            for said, status in (('{"a":  1}', 200), ("bad", 400)):
                answer = gateway.http.post(path, content=said.encode())
                assert (answer.status_code, answer.json()) == (status, {"path": path, "said": said})
    assert gateway.http.post(COUNTS[0]).json()["type"] == "error"
    with RawServer(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n") as refusing:
        gateway = start([f"vllm={refusing.url}"])
        for answer in (gateway.http.post(COUNTS[1]), gateway.http.get("/v1/models")):
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "engine_refused_key"


def test_there_are_no_other_routes(engine: StubEngine, gateway: RunningGateway) -> None:
    """Nothing else of an engine can be reached, by whatever spelling; errors are in form."""
    for path in (
        "/",
        "/metrics",
        "/control/state",
        "/update_weights",
        "/v1/chat/completions/",
        "/v1/../update_weights",
        "//v1/completions",
        "/v1/completions%2f..%2f..%2fpause",
    ):
        answer = gateway.http.post(httpx.URL(gateway.url).copy_with(raw_path=path.encode()))
        assert answer.status_code == 404, path
        assert answer.json()["error"]["message"] == "there is no such route at this gateway"
    assert gateway.http.post("/v1/messages/x").json()["type"] == "error"
    for method, path in (("GET", INFERENCE[0]), ("DELETE", INFERENCE[3]), ("POST", "/v1/models")):
        answer = gateway.http.request(method, path)
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "wrong_method"
    assert not engine.seen


def test_tokens(engine: StubEngine, start: Start) -> None:
    """Every route but health asks for it, in either of the two usual headers."""
    gateway = start([engine], tokens=AccessTokens(client="right"))
    good = ({"authorization": "Bearer right"}, {"authorization": "bearer right"})
    bad: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic right"},
        {"authorization": "right"},
        {"x-api-key": "Right"},
        {"authorization": "Bearer wrong", "x-api-key": "right"},
        {"authorization": "Bearer \xe9".encode("latin-1").decode("latin-1")},
    )
    for headers in bad:
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        for path in INFERENCE:
            answer = gateway.http.post(path, json={}, headers=raw)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["type"] == "authentication_error"
        assert gateway.http.get("/v1/models", headers=raw).status_code == 401
        assert gateway.http.get("/health", headers=raw).status_code == 200
    assert not engine.seen
    for headers in (*good, {"x-api-key": "right"}):
        assert gateway.post(headers=headers).status_code == 200
        assert gateway.http.get("/v1/models", headers=headers).status_code == 200
    assert "right" not in str([seen.headers for seen in engine.seen])
    # Requests without a token are none of the gateway's traffic.
    assert len(gateway.records(3)) == 3


def test_no_key_is_ever_shown(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    start: Start,
    tmp_path: Path,
) -> None:
    """The engine gets its key; no answer, page, record or log has it, whatever happens."""
    monkeypatch.setenv("ENGINE_KEY", "sk-engine-secret")
    path = tmp_path / "records"
    texts: list[str] = []
    with (
        caplog.at_level(logging.DEBUG, "jaxserve.gateway"),
        StubEngine() as engine,
        RawServer(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n") as refusing,
        nobody_there() as gone,
    ):
        good = f"vllm={engine.url},key=ENGINE_KEY,pool=good"
        bad = f"vllm={refusing.url},key=ENGINE_KEY,pool=bad"
        dead = f"sglang={gone},key=ENGINE_KEY,pool=dead"
        tokens = AccessTokens(client="sk-client-secret", control="sk-control-secret")
        gateway = start([good, bad, dead], tokens=tokens, records=path)
        client = {"authorization": "Bearer sk-client-secret"}
        control = {"authorization": "Bearer sk-control-secret"}
        asked: list[dict[str, Any]] = [{}, {"stream": True}, {"stub": {"status": 400}}]
        asked.append({"stream": True, "stub": {"cut": 1}})
        for pool in ("good", "bad", "dead", "none"):
            for body in asked:
                answer = gateway.post(body, headers={**client, "x-pool": pool})
                texts.append(answer.text + str(answer.headers))
        assert {seen.headers["authorization"] for seen in engine.seen} == {
            "Bearer sk-engine-secret"
        }
        for page in ("/metrics", "/control/state", "/control/window", "/control/records"):
            answer = gateway.control.get(page, headers=control)
            assert answer.status_code == 200
            texts.append(answer.text + str(answer.headers))
        assert "asked_with" in gateway.http.get("/v1/models", headers=client).text
        gateway.stop()
    printed = capfd.readouterr()
    texts += [caplog.text, printed.out, printed.err, path.read_text()]
    addresses = [one.removeprefix("http://") for one in (engine.url, refusing.url, gone)]
    for text in texts:
        ours = [
            line for line in text.splitlines() if "httpx" not in line and "httpcore" not in line
        ]
        for secret in ("sk-engine-secret", "sk-client-secret", "sk-control-secret", *addresses):
            assert secret not in "\n".join(ours)


def test_too_many_at_a_time(engine: StubEngine, start: Start) -> None:
    """Beyond the gateway's own limit there is 429, and afterwards it serves again."""
    gateway = start([engine], max_requests=2)
    clients = [Leaver(gateway.port, {"stub": {"gated": True}}) for _ in range(2)]
    engine.wait_for(2)
    answer = gateway.post(path="/v1/messages")
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert gateway.http.get("/health").status_code == 200
    for client in clients:
        client.leave()
    turned_away, *others = sorted(gateway.records(3), key=lambda one: one["outcome"], reverse=True)
    assert (turned_away["outcome"], turned_away["reason"]) == ("rejected", "too_many_requests")
    assert turned_away["dialect"] == "messages" and turned_away["status"] == 429
    assert [each["outcome"] for each in others] == ["cancelled", "cancelled"]
    assert gateway.post().status_code == 200
