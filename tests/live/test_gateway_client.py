"""The controller's side of a real gateway's control door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.settings import AccessTokens
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.readings import parse_engine_state, parse_knobs, parse_window
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.knob_engines import PluginEngine
from tests.gateway.stub_engine import RawServer
from tests.patience import wait_until


def use(
    url: str, what: Callable[[GatewayClient], Awaitable[Any]], token: str | None = None, **more: Any
) -> Any:
    """Uses a gateway once."""

    async def play() -> Any:
        async with GatewayClient(url, token, **more) as client:
            return await what(client)

    return asyncio.run(play())


def test_a_real_gateway() -> None:
    """Everything that it answers is what a controller reads."""
    slo = ("chat:ttft=0.5,tpot=0.05",)
    with (
        PluginEngine() as engine,
        RunningGateway([engine], tokens=AccessTokens(control="secret"), slo=slo) as gateway,
    ):

        async def look(client: GatewayClient) -> None:
            first = parse_window(await client.window(None, 4))
            gateway.post({"stream": True}, headers={"x-class": "chat"})
            wait_until(lambda: len(gateway.app.ledger.records.ring) == 1)
            window = parse_window(await client.window(first.until_s, 4))
            assert window.classes["chat"].completed == sum(window.classes["chat"].arrivals) == 1
            assert len(window.classes["chat"].arrivals) == 4
            knobs = parse_knobs(await client.knobs())
            engines = parse_engine_state(await client.engines(), knobs)
            assert (engines.count, engines.kv_tokens) == (1, 1600.0)
            assert engines.counters.keys() == {"vllm-0:first:1700000000.0"}
            assert next(iter(engines.counters.values()))["output_tokens"] == 200.0
            objectives = (await client.state())["objectives"]
            assert objectives["chat"] == {"ttft_s": 0.5, "tpot_s": 0.05}
            put = parse_knobs(await client.put({"batch_cap": 8.0}, 30.0))
            assert put["knobs"]["batch_cap"]["now"] == 8 == engine.now("batch_cap")
            await client.release()
            assert engine.now("batch_cap") == 64
            assert (await client.hold(True))["held"]
            with pytest.raises(GatewayError, match="refused: control is switched off"):
                await client.put({"batch_cap": 8.0}, 30.0)
            assert not (await client.hold(False))["held"]

        use(gateway.control_url, look, "secret")
        with pytest.raises(GatewayError, match="refused: control asks for a token"):
            use(gateway.control_url, lambda client: client.knobs(), "wrong")


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "what answers is no gateway"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", "what answers is no gateway"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}", "the gateway refused: 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", "cannot be reached: ClientPayload"),
        (b"garbage\r\n\r\n", "the gateway cannot be reached"),
        (b"", "the gateway cannot be reached"),
    ],
)
def test_whatever_answers(says: bytes, message: str) -> None:
    """One sentence."""
    with RawServer(says) as server, pytest.raises(GatewayError, match=message):
        use(server.url, lambda client: client.knobs())


def test_who_does_not_answer() -> None:
    """Nobody waits for longer than the patience."""
    with pytest.raises(GatewayError, match="the gateway cannot be reached: ClientConnectorError"):
        use(f"http://127.0.0.1:{free_port()}", lambda client: client.knobs())
    with (
        RawServer(stays=True) as silent,
        pytest.raises(GatewayError, match=r"did not answer within 0\.05 s"),
    ):
        use(silent.url, lambda client: client.knobs(), patience_s=0.05)
    with pytest.raises(InputError, match=r"--gateway is '127\.0\.0\.1:9001'"):
        GatewayClient("127.0.0.1:9001")
