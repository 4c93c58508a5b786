"""Harm that one client may do to another, and requests that contradict themselves, for
``benchmarks.server_faults``."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import numpy as np
import orjson
from websockets.sync.client import ClientConnection, connect

from benchmarks.page import missed
from benchmarks.server_fuzz import PATIENCE_S, Fuzz, counted, of_5xx

_OTHERS = ("127.0.0.1", "127.0.0.2")
"""Addresses of clients beside the player, whose own is the first."""
_AIM_BESIDE_S = 5.0
"""Time of an answer that a client gives up on at the least: httpx's default."""
AGENTS, OWN_CONFIGS, COMPARISONS = 60, 200, 70
"""Requests of ``played_beside``, all at once."""
_AIM_WINDOW_S = 0.1
_EVERY_S = 2.5
_PROBES = ("/health", "/tasks")


def fuzz_nameless(url: str, requests: int) -> Fuzz:
    """Requests that name no session, beside a player on a WebSocket, from its own address and from
    another; each leaves the player's session as it is."""
    statuses: Counter[int] = Counter()
    moved = 0
    asks: Sequence[tuple[str, str, Any]] = (
        ("POST", "/step", {"action": {"batch_cap": 1}}),
        ("POST", "/reset", {"task_id": 1}),
        ("POST", "/agent", {"agent": "random", "windows": 1}),
        ("POST", "/grader", {}),
        ("GET", "/state", None),
    )
    with connect(_websocket(url), compression=None) as player, ExitStack() as opened:
        clients = [opened.enter_context(_client(url, address)) for address in _OTHERS]
        _say(player, "reset", {"task_id": "static_workload", "seed": 1})
        window = 0
        for number in range(requests):
            method, path, body = asks[number % len(asks)]
            answer = clients[number % len(clients)].request(method, path, json=body)
            statuses[answer.status_code] += 1
            data = _say(player, "step", {"batch_cap": 64})
            window += 1
            moved += data["metadata"]["step"] != window
            if data["done"]:
                _say(player, "reset", {"task_id": "static_workload", "seed": 1})
                window = 0
    seen = f"{counted(statuses)}; the player's session was moved {moved} times"
    return Fuzz(requests, of_5xx(statuses), moved, seen)


def fuzz_contradictions(url: str, rounds: int) -> Fuzz:
    """Requests of which only a part could be meant: two names of a session, a field twice, more
    windows than an episode has, a request again. Each is refused, or plays nothing."""
    statuses: Counter[int] = Counter()
    wrong = tried = 0
    with _client(url, _OTHERS[0]) as client:
        for _ in range(rounds):
            mine, other = (_begun(client) for _ in range(2))
            for status, method, path, options in _contradictions(mine, other):
                answer = client.request(method, path, **options)
                statuses[answer.status_code] += 1
                wrong += answer.status_code != status
                tried += 1
            played = [client.get("/state", params={"session_id": s}).json() for s in (mine, other)]
            wrong += [each["step_count"] for each in played] != [1, 0]
    return Fuzz(tried, of_5xx(statuses), wrong, counted(statuses))


def _contradictions(mine: str, other: str) -> list[tuple[int, str, str, dict[str, Any]]]:
    """Status, method, path and options of requests about two sessions; the last two play a window
    of the first, together."""
    step = {"session_id": mine, "action": {}}
    again = {"json": {**step, "request_id": "again"}}
    twice = b'{"session_id": "%b", "action": {"batch_cap": 1, "batch_cap": 9}}' % mine.encode()
    long = {"task_id": "static_workload", "seed": 1, "actions": [{}] * 201}
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}]
    return [
        (422, "POST", "/step", {"json": step, "params": {"session_id": other}}),
        (422, "POST", "/step", {"json": step, "headers": {"X-Session-Id": other}}),
        (422, "GET", f"/state?session_id={mine}&session_id={other}", {}),
        (400, "POST", "/step", {"content": twice, "headers": _JSON}),
        (422, "POST", "/step", {"json": {**step, "timeout_s": 1e-9}}),
        (422, "POST", "/grader", {"json": long}),
        (200, "POST", "/mcp", {"json": batch}),  # an error of JSON-RPC
        (200, "POST", "/step", again),
        (200, "POST", "/step", again),
    ]


