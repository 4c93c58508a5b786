"""Servers of this machine end with whoever started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from server.local import LocalServer
from tests.patience import alive, wait_until

_APP = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})
"""
"""The smallest that answers /health."""
_WORKERS = ("--workers", "2")


def start(folder: Path, *arguments: str) -> LocalServer:
    (folder / "smallest.py").write_text(_APP)
    chosen = {"app": "smallest:app", "variables": {"PYTHONPATH": str(folder)}}
    return LocalServer(folder, arguments=("--lifespan", "off", *arguments), **chosen).wait()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(alive(each.pid) for each in processes), "the end of all")


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.parametrize("arguments", [(), _WORKERS])
def test_it_ends_with_a_process_that_is_killed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Nobody is left to stop it, or its workers."""
    program = (
        "import sys; from pathlib import Path; from tests.server.test_local import start; "
        "server = start(Path(sys.argv[1]), *sys.argv[2:]); "
        "print(server.process.pid, flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes) as starter:
        assert starter.stdout is not None
        started = family(int(starter.stdout.readline()))
        assert len(started) > len(arguments)
        starter.kill()
    wait_until_gone(started)


@pytest.mark.parametrize("end", [LocalServer.stop, LocalServer.kill])
def test_its_workers_end_with_it(end, tmp_path: Path) -> None:
    """However it is ended, and a second time ends nothing."""
    server = start(tmp_path, *_WORKERS)
    started = family(server.process.pid)
    assert len(started) > 2
    end(server)
    wait_until_gone(started)
    assert server.process.returncode is not None
    server.stop()
