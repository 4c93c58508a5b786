"""Engine, gateway and controller killed (-9) in the middle of streams; and storms."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.live.deployment_control import LEASE_WINDOWS
from jaxserve.live.episode_file import read_episode
from jaxserve.live.show import Report
from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.live.controller import operate
from tests.live.deployment import TASK, setup_of
from tests.mock_engine.conftest import running
from tests.patience import PATIENCE_S, wait_until

WINDOW_S = 2.0


class Process:
    """A command of jaxserve that is killed and started again at the same ports."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._url, self._command = url, [sys.executable, "-m", "jaxserve.cli", *arguments]
        self.start()

    def start(self) -> None:
        self._life = ExitStack()
        started = own_process(self._command, stderr=subprocess.DEVNULL)
        self._process = self._life.enter_context(started)
        wait_until_answers(f"{self._url}/v1/models", self._process)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._life.close()


@contextmanager
def clients(url: str, count: int = 4) -> Iterator[list[str]]:
    """Streams, one after another in each thread; how each of them ended."""
    ended: list[str] = []
    over = threading.Event()

    def stream() -> None:
        body = {"model": "m", "prompt": [7] * 32, "max_tokens": 200, "ignore_eos": True}
        with httpx.Client(base_url=url, timeout=PATIENCE_S, headers={"x-class": "chat"}) as client:
            while not over.is_set():
                try:
                    answer = client.post("/v1/completions", json=body | {"stream": True})
                except httpx.TransportError:
                    ended.append("connection")
                    over.wait(0.2)
                    continue
                events = [line for line in answer.text.split("\n\n") if line]
                errors = [event for event in events if '"error"' in event]
                if answer.status_code == 429:
                    ended.append("full" if float(answer.headers["retry-after"]) > 0 else "?")
                elif answer.status_code != 200:
                    ended.append("error" if answer.json()["error"]["message"] else "nothing")
                    over.wait(0.2)
                elif errors:
                    ended.append("error" if len(errors) == 1 else "errors")
                else:
                    ended.append("whole" if events[-1] == "data: [DONE]" else "torn")

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


