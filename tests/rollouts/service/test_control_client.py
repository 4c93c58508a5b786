"""The service's way to a gateway's records."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord, RecordedChoice, encode
from jaxserve.rollouts.service.control_client import ControlClient


def session(completions: int, tokens: int) -> list[CompletionRecord]:
    """Records of a conversation that grows by 120 tokens with every completion."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 150_000, tokens + 120 * completions, np.int32)
    found = []
    for number in range(completions):
        end = tokens + 120 * number
        message = {"role": "assistant", "content": "y" * 400}
        choice = RecordedChoice(
            0, message, "stop", ids[end : end + 100], -rng.random(100, np.float32)
        )
        found.append(
            CompletionRecord(
                session="s",
                request_id=f"r{number}",
                dialect="chat",
                arrived_unix_s=0.0,
                received=b"{}" + b" " * 4 * end,
                sent=b"{}" + b" " * 4 * end,
                response=b"{}",
                prompt_ids=ids[:end],
                choices=(choice,),
            )
        )
    return found


@contextmanager
def door(body: bytes, *, breaks: int = 0) -> Iterator[str]:
    """A control door with these records, of which the first answers break off; its address."""
    left = breaks

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answers with all."""
            nonlocal left
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if left else body)
            left -= bool(left)

        def log_message(self, *arguments: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            # Else its thread would ask for requests at a closed socket, without a pause, for ever.
            server.shutdown()


def records(body: bytes, *, breaks: int = 0) -> list[CompletionRecord]:
    """Records that the client reads from an answer."""

    async def ask(url: str) -> list[CompletionRecord]:
        async with ControlClient(url, "token") as control:
            return await control.records("s")

    with door(body, breaks=breaks) as url:
        return asyncio.run(ask(url))


@pytest.mark.parametrize("breaks", [0, 2])
def test_records_come_whole(breaks: int) -> None:
    """Every line, whatever was answered before; none twice."""
    said = [encode(one) for one in session(6, 2000)]
    assert [encode(one) for one in records(b"".join(said), breaks=breaks)] == said
    assert records(b"") == []


@pytest.mark.parametrize("body", [b"what\n", b"{}\n", b'{"v":1}'])
def test_what_are_no_records(body: bytes) -> None:
    """The error is one sentence with the session's name."""
    with pytest.raises(InputError, match="the gateway's records of s cannot be read"):
        records(body)


@pytest.mark.slow
def test_a_long_session_takes_the_memory_of_its_records() -> None:
    """The text of the records, twice as large, is never in memory as a whole."""
    body = b"".join(map(encode, session(200, 20_000)))
    assert len(body) > 50e6
    tracemalloc.start()
    found = records(body)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 200 and all(isinstance(one.prompt_ids, np.ndarray) for one in found)
    assert most - kept < 30e6
