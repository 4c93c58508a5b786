"""Requests, messages and bytes that nobody should send, for ``benchmarks.server_faults``."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Flaky
from schemathesis.core.result import Ok
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

PATIENCE_S = 300.0
_SHOWN = 120
"""Characters of an answer in a table."""
_DRAWN_AGAIN = 3
"""Tries to make cases of an operation."""
_SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
_GETS = (
    "/state",
    "/observation",
    "/episode_log",
    "/baseline",
    "/tasks",
    "/info",
    "/runtime",
    "/health",
    "/schema",
    "/metadata",
    "/list_environments",
    "/jaxserve/splits",
    "/nowhere",
)
_POSTS = (
    "/reset",
    "/step",
    "/step_many",
    "/agent",
    "/grader",
    "/baseline",
    "/mcp",
    "/jaxserve/tasks",
    "/jaxserve/task",
    "/jaxserve/task_range",
    "/nowhere",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    1.5,
    2**63,
    2**64,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "static_workload",
    "\ud800",
    "x" * 5000,
    [],
    [[]],
    {},
    {"batch_cap": 0},
    {"batch_cap": 8},
    {"metadata": {"step": "x"}},
)
_FIELDS = (
    "action",
    "session_id",
    "seed",
    "task_id",
    "task",
    "split",
    "index",
    "config",
    "episode_id",
    "steps",
    "agent",
    "windows",
    "actions",
    "episode_log",
    "type",
    "data",
    "method",
    "params",
    "id",
    "jsonrpc",
    "metadata",
    "batch_cap",
    "kv_budget",
    "timeout_s",
)
_POST = b"POST /step HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
_MASK = b"\x00\x00\x00\x00"
_REFUSED = (
    b"\x00" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 200,  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n",
    b"GET /\x00\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%00%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET http://elsewhere:1/state HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    _GET + b"Connection: close\r\n no: field\r\n\r\n",
    _GET + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    _GET + b"A: b\r\n" * 20_000 + b"\r\n",
    _GET + b"Connection: close\r\nHost: y\r\nHost: z\r\n\r\n",
    _POST + b"Content-Length: -1\r\n\r\n{}",
    _POST + b"Content-Length: 1e3\r\n\r\n{}",
    _POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    _POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    _POST + b"Transfer-Encoding: gzip\r\nConnection: close\r\n\r\n{}",
    _POST + b"Expect: nothing\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    _UPGRADE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short") + b"\r\n",
    _UPGRADE.replace(b"Version: 13", b"Version: 12") + b"\r\n",
    _UPGRADE.replace(b"/ws", b"/nowhere") + b"\r\n",
    _UPGRADE + b"\r\n" + b"\x81\x02{}",  # not masked
    _UPGRADE + b"\r\n" + b"\xf1\x80" + _MASK,  # reserved bits
    _UPGRADE + b"\r\n" + b"\x81\xff" + b"\x7f" + b"\xff" * 7 + _MASK,  # 2^63 bytes follow
    _UPGRADE + b"\r\n" + b"\x09\x80" + _MASK,  # a ping in parts
    _UPGRADE + b"\r\n" + b"\x89\xfe\x00\x7e" + _MASK + b"x" * 126,  # a long ping
    _UPGRADE + b"\r\n" + b"\x81\x82" + _MASK + b"\xff\xfe",  # text that is none
    _UPGRADE + b"\r\n" + b"\x88\x81" + _MASK + b"\x03",  # half a code
    _UPGRADE + b"\r\n" + b"\x88\x82" + _MASK + struct.pack(">H", 999),
    _UPGRADE + b"\r\n" + b"\x80\x80" + _MASK,  # goes on with nothing
)
"""Whole mistakes, which are answered or hung up on."""
_UNFINISHED = (
    b"",
    b"G",
    _GET,
    _POST + b"Content-Length: 100\r\n\r\n{",
    _POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    _POST + b'Content-Length: 14\r\n\r\n{"action": {}}',
    (_GET + b"\r\n") * 200,
    _UPGRADE + b"\r\n",
    _UPGRADE + b"\r\n" + b"\x01\x81" + _MASK + b"{",
)
"""Requests of a client that is then gone, without waiting for an answer."""


@dataclass(frozen=True)
class Fuzz:
    """Fates of the requests."""

    tried: int
    failed: int
    """answers of status 5xx."""
    unanswered: int
    """connections that ended without an answer where one was due."""
    seen: str
    """how many answers there were of each kind."""
    told: int = 0
    """answers that hold what is the server's own: a path or a key."""

    @property
    def survived(self) -> int:
        """Requests that were answered as they should be."""
        return self.tried - self.failed - self.unanswered - self.told


