"""Engine and gateway killed in the middle of streams, with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.gateway_client import GatewayClient
from jaxserve.live.operate import Conduct, Controller, Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.spaces import make_action
from server.local import free_port
from tests.gateway.stub_engine import PATIENCE_S, wait_until
from tests.live.deployment import TASK, Moody, setup_of

WINDOW_S = 2.0


class Process:
    """A command of jaxserve that is killed and started again at the same ports."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._url, self._command = url, [sys.executable, "-m", "jaxserve.cli", *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        wait_until(self._answers, self._url)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            return httpx.get(f"{self._url}/v1/models", timeout=PATIENCE_S).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def clients(url: str) -> Iterator[list[str]]:
    """Streams, one after another in each of four threads; how each of them ended."""
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
                if answer.status_code != 200:
                    ended.append("error" if answer.json()["error"]["message"] else "nothing")
                    over.wait(0.2)
                elif errors:
                    ended.append("error" if len(errors) == 1 else "errors")
                else:
                    ended.append("whole" if events[-1] == "data: [DONE]" else "torn")

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


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

    async def operate() -> None:
        with EpisodeWriter(tmp_path / "log.jsonl", {"task": "mine", "agent": "moody"}) as log:
            async with GatewayClient(control, patience_s=WINDOW_S / 4) as client:
                # Goodput is not what is tried here, and a busy machine may lack it.
                conduct = Conduct(Mode.GUARDED, Rules(recover=2, fewest=1e9))
                policy: Any = Moody([40.0])
                static = make_action(batch_cap=48)
                controller = Controller(setup, policy, static, client, log, conduct)
                await controller.run(None, tell)

    loop = asyncio.new_event_loop()
    task = loop.create_task(operate())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))

    def wait_for_window(steering: bool) -> None:
        seen = len(reports)
        wait_until(lambda: any((r.reason is None) == steering for r in reports[seen:]), "window")

    try:
        with clients(url) as ended:
            thread.start()
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
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE_S)
        released = httpx.get(f"{engine_url}/jaxserve/control").json()
        for process in (gateway, engine):
            process.kill()
    assert released["engines"][0]["knobs"]["batch_cap"]["now"] == 64
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    reasons = " ".join(str(one.get("reason")) for one in events)
    assert "no engine shows its metrics" in reasons and "gateway cannot be reached" in reasons
