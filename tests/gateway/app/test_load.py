"""Many streams at once: every one whole, none lost, and no place, task or connection left over."""

from __future__ import annotations

import asyncio
import random

import aiohttp
import pytest

from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.stub_engine import StubEngine, nobody_there, stream_of
from tests.patience import wait_until

_PATH = "/v1/chat/completions"
_PATIENT = {
    f"{name}_s": 600.0
    for name in ("head", "body", "queue", "connect", "first_byte", "idle", "write")
}
"""Settings of a gateway that a busy machine cannot make give up."""


async def _expected(asked: dict) -> bytes:
    return b"".join([part async for part in stream_of(_PATH, asked, None)])


async def _read(client: aiohttp.ClientSession, asked: dict) -> bytes:
    async with client.post(_PATH, json=asked) as answer:
        assert answer.status == 200
        return await answer.read()


def _session(gateway: RunningGateway) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        gateway.url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )


@pytest.mark.slow
def test_a_thousand_streams(start: Start) -> None:
    """All are open at the same time; then all go on, and every client gets its own answer."""
    with StubEngine() as engine:
        gateway = start([engine], **_PATIENT)
        bodies = [
            {"stream": True, "n": n, "stub": {"gated": True, "tokens": n % 13 + 1}}
            for n in range(1000)
        ]

        async def load() -> list[bytes]:
            async with _session(gateway) as client:
                reads = [asyncio.create_task(_read(client, body)) for body in bodies]
                await asyncio.to_thread(
                    wait_until, lambda: engine.running == 1000 or any(read.done() for read in reads)
                )
                assert not [read.exception() for read in reads if read.done()]
                assert gateway.app.pools["default"].replicas[0].in_flight == 1000
                for seen in engine.seen:
                    seen.allow(20)
                return await asyncio.gather(*reads)

        answers = asyncio.run(load())
        for body, answer in zip(bodies, answers, strict=True):
            assert answer == asyncio.run(_expected(body))
        records = gateway.records(1000)
        assert {record["outcome"] for record in records} == {"completed"}
        expected = sorted(n % 13 + 1 for n in range(1000))
        assert sorted(record["output_tokens"] for record in records) == expected
        wait_until(lambda: not gateway.connections(), "the end of all connections")
        assert len(gateway.app.in_flight) == 0
        assert gateway.app.pools["default"].replicas[0].in_flight == 0


@pytest.mark.slow
def test_a_storm(start: Start) -> None:
    """Requests that are refused, cut, left and queued, all at once: each ends in exactly one
    record, and the next one is served as if nothing had been."""
    rng = random.Random(7)
    with StubEngine() as engine, nobody_there() as gone:
        gateway = start([f"vllm={engine.url},cap=4", f"vllm={gone},cap=4"], queue=60, **_PATIENT)
        kinds = ({}, {"cut": 1}, {"status": 500}, {"status": 429}, {"error": True}, {"tokens": 50})

        async def one(client: aiohttp.ClientSession) -> str:
            asked = {"stream": rng.random() < 0.7, "stub": rng.choice(kinds)}
            asked["priority"] = rng.randrange(3)
            leaves_after_s = rng.choice((None, None, rng.random() * 0.1))
            try:
                async with asyncio.timeout(leaves_after_s), client.post(_PATH, json=asked) as got:
                    await got.read()
                    return str(got.status)
            except TimeoutError:
                return "left"

        async def load() -> list[str]:
            async with _session(gateway) as client:
                found: list[str] = []
                for _ in range(10):
                    found += await asyncio.gather(*(one(client) for _ in range(150)))
                return found

        ends = asyncio.run(load())
        assert set(ends) <= {"200", "429", "500", "502", "left"}
        wait_until(lambda: len(gateway.app.in_flight) == 0, "the end of all requests")
        records = gateway.records(1)
        # A request that its client gave up before it was sent is none.
        assert 1500 - ends.count("left") <= len(records) <= 1500
        assert len({record["id"] for record in records}) == len(records)
        outcomes = {record["outcome"] for record in records}
        assert {"completed", "rejected", "failed"} <= outcomes
        assert outcomes <= {"completed", "rejected", "failed", "cancelled"}
        assert engine.most_running <= 6
        assert gateway.state()["pools"]["default"]["running"] == 0
        assert gateway.post({"stub": {"tokens": 2}}).status_code == 200
