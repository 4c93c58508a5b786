"""The client's address and the root path that proxies state, and where redirects lead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.middleware.proxies import RelativeRedirects, TrustedProxies, route_path
from tests.server.middleware.asgi import Player, call, refusal, scope


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


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("configured", "header", "given", "path", "seen"),
    [
        ("", None, "", "/state", ("", "/state")),
        ("/jax", None, "", "/state", ("/jax", "/state")),
        ("/jax", None, "", "/jax/state", ("/jax", "/state")),  # a proxy that removes nothing
        ("/jax", None, "", "/jax", ("/jax", "")),
        ("/jax", None, "", "/jaxstate", ("/jax", "/jaxstate")),
        ("/jax", None, "/jax", "/jax/state", ("/jax", "/state")),  # uvicorn --root-path as well
        ("", None, "/own", "/own/state", ("/own", "/state")),
        ("/jax", "/lab/jax/", "", "/state", ("/lab/jax", "/state")),
        ("", "/lab", "", "/lab/state", ("/lab", "/state")),
        ("/jax", "/", "", "/state", ("/jax", "/state")),
    ],
)
def test_a_route_is_found_below_its_root_path(
    kind: str, configured: str, header: str | None, given: str, path: str, seen: tuple[str, str]
) -> None:
    """Whether the proxy removes the root path or not, from a setting or from the proxy's header."""
    player = Player()
    app = TrustedProxies(player, ["10.0.0.1"], configured)
    headers = {} if header is None else {"x-forwarded-prefix": header}
    leave = (0.0, {"type": "websocket.disconnect", "code": 1000})
    asyncio.run(call(app, scope(kind, path=path, root_path=given, headers=headers), leave))
    (found,) = player.scopes
    assert (found["root_path"], route_path(found)) == seen
    assert found["path"] == seen[0] + seen[1]


def test_a_root_path_is_believed_of_proxies_only() -> None:
    """A client could have a redirect or the page of the API lead elsewhere; what is no path is
    refused."""
    headers = {"x-forwarded-prefix": "/elsewhere"}
    player = Player()
    for proxies in ((), ("10.0.0.9",)):
        asyncio.run(call(TrustedProxies(player, proxies), scope(headers=headers)))
    assert [route_path(each) for each in player.scopes] == ["/ws", "/ws"]
    for wrong in ("//evil.example", "jax", "/a b", "/a?b"):
        asked = scope(headers={"x-forwarded-prefix": wrong})
        status, text = refusal(asyncio.run(call(TrustedProxies(player, ["10.0.0.1"]), asked)))
        assert (status, text[: len("X-Forwarded-Prefix is ")]) == (400, "X-Forwarded-Prefix is ")
    assert len(player.scopes) == 2


@pytest.mark.parametrize(
    ("path", "location", "led"),
    [
        ("/dashboard", "http://evil.example/dashboard/", "./dashboard/"),
        ("/jax/dashboard", "http://evil.example/jax/dashboard/", "./dashboard/"),
        ("/jax", "http://evil.example/jax/", "./jax/"),
        ("/web/", "https://evil.example/web?b=1", "../web?b=1"),
        ("/web", "http://evil.example//other.example/", "./other.example/"),
        ("//other.example/x", "http://evil.example//other.example/x/", "./x/"),
        ("/", "web", "web"),
        ("/x", "https://elsewhere.example/x", "https://elsewhere.example/x"),
    ],
)
def test_redirects_lead_to_this_server(path: str, location: str, led: str) -> None:
    """Not to what a request calls it, which a cache may keep for others, and not out of the path of
    a proxy."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"location", location.encode())]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    asked = scope(path=path, headers={"host": "Evil.example"})
    sent = asyncio.run(call(RelativeRedirects(app), asked))
    assert sent[0]["headers"] == [(b"location", led.encode())]