@contextmanager
def operating(
    setup: TaskSetup, control: str, log: Path, tell: Callable[[Report], None]
) -> Iterator[None]:
    """A controller in a thread, until the block ends."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(operate(setup, control, log, tell))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE_S)


ENGINE = {
    "served_model_name": "m",
    "max_model_len": 2048,
    "batch_cap": 64,
    "token_budget": 2048,
    "kv_blocks": 4000,
    "speed": 1.0,
}
SLO = ("chat:ttft=0.5,tpot=0.05",)


@pytest.mark.slow
def test_a_killed_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is back at its static values when the lease is over; the next controller goes on
    in the same log."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(json.dumps(TASK | {"window_s": WINDOW_S}))
    log = tmp_path / "log.jsonl"
    with running(**ENGINE) as engine, RunningGateway([f"vllm={engine.url}"], slo=SLO) as gateway:
        command = [sys.executable, "-m", "tests.live.controller"]
        command += ["mine.json", gateway.control_url, str(log)]

        def state() -> dict[str, Any]:
            shown = httpx.get(f"{engine.url}/jaxserve/control", timeout=PATIENCE_S).json()
            return shown["engines"][0]

        def steered() -> int:
            lines = log.read_text().splitlines() if log.exists() else []
            return sum('"mode": "guarded", "reason": null' in line for line in lines)

        with clients(gateway.url) as ended:
            for _ in range(2):
                before = steered()
                with own_process(command, stdout=subprocess.DEVNULL) as controller:
                    wait_until(lambda now=before: steered() > now, "steering")
                    wait_until(lambda: state()["mode"] == "leased", "a lease")
                    controller.send_signal(signal.SIGKILL)
                    controller.wait(PATIENCE_S)
                assert state()["lease_left_s"] <= LEASE_WINDOWS * WINDOW_S
                wait_until(lambda: state()["mode"] == "static", "the static values")
            assert set(ended) == {"whole"}
        cap = state()["knobs"]["batch_cap"]
        assert cap["now"] == cap["static"] == 64
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds.count("header") == 2
    episode = read_episode(log, setup_of(tmp_path / "mine.json").env)
    assert len(episode.notes) == kinds.count("window")


@pytest.mark.slow
def test_a_storm(tmp_path: Path) -> None:
    """More clients than there is room for, and one that never reads: the others are served or told
    to come again, and the controller keeps the wheel."""
    (tmp_path / "mine.json").write_text(json.dumps(TASK | {"window_s": WINDOW_S}))
    setup = setup_of(tmp_path / "mine.json")
    reports: list[Report] = []
    with (
        running(**ENGINE) as engine,
        RunningGateway(
            [f"vllm={engine.url},cap=4"], slo=SLO, queue=2, look_ahead=0, write_s=2 * WINDOW_S
        ) as gateway,
        operating(setup, gateway.control_url, tmp_path / "log.jsonl", reports.append),
    ):
        wait_until(lambda: any(report.reason is None for report in reports), "steering")
        gateway.shrink_send_buffers()
        body = {"model": "m", "prompt": [7], "max_tokens": 2000, "stream": True, "logprobs": 5}
        deaf = socket.socket()
        # So little fits into the sockets that the gateway cannot get rid of the rest.
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect(("127.0.0.1", gateway.port))
        content = json.dumps(body | {"ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
        deaf.sendall(head % (len(content), content))
        with clients(gateway.url, count=16) as ended:
            calm = len(reports)
            wait_until(lambda: len(reports) >= calm + 5, "five windows")
            wait_until(lambda: {"whole", "full"} <= set(ended), "both kinds of answers")
        assert set(ended) == {"whole", "full"}
        wait_until(
            lambda: any(one.reason == "client_stalled" for one in gateway.app.ledger.records.ring),
            "the end of the one that never reads",
        )
        deaf.close()
    storm = [report for report in reports[calm:] if report.comparison is not None]
    windows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rejected = [sum(one["metrics"]["rejected"]) for one in windows if one["kind"] == "window"]
    assert max(rejected) > 0
    # A busy machine may miss a deadline, but what engines and gateway answer is no fault.
    busy = (
        "a decision missed its deadline",
        "the window took",
        "did not answer within",
        "nothing was known when the window began",  # the window after a late answer
    )
    blamed = [report.reason for report in storm if report.reason is not None]
    assert all(any(word in reason for word in busy) for reason in blamed), blamed


@pytest.mark.slow
def test_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Static within two windows, and back when they are; every request ends with an answer or one
    error, but those whose gateway was killed, which lose their connection."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "mine.json").write_text(json.dumps(TASK | {"window_s": WINDOW_S}))
    setup = setup_of(tmp_path / "mine.json")
    ports = [str(free_port()) for _ in range(3)]
    engine_url, url, control = (f"http://127.0.0.1:{port}" for port in ports)
    described = ["--model", "llama-3.1-8b", "--hardware", "h100-sxm-80gb", "--batch-cap", "64"]
    served = ["--served-model-name", "m", "--max-model-len", "2048"]
    engine = Process(engine_url, "mock-engine", *described, *served, "--port", ports[0])
    doors = ["--port", ports[1], "--control-port", ports[2]]
    slo = ["--slo", "chat:ttft=0.5,tpot=0.05"]
    gateway = Process(url, "gateway", "--engine", f"vllm={engine_url}", *doors, *slo)
    reports: list[Report] = []
    caps: list[float | None] = []

    def tell(report: Report) -> None:
        reports.append(report)
        try:
            shown = httpx.get(f"{engine_url}/jaxserve/control", timeout=1.0).json()
            caps.append(shown["engines"][0]["knobs"]["batch_cap"]["now"])
        except httpx.TransportError:
            caps.append(None)

    def wait_for_window(steering: bool) -> None:
        seen = len(reports)
        wait_until(lambda: any((r.reason is None) == steering for r in reports[seen:]), "window")

    try:
        with clients(url) as ended, operating(setup, control, tmp_path / "log.jsonl", tell):
            wait_for_window(steering=True)
            for process in (engine, gateway):
                ended.clear()
                before = len(reports)
                process.kill()
                wait_until(lambda now=before: len(reports) >= now + 3, "three windows")
                # The first report may be of a window that had ended before.
                assert all(report.reason is not None for report in reports[before + 1 :])
                assert all(cap in (None, 48, 64) for cap in caps[before + 2 :]), caps
                process.start()
                wait_for_window(steering=True)
                wait_until(lambda: caps[-1] == 40, "the policy's cap")
                kinds = set(ended)
                allowed = {"whole", "error"} | ({"connection"} if process is gateway else set())
                assert "whole" in kinds and kinds <= allowed, kinds
        released = httpx.get(f"{engine_url}/jaxserve/control").json()
    finally:
        for process in (gateway, engine):
            process.kill()
    assert released["engines"][0]["knobs"]["batch_cap"]["now"] == 64
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    reasons = " ".join(str(one.get("reason")) for one in events)
    assert "no engine shows its metrics" in reasons and "gateway cannot be reached" in reasons
