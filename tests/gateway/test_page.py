"""The commands and the code of docs/gateway.md run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import httpx

from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server.local import free_port
from tests.docs.snippets import blocks
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"


@contextmanager
def running(command: str, url: str, exit_status: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A command of the page; waits until it answers, ends it as Ctrl-C does, and compares its exit
    status."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with own_process(
        f"exec {command}", shell=True, env=os.environ | {"PATH": programs}, stderr=subprocess.PIPE
    ) as process:
        wait_until_answers(f"{url}/health", process)
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == exit_status


def printed_by(command: str, codes: Iterable[str], engine_url: str) -> str:
    """What a page's Python prints, with its gateway before an engine and on free ports."""
    port, control_port = free_port(), free_port()
    command = command.replace("http://127.0.0.1:8000", engine_url)
    command = command.replace("--port 9000", f"--port {port} --control-port {control_port}")
    printed = StringIO()
    with running(command, f"http://127.0.0.1:{port}"), redirect_stdout(printed):
        names: dict[str, object] = {}
        for code in codes:
            code = code.replace(":9000", f":{port}").replace(":9001", f":{control_port}")
            exec(compile(code, "the page", "exec"), names)
    return printed.getvalue()


def test_the_page(engine: StubEngine) -> None:
    """A gateway as on the page, the official client through it, and a window that saw it."""
    single, pools = (block.code.strip() for block in blocks(PAGE) if block.language == "sh")
    codes = [block.code for block in blocks(PAGE) if block.language == "python"]
    for command in (single, pools):
        assert command.startswith("jaxserve gateway --engine vllm=http://127.0.0.1:8000")
    answer, window = printed_by(single, codes, engine.url).split("t2 ")
    assert answer == "t0 t1 "
    window, offered, turned = window.strip().splitlines()
    assert "'batch_cap': 'approximated'" in offered and turned == "leased 8.0"
    arrivals, ttft_s, _, attainment = window.split()
    assert (arrivals, attainment) == ("1", "1.0") and float(ttft_s) > 0.0
    assert engine.seen[-1].headers["user-agent"].startswith("OpenAI")


def test_pools_of_the_page(engine: StubEngine) -> None:
    """Three engines in two pools, of which only the second one's is there."""
    (command,) = (block.code.strip() for block in blocks(PAGE) if "tier=2" in block.code)
    port, control_port = free_port(), free_port()
    command = command.replace("http://127.0.0.1:8002", engine.url)
    for gone in ("8000", "8001"):
        command = command.replace(f"127.0.0.1:{gone}", f"127.0.0.1:{free_port()}")
    command += f" --port {port} --control-port {control_port}"
    url = f"http://127.0.0.1:{port}"
    with running(command, url):
        state = httpx.get(f"http://127.0.0.1:{control_port}/control/state").json()
        assert list(state["pools"]) == ["tier0", "tier2"]
        asked = {"model": "tiny", "prompt": "x"}
        answer = httpx.post(f"{url}/v1/completions", json=asked, headers={"x-pool": "tier2"})
        assert answer.status_code == 200
        assert httpx.post(f"{url}/v1/completions", json=asked).status_code == 503