def fuzz_tools(url: str, rounds: int) -> Fuzz:
    """Tools called as steps of a WebSocket, right and wrong ones, as ``MCPToolClient`` of
    openenv-core 0.3 calls them."""
    kinds: Counter[str] = Counter()
    wrong = tried = 0
    calls = (
        ({"type": "list_tools"}, None),
        ({"type": "call_tool", "tool_name": "list_tasks"}, None),
        ({"type": "call_tool", "tool_name": "warp"}, "tool_not_found"),
        ({"type": "call_tool", "tool_name": "observe", "arguments": {"x": 1}}, "invalid_args"),
        (
            {"type": "call_tool", "tool_name": "observe", "arguments": {"session_id": "nobody"}},
            "execution_error",
        ),
    )
    with connect(_websocket(url), compression=None) as player:
        for action, kind in itertools.islice(itertools.cycle(calls), rounds * len(calls)):
            error = _say(player, "step", action)["observation"].get("error")
            found = None if error is None else error["error_type"]
            kinds[found or "answered"] += 1
            wrong += found != kind
            tried += 1
    return Fuzz(tried, 0, wrong, counted(kinds))


def fuzz_paths(url: str, root_path: str, rounds: int) -> Fuzz:
    """Requests at the path of a proxy that does not remove it, of one that does, and at paths that
    only begin alike; redirects stay below the path."""
    statuses: Counter[int] = Counter()
    wrong = tried = 0
    with _client(url, _OTHERS[0]) as client:
        for _ in range(rounds):
            for path, status in (
                ("/info", 200),
                ("/tasks", 200),
                ("/dashboard/", 200),
                ("/openapi.json", 200),
                ("/state?session_id=nobody", 404),
                ("/nowhere", 404),
                ("/", 307),
                ("/dashboard", 307),
            ):
                for asked in (path, root_path + path):
                    answer = client.get(asked)
                    statuses[answer.status_code] += 1
                    led = answer.url.join(answer.headers.get("location", "")).path
                    out = root_path in asked and not led.startswith(root_path)
                    wrong += answer.status_code != status or out
                    tried += 1
            wrong += client.get(f"{root_path}x/tasks").status_code != 404
            tried += 1
    return Fuzz(tried, of_5xx(statuses), wrong, counted(statuses))


def computations_beside(url: str, queued: int) -> Fuzz:
    """Grades of one client while another has asked for many computations of seconds; each should
    come in the time that clients wait by default."""

    async def play() -> tuple[list[float], Counter[int]]:
        statuses: Counter[int] = Counter()
        times_s = []
        async with _async_client(url, _OTHERS[1]) as busy, _async_client(url, "127.0.0.3") as other:
            asked = [
                asyncio.ensure_future(busy.get("/baseline", params={"seed": 9000 + number}))
                for number in range(queued)
            ]
            await asyncio.sleep(1.0)
            for seed in range(5):
                sent = time.perf_counter()
                actions = [{}] * 200
                body = {"task_id": "static_workload", "seed": seed, "actions": actions}
                answer = await other.post("/grader", json=body)
                times_s.append(time.perf_counter() - sent)
                statuses[answer.status_code] += 1
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return times_s, statuses

    times_s, statuses = asyncio.run(play())
    late = sum(seconds > _AIM_BESIDE_S for seconds in times_s)
    seen = f"{counted(statuses)}; the slowest after {_aimed(max(times_s))}"
    refused = statuses.total() - statuses[200] - of_5xx(statuses)
    return Fuzz(len(times_s), of_5xx(statuses), late + refused, seen)


def played_beside(url: str) -> Fuzz:
    """Windows of a player on a WebSocket while another client has agents drive its sessions, begins
    episodes of own configurations and compares agents."""
    times_s: list[float] = []
    # A client that reads answers of megabytes in this process would delay the player itself.
    apart = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with apart, connect(_websocket(url), compression=None) as player:
        sessions = apart.submit(_begun_many, url, AGENTS).result()
        _say(player, "reset", {"task_id": "adversarial_multitenant", "seed": 1})
        asked = apart.submit(_asked_at_once, url, sessions)
        while not asked.done():
            sent = time.perf_counter()
            data = _say(player, "step", {"batch_cap": 64})
            times_s.append(time.perf_counter() - sent)
            if data["done"]:
                _say(player, "reset", {"task_id": "adversarial_multitenant", "seed": 1})
        statuses = asked.result()
    p50, p99 = np.percentile(times_s, (50, 99))
    late = p99 > _AIM_WINDOW_S
    seen = (
        f"the other client got {counted(statuses)}; a window took {1e3 * p50:.0f} ms (p50) and "
        f"{1e3 * p99:.0f} ms (p99, aim {1e3 * _AIM_WINDOW_S:g} ms{missed(late)})"
    )
    refused = statuses.total() - statuses[200] - of_5xx(statuses)
    return Fuzz(len(times_s), of_5xx(statuses), int(late) + refused, seen)


