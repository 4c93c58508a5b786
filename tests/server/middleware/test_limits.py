"""How often and how slowly one client may send, and how many WebSockets it may hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.middleware.limits import LimitBody, LimitRate, LimitSockets, client_of
from server.server_settings import Rate
from tests.server.middleware.asgi import Player, call, refusal, scope

_ASK = {"type": "websocket.receive", "text": "{}"}
_LEAVE = {"type": "websocket.disconnect", "code": 1000}


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("unix", "unix"),
    ],
)
def test_a_client_is_a_network_of_ipv6(address: str, client: str) -> None:
    """Who has one address there has them all; IPv4 counts by the address."""
    assert client_of(scope(client=(address, 1))) == client


def test_opening_a_websocket_counts() -> None:
    """As a request does: 429 and a time to wait."""
    limited = LimitRate(Player(), Rate(3, 3600.0))

    async def play() -> None:
        for _ in range(3):
            opened = await call(limited, scope("websocket"), (0.0, _LEAVE))
            assert opened[0]["type"] == "websocket.accept"
        refused = await call(limited, scope("websocket"))
        assert refusal(refused)[0] == 429
        assert int(dict(refused[0]["headers"])[b"retry-after"]) >= 1
        assert refusal(await call(limited, scope(path="/step")))[0] == 429

    asyncio.run(play())


def test_probes_have_a_rate_of_their_own() -> None:
    """Far beyond what a probe asks; neither it nor other requests take from the other's."""
    limited = LimitRate(Player(), Rate(1, 3600.0))

    async def asked(path: str, address: str = "2001:db8::1") -> int:
        sent = await call(limited, scope(path=path, client=(address, 1)))
        return sent[0]["status"]

    async def play() -> None:
        assert [await asked("/step") for _ in range(2)] == [200, 429]
        asked_often = [await asked("/health") for _ in range(500)]
        assert asked_often[:20] == [200] * 20 and 429 in asked_often
        assert await asked("/health", "2001:db8::2") == 429  # the same network
        assert await asked("/health", "2001:db8:0:1::1") == 200

    asyncio.run(play())


def test_a_body_must_come_in_time() -> None:
    """In pieces without end it is given up: 408, whatever the application says to that."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    piece = {"type": "http.request", "body": b"x", "more_body": True}
    limited = LimitBody(app, max_bytes=100, max_s=0.1)
    sent = asyncio.run(call(limited, scope(), *[(0.03, piece)] * 20))
    assert refusal(sent) == (408, "the request body has not come within 0.1 s")


def test_an_address_has_its_share_and_no_more() -> None:
    """One beyond it is refused with a time to wait; other addresses and HTTP are not meant."""
    limited = LimitSockets(Player(), per_address=2, idle_s=60.0)

    async def play() -> None:
        holding = [asyncio.ensure_future(call(limited, scope("websocket"))) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await call(limited, scope("websocket"))
        status, text = refusal(refused)
        assert (status, text[:29]) == (429, "10.0.0.1 has 2 WebSockets ope")
        assert dict(refused[0]["headers"])[b"retry-after"] == b"1"
        other = scope("websocket", client=("10.0.0.2", 1))
        assert (await call(limited, other, (0.0, _LEAVE)))[0]["type"] == "websocket.accept"
        assert (await call(limited, scope()))[0]["status"] == 200
        for one in holding:
            one.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        again = await call(limited, scope("websocket"), (0.0, _LEAVE))
        assert again[0]["type"] == "websocket.accept"

    asyncio.run(play())


def test_a_silent_one_is_closed() -> None:
    """Sooner when it has never asked for anything; the application hears that it is over."""
    player = Player()
    limited = LimitSockets(player, per_address=9, idle_s=0.2, first_s=0.05)
    silent = asyncio.run(call(limited, scope("websocket")))
    assert silent[-1]["type"] == "websocket.close"
    assert "nothing was asked for 0.05 s" in silent[-1]["reason"]
    assert player.seen[-1]["type"] == "websocket.disconnect"
    asked = asyncio.run(call(limited, scope("websocket"), (0.0, _ASK)))
    assert "nothing was asked for 0.2 s" in asked[-1]["reason"]