def fuzz_http(url: str, requests: int, dice: random.Random, private: Sequence[str] = ()) -> Fuzz:
    """Known and unknown routes with bodies that mostly do not belong there.

    Args:
      private: what no answer may hold, as in the two below.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    statuses: Counter[int] = Counter()
    cut = told = 0
    for _ in range(requests):
        method = dice.choices(("GET", "POST", "PUT", "DELETE"), (25, 70, 3, 2))[0]
        path, body = dice.choice(_GETS if method == "GET" else _POSTS), _body(dice)
        if method == "GET" and dice.random() < 0.5:
            asked = {dice.choice(_FIELDS): str(dice.choice(_VALUES))}
            path += f"?{urlencode(asked, errors='replace')}"
        if path.startswith("/baseline"):
            # Right ones play for seconds.
            body = b"{}" if method == "GET" else b'{"agent": "regime_oracle"}'
            path = "/baseline?agent=planner"
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            told += _tells(answer.read().decode(errors="replace"), private)
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException):
            cut += 1
            connection.close()
    connection.close()
    return Fuzz(requests, of_5xx(statuses), cut, counted(statuses), told)


def fuzz_schema(url: str, cases: int, dice: random.Random, private: Sequence[str] = ()) -> Fuzz:
    """Requests that schemathesis makes of the server's OpenAPI schema, for each of its operations;
    the result names the route and the reason of every answer of status 5xx."""
    statuses: Counter[int] = Counter()
    failures: Counter[str] = Counter()
    told = 0
    for operation in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        assert isinstance(operation, Ok)

        def send(case: Any) -> None:
            nonlocal told
            # Right ones play for seconds.
            if case.path == "/baseline":
                return
            answer = case.call(timeout=PATIENCE_S)
            statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                failures[f"{case.method} {case.path}: {_in_a_cell(answer.text)}"] += 1
            told += _tells(answer.text, private)

        _for_cases(operation.ok().as_strategy(), cases, dice, send)
    seen = "; ".join(filter(None, (counted(statuses), counted(failures))))
    return Fuzz(statuses.total(), of_5xx(statuses), 0, seen, told)


def _for_cases(strategy: Any, cases: int, dice: random.Random, send: Callable[[Any], None]) -> None:
    """Sends so many cases. Hypothesis seldom finds its own generation flaky, which says
    nothing of the server: other cases are drawn then."""
    for again in reversed(range(_DRAWN_AGAIN)):

        @seed(dice.randrange(2**32))
        @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=_SLOW)
        @given(case=strategy)
        def send_all(case: Any) -> None:
            send(case)

        try:
            send_all()
            return
        except Flaky:
            if not again:
                raise


async def fuzz_websocket(
    url: str, messages: int, dice: random.Random, private: Sequence[str] = ()
) -> Fuzz:
    """Messages of the protocol with data that mostly does not belong there, and others."""
    address = url.replace("http", "ws", 1) + "/ws"
    kinds: Counter[str] = Counter()
    ended = told = 0
    socket_ = await connect(address, open_timeout=PATIENCE_S)
    for _ in range(messages):
        known = {"type": dice.choice(("reset", "step", "state", "mcp", "dance", 5, None))}
        frame = json.dumps(known | {"data": dice.choice(_VALUES)})
        if dice.random() < 0.3:
            frame = _body(dice).decode(errors="replace")
        try:
            await socket_.send(frame)
            text = str(await asyncio.wait_for(socket_.recv(), PATIENCE_S))
            told += _tells(text, private)
            answer = orjson.loads(text)
            data = answer.get("data") or {}
            kinds[str(data.get("code") or answer.get("type"))] += 1
        except ConnectionClosed:
            ended += 1
            socket_ = await connect(address, open_timeout=PATIENCE_S)
    await socket_.close()
    return Fuzz(messages, 0, ended, counted(kinds), told)


def fuzz_sockets(url: str, connections: int, dice: random.Random) -> Fuzz:
    """Bytes that are no request, half of one, or no WebSocket's; some clients reset what they
    opened."""
    parts = urlsplit(url)
    kinds: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    silent = 0
    for _ in range(connections):
        with socket.create_connection((parts.hostname, parts.port), PATIENCE_S) as raw:
            leaves = dice.random() < 0.4
            with contextlib.suppress(OSError):  # hung up on while it still sends
                raw.sendall(dice.choice(_UNFINISHED if leaves else _REFUSED))
            if leaves:
                resets = dice.random() < 0.5
                if resets:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                kinds["reset by the client" if resets else "left by the client"] += 1
                continue
            try:
                status = raw.recv(4096)[9:12]
            except TimeoutError:
                silent += 1
                continue
            except OSError:
                status = b""
            if status.isdigit():
                statuses[int(status)] += 1
            else:
                kinds["hung up on"] += 1
    seen = counted(Counter({**kinds, **{str(key): n for key, n in statuses.items()}}))
    return Fuzz(connections, of_5xx(statuses), silent, seen)


def _body(dice: random.Random) -> bytes:
    """JSON of known fields with values that mostly do not belong there, or no JSON."""
    if dice.random() < 0.1:
        return dice.choice((b"", b"{", b"[" * 50_000, b"\xff\xfe", b"null", b"[1, 2]"))
    chosen = {dice.choice(_FIELDS): dice.choice(_VALUES) for _ in range(dice.randrange(5))}
    # The standard library writes NaN and half surrogates as well.
    return json.dumps(chosen).encode()


def _tells(text: str, private: Sequence[str]) -> bool:
    return any(one in text for one in private)


def _in_a_cell(text: str) -> str:
    """The beginning of an answer, fit for a table."""
    return " ".join(text.replace("|", "/").split())[:_SHOWN]


def of_5xx(statuses: Counter[int]) -> int:
    """Number of answers of status 5xx."""
    return sum(count for status, count in statuses.items() if status >= 500)


def counted(kinds: Counter[Any]) -> str:
    """A count of each kind, for a table."""
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