def _begun_many(url: str, count: int) -> list[str]:
    """Sessions of another client."""
    with _client(url, _OTHERS[1]) as client:
        return [_begun(client) for _ in range(count)]


def _asked_at_once(url: str, sessions: Sequence[str]) -> Counter[int]:
    """Statuses of the requests of ``played_beside``."""

    async def ask() -> list[httpx.Response]:
        async with _async_client(url, _OTHERS[1]) as busy:
            driven = [
                {"agent": "heuristic", "windows": 50, "session_id": each} for each in sessions
            ]
            own = [
                {"deployment": {"num_gpus": 1 + number % 3}, "rate_scale": 1.0 + number / 500}
                for number in range(OWN_CONFIGS)
            ]
            begun = [{"task_id": "static_workload", "config": config} for config in own]
            return await asyncio.gather(
                *(busy.post("/agent", json=body) for body in driven),
                *(busy.post("/reset", json=body) for body in begun),
                *(
                    busy.get("/yardsticks", params={"session_id": sessions[number % len(sessions)]})
                    for number in range(COMPARISONS)
                ),
            )

    return Counter(answer.status_code for answer in asyncio.run(ask()))


def connections_beside(url: str, connections: int, seconds: float) -> Fuzz:
    """Requests of one client while another keeps thousands of connections, each of which asks for
    ``/health`` every few seconds."""
    parts = httpx.URL(url)
    statuses: Counter[int] = Counter()
    broken: Counter[str] = Counter()
    times_s: list[float] = []
    with _held(parts.host, parts.port or 80, connections) as ask_again:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ask_again()
            time.sleep(0.1)  # the probes of one client have a rate
            for path in _PROBES:
                sent = time.perf_counter()
                try:
                    with _client(url, "127.0.0.3", _AIM_BESIDE_S) as client:
                        statuses[client.get(path).status_code] += 1
                except httpx.TransportError as error:
                    broken[type(error).__name__] += 1
                times_s.append(time.perf_counter() - sent)
    seen = ", ".join(filter(None, (counted(statuses), counted(broken))))
    refused = len(times_s) - statuses[200] - of_5xx(statuses)
    seen = f"{seen}; the slowest after {_aimed(max(times_s))}"
    return Fuzz(len(times_s), of_5xx(statuses), refused, seen)


@contextmanager
def _held(host: str, port: int, connections: int) -> Iterator[Callable[[], None]]:
    """Connections of another client; the function reads their answers, and has those ask again that
    are open and have not asked for a while."""
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    asked: dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as ready:

        def close(one: socket.socket) -> None:
            ready.unregister(one)
            del asked[one]
            one.close()

        def ask_again() -> None:
            for key, _ in ready.select(0.0):
                one: Any = key.fileobj
                try:
                    if not one.recv(65536):
                        close(one)
                except OSError:
                    close(one)
            now = time.monotonic()
            for one in [one for one, when in asked.items() if now - when > _EVERY_S]:
                try:
                    one.sendall(request)
                    asked[one] = now
                except OSError:
                    close(one)

        for _ in range(connections):
            one = socket.create_connection((host, port), 5.0, source_address=(_OTHERS[1], 0))
            one.sendall(request)
            one.setblocking(False)
            asked[one] = time.monotonic()
            ready.register(one, selectors.EVENT_READ)
        try:
            yield ask_again
        finally:
            for one in list(asked):
                close(one)


_JSON = {"Content-Type": "application/json"}


def _aimed(seconds: float) -> str:
    return f"{seconds:.1f} s (aim {_AIM_BESIDE_S:g} s{missed(seconds > _AIM_BESIDE_S)})"


def _client(url: str, address: str, timeout_s: float = PATIENCE_S) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=url, timeout=timeout_s, transport=transport)


def _async_client(url: str, address: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(
        local_address=address, limits=httpx.Limits(max_connections=100)
    )
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, transport=transport)


def _websocket(url: str) -> str:
    return url.replace("http", "ws", 1) + "/ws"


def _begun(client: httpx.Client) -> str:
    answer = client.post("/reset", json={"task_id": "static_workload", "seed": 1})
    return answer.raise_for_status().json()["session_id"]


def _say(player: ClientConnection, kind: str, data: Any) -> Any:
    """Data of the answer."""
    player.send(orjson.dumps({"type": kind, "data": data}).decode())
    return orjson.loads(player.recv(PATIENCE_S))["data"]
