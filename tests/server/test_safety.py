"""Tokens, limits and isolation on a server that is exposed."""

from __future__ import annotations

import base64
import functools
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from jaxserve.client import ServeClient
from jaxserve.errors import InputError
from server.local import LocalServer
from server.server_settings import MODEL_TOKENS, Rate, Settings

Start = Callable[..., LocalServer]
TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def guarded(start_servers_of_module: Start) -> LocalServer:
    """A server with a token, an origin and a small body limit."""
    return start_servers_of_module(
        JAXSERVE_TOKEN=TOKEN,
        JAXSERVE_CORS_ORIGINS="https://lab.example",
        JAXSERVE_MAX_BODY_BYTES="20000",
        OPENAI_API_KEY="",
        HF_TOKEN="",
    )


def test_every_route_but_health_asks_for_the_token(guarded: LocalServer) -> None:
    """All routes of the OpenAPI schema, the page, and both WebSockets."""
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    schema = httpx.get(f"{guarded.url}/openapi.json", headers=BEARER).json()
    routes = [(m, path) for path, methods in schema["paths"].items() for m in methods]
    routes += [("get", p) for p in ("/", "/web", "/dashboard/", "/dashboard/app.js", "/docs")]
    for method, path in routes:
        if path == "/health":
            continue
        answer = httpx.request(method, guarded.url + path.replace("{env_name}", "jaxserve"))
        assert answer.status_code == 401, path
        assert answer.json()["error"].startswith("this server asks for a token")
    for path in ("/ws", "/mcp"):
        with pytest.raises(InvalidStatus):
            connect(guarded.url.replace("http", "ws") + path).close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        ("Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode(), 200),
        ("Basic " + base64.b64encode(b"me:wrong").decode(), 401),
        ("Basic ???", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer", 401),
        (TOKEN, 401),
        ("", 401),
    ],
)
def test_only_the_token_opens(guarded: LocalServer, header: str, status: int) -> None:
    """As bearer token, or as a browser sends it."""
    answer = httpx.get(f"{guarded.url}/tasks", headers={"Authorization": header})
    assert answer.status_code == status


def test_with_a_token_there_is_no_default_session(guarded: LocalServer) -> None:
    """Clients do not meet by accident; the client library passes the token on."""
    reset = httpx.post(f"{guarded.url}/reset", headers=BEARER)
    assert reset.status_code == 200
    answer = httpx.post(f"{guarded.url}/step", json={"action": {}}, headers=BEARER)
    assert answer.status_code == 404
    assert "session_id is missing" in answer.json()["error"]
    with ServeClient(guarded.url, token=TOKEN) as env:
        env.reset(task_id=1, seed=1)
        env.step({})
        assert env.grade()["steps"] == 1


def test_the_token_is_never_told(guarded: LocalServer) -> None:
    """Neither in an answer nor in what the server prints."""
    for path in ("/info", "/runtime", "/metadata", "/openapi.json", "/tasks"):
        assert TOKEN not in httpx.get(guarded.url + path, headers=BEARER).text
    assert TOKEN not in guarded.said()


def test_without_a_key_no_model_is_asked(guarded: LocalServer) -> None:
    """And the answer says which variable is meant."""
    asked = {"use_openai": True}
    answer = httpx.post(f"{guarded.url}/baseline", json=asked, headers=BEARER, timeout=300.0)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("no key for a language model; set OPENAI_API_KEY")
    answer = httpx.get(f"{guarded.url}/baseline", params=asked, headers=BEARER, timeout=300.0)
    assert answer.status_code == 422
    assert "ask for one by POST /baseline" in answer.json()["error"]


def test_without_a_token_no_model_is_asked_unless_the_operator_allows_it(
    http: httpx.Client,
) -> None:
    """Else anybody could spend the operator's tokens."""
    answer = http.post("/baseline", json={"use_openai": True})
    assert answer.status_code == 402
    assert "may spend 0 tokens on a language model" in answer.json()["error"]
    assert Settings.from_environment({}).model_tokens == 0
    assert Settings.from_environment({"JAXSERVE_TOKEN": "x"}).model_tokens == MODEL_TOKENS
    assert Settings.from_environment({"JAXSERVE_MODEL_TOKENS": "7"}).model_tokens == 7


def test_only_listed_origins_may_call(guarded: LocalServer) -> None:
    """A browser asks first, and is told no for all but those."""
    asked = {"Access-Control-Request-Method": "POST"}
    for origin, allowed in (("https://lab.example", True), ("https://evil.example", False)):
        answer = httpx.options(f"{guarded.url}/step", headers={"Origin": origin, **asked})
        assert ("access-control-allow-origin" in answer.headers) is allowed


@pytest.mark.parametrize("path", ["/ws", "/mcp"])
def test_sockets_of_other_pages_are_refused(server: LocalServer, path: str) -> None:
    """A browser does not ask before it opens one, and says whose page it is; that of the server's
    own page is opened."""
    address = server.url.replace("http", "ws", 1) + path
    with pytest.raises(InvalidStatus) as refused:
        connect(address, origin=Origin("https://evil.example"), open_timeout=None)
    assert refused.value.response.status_code == 403
    with connect(address, origin=Origin(server.url), open_timeout=None):
        pass


