"""The gateway as a process: how it starts, how it ends, and what it says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve import cli
from jaxserve.runtime.child_processes import own_process
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver
from tests.gateway.knob_engines import PluginEngine
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S, wait_until

RUNTIME = ("runtime.hosts", "runtime.limited_http", "runtime.listening", "runtime.storage")
CONTROL = ("engine_control", "engine_control.command")
NEEDED = ("checks", "datafiles", "errors", "runtime", "runtime.jax_setup", *RUNTIME, *CONTROL)


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """``jaxserve gateway`` on free ports; the process, and its two addresses."""
    command = [sys.executable, "-m", "jaxserve.cli", "gateway", "--port", "0"]
    with own_process(
        [*command, "--control-port", "0", *arguments],
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        words = said.split()
        assert "gateway at" in said, said
        yield running, words[3].rstrip(","), words[-1]


@pytest.mark.slow
def test_the_switch_outlives_a_kill(tmp_path: Path) -> None:
    """Who finds a gateway started anew finds control as it was left, and is told where it is off;
    a start that was killed while it wrote leaves no half of a file."""
    kept = tmp_path / "there" / "switch.json"
    with PluginEngine() as engine:
        arguments = ("--engine", f"vllm={engine.url}", "--state", str(kept))

        def knobs(control: str, **command: Any) -> httpx.Response:
            path = "hold" if "held" in command else "knobs"
            return httpx.put(f"{control}/control/{path}", json=command, timeout=PATIENCE_S)

        def turned(control: str) -> int:
            return knobs(control, lease_s=30, knobs={"batch_cap": 8}).status_code

        with process(*arguments) as (running, _, control):
            assert not kept.exists() and turned(control) == 200
            assert knobs(control, held=True).json()["held"] and engine.now("batch_cap") == 64
            running.kill()
        for _ in range(2):
            with process(*arguments) as (running, _, control):
                assert running.stderr is not None
                assert "control is switched off, as" in running.stderr.readline()
                assert httpx.get(f"{control}/control/knobs", timeout=PATIENCE_S).json()["held"]
                assert turned(control) == 400 and engine.now("batch_cap") == 64
                running.kill()
        with process(*arguments) as (running, _, control):
            assert not knobs(control, held=False).json()["held"]
        with process(*arguments) as (_, _, control):
            assert turned(control) == 200
    assert [path.name for path in kept.parent.iterdir()] == ["switch.json"]


def test_a_stream_outlives_the_signal(engine: StubEngine, tmp_path: Path) -> None:
    """Told to stop, the gateway takes nothing new, lets what runs end, writes its records and ends
    with success."""
    records = tmp_path / "records.jsonl"
    arguments = ("--engine", f"vllm={engine.url}", "--records", str(records))
    with process(*arguments) as (running, url, control):
        body = {"stream": True, "stub": {"tokens": 3, "gated": True}}
        url += "/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            assert "assistant" in next(lines)
            running.send_signal(signal.SIGTERM)
            port = httpx.URL(url).port
            wait_until(lambda: not _accepts(port), "the end of listening")
            engine.seen[0].allow()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert running.wait(PATIENCE_S) == 0
        assert control != url
    (record,) = [json.loads(line) for line in records.read_text().splitlines()]
    assert (record["outcome"], record["token_events"]) == ("completed", 3)


def _accepts(port: int | None) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
    except OSError:
        return False
    return True


def test_the_end_of_patience(engine: StubEngine, start: Start) -> None:
    """What runs longer than the drain gets its error, in a stream, before it and in the queue."""
    gateway = start([engine], ",cap=2", look_ahead=0, drain_s=0.2)
    bodies = [{"stream": True, "stub": {"gated": True}}]
    bodies += [{"stub": {"gated": "head"}}, {"stub": {"gated": True}}]
    with ThreadPoolExecutor(3) as pool:
        posts = []
        for place, body in enumerate(bodies):
            posts.append(pool.submit(gateway.post, body))
            engine.wait_for(min(place + 1, 2))
        gateway.wait_for_queue(1)
        gateway.stop()
    first, *others = [post.result() for post in posts]
    assert first.status_code == 200 and "gateway_stopping" in first.text
    for answer in others:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "gateway_stopping"
    assert len(engine.seen) == 2
    records = gateway.app.ledger.records.ring
    assert {(one.outcome, one.reason) for one in records} == {("failed", "gateway_stopping")}


def test_half_a_body_is_no_answer(engine: StubEngine, start: Start) -> None:
    """A whole answer that is being sent when time is up breaks off: nothing is put into it."""
    gateway = start([engine], drain_s=0.0)
    client = Leaver(gateway.port, {"stub": {"tokens": 1_500_000}})
    wait_until(lambda: any(one.flow.write_paused for one in gateway.connections()))
    gateway.stop()
    said = b""
    try:
        while part := client.socket.recv(2**20):
            said += part
    except ConnectionResetError:
        pass
    client.leave()
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"gateway_stopping" not in said
    assert len(body) < int(head.lower().partition(b"content-length: ")[2].split()[0])


def test_new_requests_while_it_stops(engine: StubEngine, start: Start) -> None:
    """One that still comes in over an open connection is turned away."""
    gateway = start([engine], drain_s=60.0)
    assert gateway.http.get("/health").status_code == 200
    gateway.app.in_flight.stop(60.0)
    answer = gateway.post()
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "gateway_stopping"
    assert gateway.http.get("/health").status_code == 503
    assert not engine.seen


def test_a_client_that_stays_does_not_hold_up_the_end(engine: StubEngine, start: Start) -> None:
    """Idle connections are closed when the gateway stops."""
    gateway = start([engine])
    client = Leaver(gateway.port, {})
    assert b" 200 " in client.socket.recv(65536)
    gateway.stop()
    assert client.socket.recv(65536) == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--engine is missing; name at least one"),
        (("--engine", "vllm=nowhere"), "it must be an address such as http://127.0.0.1:8000"),
        (("--engine", "vllm=http://a", "--port", "99999"), "--port is 99999; it must be"),
        (("--engine", "vllm=http://a", "--slo", "x"), "it must be like chat:ttft=0.5"),
        (("--engine", "vllm=http://a", "--records", "/proc/x/y"), "--records is /proc/x/y"),
        (("--engine", "vllm=http://a", "--state", "/dev/null"), "/dev/null is not readable"),
        (("--engine", "vllm=http://a", "--control-host", "0.0.0.0"), "CONTROL_TOKEN"),
        (("--engine", "vllm=http://a", "--host", "256.1.1.1"), "cannot be used at 256.1.1.1"),
    ],
)
def test_bad_arguments(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit code 2, as of every command."""
    assert cli.main(["gateway", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err and output.err.count("\n") == 1
    assert output.err.startswith("jaxserve: ") and "Traceback" not in output.err


def test_a_port_that_is_taken(engine: StubEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """Is named, with its option."""
    for option in ("--port", "--control-port"):
        arguments = ["gateway", "--engine", f"vllm={engine.url}", option, str(engine.port)]
        assert cli.main(arguments) == 2
        assert f"{option} is {engine.port}, which cannot be used" in capsys.readouterr().err


def test_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that installs it is named."""
    for name in [name for name in sys.modules if name.startswith("jaxserve.gateway")]:
        if name not in ("jaxserve.gateway", "jaxserve.gateway.settings"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert cli.main(["gateway", "--engine", "vllm=http://a"]) == 2
    assert "pip install 'jaxserve[gateway]'" in capsys.readouterr().err


def test_the_gateway_needs_no_simulator() -> None:
    """Its modules import errors, checks, files and sockets of the package, and nothing else."""
    code = (
        "import sys, jaxserve.gateway.app.serve\n"
        "print(*sorted(n for n in sys.modules if n.startswith('jaxserve.')"
        " and not n.startswith('jaxserve.gateway')), 'jax' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *imported, jax = found.stdout.split()
    own = {f"jaxserve.{name}" for name in NEEDED}
    assert set(imported) == own and jax == "False"


def test_its_process_has_no_jax() -> None:
    """Which would take two hundred megabytes, and most of the time to start."""
    with StubEngine() as engine, process("--engine", f"vllm={engine.url}") as (running, _, _):
        maps = Path(f"/proc/{running.pid}/maps").read_text()
    assert "/jaxlib/" not in maps
