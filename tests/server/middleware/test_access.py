"""Who may ask."""

from __future__ import annotations

import asyncio

import pytest

from server.middleware.access import CheckHost, CheckOrigin
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