def test_no_page_plays_under_another_name(server: LocalServer) -> None:
    """A site whose name leads to this machine is refused at every door, and the server's own page
    is not, by whichever of its names."""
    for host, allowed in (
        (f"evil.example:{server.port}", False),
        (f"localhost:{server.port}", True),
        (f"127.0.0.1:{server.port}", True),
        (f"[::1]:{server.port}", True),
    ):
        origin = f"http://{host}"
        own = {"Host": host, "Origin": origin}
        call = {"jsonrpc": "2.0", "method": "ping", "id": 1}
        for path, body in (("/reset", {"task_id": 1}), ("/mcp", call)):
            answer = httpx.post(server.url + path, json=body, headers=own, timeout=300.0)
            assert answer.status_code == (200 if allowed else 403), (path, host)
        for path in ("/ws", "/mcp"):
            where = socket.create_connection(("127.0.0.1", server.port))
            opens = functools.partial(
                connect, f"ws://{host}{path}", origin=Origin(origin), sock=where, open_timeout=None
            )
            if allowed:
                with opens():
                    pass
            else:
                with pytest.raises(InvalidStatus) as refused:
                    opens()
                assert refused.value.response.status_code == 403


def test_large_bodies_are_refused(guarded: LocalServer) -> None:
    """Whether their length is announced or not; the server goes on."""
    body = b'{"episode_log": [' + b" " * 30_000 + b"]}"

    def in_pieces() -> Any:
        yield body

    for content in (body, in_pieces()):
        headers = {"Content-Type": "application/json", **BEARER}
        answer = httpx.post(f"{guarded.url}/grader", content=content, headers=headers)
        assert answer.status_code == 413
        assert "20000 bytes" in answer.json()["error"]
    assert httpx.get(f"{guarded.url}/health").status_code == 200


@pytest.mark.slow
def test_too_many_requests_are_refused_and_messages_wait(start_server: Start) -> None:
    """429 with a time to wait over HTTP; a WebSocket is slowed down and loses nothing."""
    server = start_server(JAXSERVE_RATE_LIMIT="20/second")
    time.sleep(1.1)
    with httpx.Client(base_url=server.url) as http:
        answers = [http.get("/runtime") for _ in range(100)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert "allowed are 20 per 1 s" in refused[0].json()["error"]
    assert int(refused[0].headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/health").status_code == 200
    time.sleep(1.1)
    with connect(server.url.replace("http", "ws") + "/ws") as socket:
        for kind in ["reset"] + ["step"] * 39:
            socket.send(json.dumps({"type": kind, "data": {}}))
        for number in range(40):
            reply = json.loads(socket.recv(timeout=300.0))
            assert reply["type"] == "observation"
            assert reply["data"]["metadata"]["step"] == number


def test_session_ids_cannot_be_guessed(http: httpx.Client) -> None:
    """144 random bits each, and no two alike."""
    ids = {http.post("/reset").json()["session_id"] for _ in range(50)}
    assert len(ids) == 50
    assert all(len(session_id) == 24 for session_id in ids)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAXSERVE_RATE_LIMIT", "fast"),
        ("JAXSERVE_RATE_LIMIT", "0/second"),
        ("JAXSERVE_MAX_BODY_BYTES", "10"),
        ("JAXSERVE_LIVE_SESSIONS", "-1"),
        ("JAXSERVE_SESSION_IDLE_S", "soon"),
        ("MAX_CONCURRENT_ENVS", "0"),
        ("WEB_CONCURRENCY", "many"),
        ("JAXSERVE_COMPILE_AHEAD", "yes"),
        ("PORT", "http"),
        ("PORT", "70000"),
        ("JAXSERVE_CORS_ORIGINS", "https://a, lab.example"),
        ("JAXSERVE_CORS_ORIGINS", "https://lab.example/page"),
        ("JAXSERVE_TOKEN", "two words"),
        ("JAXSERVE_SOCKETS_PER_ADDRESS", "0"),
        ("JAXSERVE_SOCKET_IDLE_S", "soon"),
        ("FORWARDED_ALLOW_IPS", "here"),
    ],
)
def test_wrong_settings_are_named(name: str, value: str) -> None:
    """The variable, and what it may be; a token is not repeated."""
    with pytest.raises(InputError, match=name) as error:
        Settings.from_environment({name: value})
    assert ("two words" not in str(error.value)) or name != "JAXSERVE_TOKEN"


def test_settings_are_read(tmp_path: Any) -> None:
    """Every variable has an effect."""
    settings = Settings.from_environment(
        {
            "XDG_STATE_HOME": str(tmp_path),
            "JAXSERVE_RATE_LIMIT": "30/minute",
            "JAXSERVE_TOKEN": "x",
            "JAXSERVE_CORS_ORIGINS": "https://a, https://b",
            "WEB_CONCURRENCY": "3",
            "PORT": "8000",
        }
    )
    assert settings.database == str(tmp_path / "jaxserve" / "sessions.sqlite3")
    assert settings.rate_limit == Rate(30, 60.0)
    assert (settings.token, settings.workers, settings.port) == ("x", 3, 8000)
    assert settings.cors_origins == ("https://a", "https://b")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--workers", "4"], ["x", "--workers=4", "--port=1"]])
def test_uvicorns_option_says_how_many_workers_there_are(arguments: list[str]) -> None:
    """Whatever the variable says."""
    assert Settings.from_environment({"WEB_CONCURRENCY": "2"}, arguments).workers == 4
    assert Settings.from_environment({}, ["--workers"]).workers == 1
    for wrong, named in (("--workers=many", "WEB_CONC"), ("--forwarded-allow-ips=x", "FORWARDED")):
        with pytest.raises(InputError, match=named):
            Settings.from_environment({}, [wrong])
