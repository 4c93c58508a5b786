"""Who asks, and where redirects lead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.middleware.access import CheckHost, CheckOrigin, RelativeRedirects, TrustedProxies
from tests.server.middleware.asgi import Player, call, refusal, scope

_HOST = {"host": "lab.example:7860"}


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),  # no browser
        ({"origin": "http://lab.example:7860"}, True),
        ({"origin": "https://friend.example"}, True),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "http://lab.example:1"}, False),
        ({"origin": "http://lab.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://[oops"}, False),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_pages_of_others_change_nothing(kind: str, headers: dict[str, str], passes: bool) -> None:
    """Neither by a request nor by a WebSocket, unless they are listed."""
    player = Player()
    app = CheckOrigin(player, ["https://friend.example"])
    leave = (0.0, {"type": "websocket.disconnect", "code": 1000})
    sent = asyncio.run(call(app, scope(kind, headers=_HOST | headers), leave))
    assert bool(player.scopes) is passes
    if not passes:
        status, text = refusal(sent)
        assert status == 403
        assert text.startswith("Origin is ") and "JAXSERVE_CORS_ORIGINS" in text


_EVIL = {"host": "evil.example:7860", "origin": "http://evil.example:7860"}


def _own(host: str) -> dict[str, str]:
    return {"host": host, "origin": f"http://{host}"}


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("client", "headers", "passes"),
    [
        ("127.0.0.1", _EVIL, False),
        ("172.18.0.1", _EVIL, False),  # a port that Docker publishes
        ("127.0.0.1", {"host": "evil.example:7860"}, False),
        ("::1", {"host": "evil.example:7860"}, False),
        ("::ffff:127.0.0.1", {"host": "evil.example"}, False),
        ("127.0.0.1", _own("localhost:7860"), True),
        ("127.0.0.1", _own("127.0.0.1:7860"), True),
        ("::1", _own("[::1]:7860"), True),
        ("10.0.0.1", _own("gpubox:7860"), True),
        ("10.0.0.1", _own("192.168.1.5:7860"), True),
        ("127.0.0.1", _own("host.docker.internal:7860"), True),
        ("127.0.0.1", _own("friend.example:7860"), True),
        ("127.0.0.1", {}, True),
        # A Space, or a proxy that is named: their pages have a certificate, their clients none.
        ("10.0.0.1", {"host": "me-x.hf.space", "origin": "https://me-x.hf.space"}, True),
        ("10.0.0.1", {"host": "me-x.hf.space"}, True),
    ],
)
def test_a_name_that_was_made_to_lead_here_is_refused(
    kind: str, client: str, headers: dict[str, str], passes: bool
) -> None:
    """DNS rebinding, where the page of another site is the server's own to a browser."""
    player = Player()
    app = CheckHost(player, ["https://friend.example"])
    leave = (0.0, {"type": "websocket.disconnect", "code": 1000})
    asked = scope(kind, client=(client, 5), headers=headers)
    sent = asyncio.run(call(app, asked, leave))
    assert bool(player.scopes) is passes
    if not passes:
        status, text = refusal(sent)
        assert status == 403
        assert text.startswith(f"Host is {headers['host']!r}") and "JAXSERVE_CORS_ORIGINS" in text


def test_health_is_told_under_any_name() -> None:
    """To whatever watches the server."""
    player = Player()
    asked = scope(method="GET", path="/health", client=("127.0.0.1", 5), headers=_EVIL)
    asyncio.run(call(CheckHost(player, []), asked))
    assert player.scopes


def test_the_scheme_says_which_port_is_meant() -> None:
    """A page at https://lab.example calls its host without a port; reading is free for all."""
    player = Player()
    app = CheckOrigin(player, [])
    own = {"host": "lab.example", "origin": "https://lab.example"}
    asyncio.run(call(app, scope(headers=own)))
    evil = {"host": "lab.example", "origin": "https://evil.example"}
    asyncio.run(call(app, scope(method="GET", headers=evil)))
    assert len(player.scopes) == 2


@pytest.mark.parametrize(
    ("proxies", "client", "seen"),
    [
        ((), ("10.0.0.9", 5), "10.0.0.9"),
        ((), ("203.0.113.7", 0), "127.0.0.1"),  # uvicorn has believed this machine already
        (("10.0.0.0/8",), ("10.0.0.9", 5), "203.0.113.7"),
        (("10.0.0.1",), ("10.0.0.9", 5), "10.0.0.9"),
        (("*",), ("192.0.2.1", 5), "203.0.113.7"),
    ],
)
def test_addresses_are_believed_where_that_is_configured(
    proxies: tuple[str, ...], client: tuple[str, int], seen: str
) -> None:
    """Of proxies that are named; a client's own word is nothing."""
    player = Player()
    asked = scope(client=client, headers={"x-forwarded-for": "203.0.113.7"})
    asyncio.run(call(TrustedProxies(player, proxies), asked))
    assert player.scopes[0]["client"][0] == seen


@pytest.mark.parametrize(
    ("location", "led"),
    [
        ("http://evil.example/dashboard/", "/dashboard/"),
        ("https://evil.example/a?b=1", "/a?b=1"),
        ("http://evil.example//other.example/", "/other.example/"),
        ("/web", "/web"),
        ("https://elsewhere.example/x", "https://elsewhere.example/x"),
    ],
)
def test_redirects_lead_to_this_server(location: str, led: str) -> None:
    """Not to what a request calls it, which a cache may keep for others."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"location", location.encode())]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    sent = asyncio.run(call(RelativeRedirects(app), scope(headers={"host": "evil.example"})))
    assert sent[0]["headers"] == [(b"location", led.encode())]
