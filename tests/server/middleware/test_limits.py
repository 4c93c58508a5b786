"""How often and how slowly one client may send."""

from __future__ import annotations

import asyncio
from typing import Any

from server.middleware.limits import LimitBody, LimitRate
from server.server_settings import Rate
from tests.server.middleware.asgi import Player, call, refusal, scope

_LEAVE = {"type": "websocket.disconnect", "code": 1000}


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
