"""ServeClient: four lines to play, and an episode that survives its connection and its server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxserve.client import AsyncServeClient, ConnectionLost, ServeClient, ServerError
from jaxserve.client.transports import HttpTransport
from jaxserve.errors import InputError
from server.local import LocalServer, free_port
from tests.conftest import StartServer

ACTION = {"batch_cap": 64, "speculation_depth": 2}


@functools.cache
def rewards(url: str, windows: int) -> list[float]:
    """Rewards of an episode without disturbances."""
    with ServeClient.from_url(url) as env:
        env.reset(task_id=3, seed=5)
        return [env.step(ACTION).reward for _ in range(windows)]


class Proxy:
    """Stands between client and server, and can cut or stall what passes through."""

    def __init__(self, port: int, refuse_websocket: bool = False) -> None:
        self._server_port, self._refuse = port, refuse_websocket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self.stalled = threading.Event()
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            behind = socket.create_connection(("127.0.0.1", self._server_port))
            self._ends += (client, behind)
            self._run(self._pump, client, behind, True)
            self._run(self._pump, behind, client, False)

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(65536):
                if up and self._refuse and b"Upgrade: websocket" in data:
                    source.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                    break
                if up or not self.stalled.is_set():
                    target.sendall(data)
        except OSError:
            pass
        self._cut(source, target)

    def cut(self) -> None:
        """Ends every connection without a word."""
        self._cut(*self._ends)

    @staticmethod
    def _cut(*ends: socket.socket) -> None:
        # To close one would not wake the thread that reads from it.
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cut(self._listener)
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()


def test_the_documented_loop(server: LocalServer) -> None:
    """reset, step, grade; fields by name or key; four values."""
    with ServeClient.from_url(server.url) as env:
        observation = env.reset(task_id=1, seed=42)
        assert observation.queue_depth == observation["queue_depth"] == 0.0
        observation, reward, done, info = env.step({"batch_size": 64, "kv_budget": 0.9})
        assert (observation.step_index, done, info["step"]) == (1.0, False, 1)
        assert isinstance(reward, float)
        assert env.state()["cumulative_reward"] == reward
        assert env.observe().reward == reward
        grade = env.grade()
        assert (grade["steps"], grade["verified"]) == (1, True)
        assert [entry["reward"] for entry in env.episode_log()["episode_log"]] == [None, reward]
        assert env.tasks()[0]["task_id"] == "static_workload"
        with pytest.raises(AttributeError, match="no 'speed'"):
            _ = observation.speed


def test_the_asynchronous_client_plays_many_at_once(server: LocalServer) -> None:
    """Each its own session."""

    async def play(number: int) -> list[float]:
        async with AsyncServeClient(server.url) as env:
            await env.reset(task_id=3, seed=5)
            return [(await env.step(ACTION)).reward for _ in range(10)]

    async def together() -> list[list[float]]:
        return await asyncio.gather(*(play(number) for number in range(8)))

    assert asyncio.run(together()) == [rewards(server.url, 10)] * 8


def test_an_agent_of_the_server_plays_on(server: LocalServer) -> None:
    """The agent's windows are windows of the session, which continues after them."""
    with ServeClient.from_url(server.url) as env:
        env.reset(task_id=3, seed=5)
        env.step(ACTION)
        driven = env.drive("default", 3)
        assert [step.info["step"] for step in driven] == [2, 3, 4]
        assert env.observe() == driven[-1]
        assert env.step(ACTION).info["step"] == 5


def test_it_works_where_an_event_loop_runs_already(server: LocalServer) -> None:
    """The client works inside a running event loop, as in a notebook."""

    async def cell() -> float:
        with ServeClient(server.url) as env:
            env.reset(task_id=3, seed=5)
            return env.step(ACTION).reward

    assert asyncio.run(cell()) == rewards(server.url, 1)[0]


def test_a_dropped_connection_goes_unnoticed(server: LocalServer) -> None:
    """Cut before every other step, in an episode that goes on as if nothing had been."""
    with Proxy(server.port) as proxy, ServeClient(proxy.url) as env:
        env.reset(task_id=3, seed=5)
        session_id = env.session_id
        found = []
        for number in range(12):
            if number % 2:
                proxy.cut()
            found.append(env.step(ACTION).reward)
        assert found == rewards(server.url, 12)
        assert env.session_id == session_id


def test_a_step_whose_answer_was_lost_is_not_taken_twice(server: LocalServer) -> None:
    """The server has taken it; the client times out, asks, and goes on."""
    with Proxy(server.port) as proxy, ServeClient(proxy.url, timeout_s=5.0) as env:
        env.reset(task_id=3, seed=5)
        found = [env.step(ACTION).reward]
        proxy.stalled.set()
        released = threading.Timer(6.0, proxy.stalled.clear)
        released.start()
        found.append(env.step(ACTION).reward)
        found.append(env.step(ACTION).reward)
        assert found == rewards(server.url, 3)
        assert env.state()["step_count"] == 3
        released.join()


def test_http_serves_where_websockets_do_not_pass(server: LocalServer) -> None:
    """HTTP gives the same rewards."""
    with Proxy(server.port, refuse_websocket=True) as proxy, ServeClient(proxy.url) as env:
        env.reset(task_id=3, seed=5)
        assert isinstance(env._client._transport, HttpTransport)
        assert [env.step(ACTION).reward for _ in range(5)] == rewards(server.url, 5)
        with pytest.raises(ServerError, match="batch_cap is 0"):
            env.step({"batch_cap": 0})
        assert env.state()["step_count"] == 5


@pytest.mark.slow
def test_an_episode_survives_its_server(
    tmp_path: Path, server: LocalServer, start_server: StartServer
) -> None:
    """Killed and started again while the client waits."""
    mine = start_server(tmp_path)
    with ServeClient(mine.url) as env:
        env.reset(task_id=3, seed=5)
        found = [env.step(ACTION).reward for _ in range(4)]
        mine.kill()
        start_server(tmp_path, port=mine.port)
        found += [env.step(ACTION).reward for _ in range(4)]
        assert found == rewards(server.url, 8)


def test_what_the_server_refuses_is_said(server: LocalServer) -> None:
    """The error is the server's sentence, and the episode is unchanged."""
    with ServeClient(server.url) as env:
        with pytest.raises(InputError, match="before reset"):
            env.step({})
        with pytest.raises(InputError, match="call reset first"):
            env.grade()
        with pytest.raises(ServerError, match="task_id is 'warp'"):
            env.reset(task_id="warp")
        env.reset(task_id=1, seed=1)
        with pytest.raises(ServerError, match="batch_cap is 0; it must be a whole number"):
            env.step({"batch_cap": 0})
        assert env.step({}).info["step"] == 1


def test_nobody_there_is_said_in_time() -> None:
    """After as long as was allowed."""
    with (
        ServeClient(f"http://127.0.0.1:{free_port()}", patience_s=0.5) as env,
        pytest.raises(ConnectionLost),
    ):
        env.reset()


@pytest.mark.parametrize("url", ["localhost:7860", "ftp://x", "", "http://"])
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(InputError, match="http or https address"):
        ServeClient(url)
