"""A real vLLM that serves a model of a test, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from server.local import free_port

_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def vllm_server(
    python: Path, model: Path, options: Sequence[str], settings: Mapping[str, str]
) -> Iterator[str]:
    """The address of a server that is up; it ends with the block.

    Args:
      python: of vLLM's environment.
      model: its folder; the name is ``tiny``.
      options: of ``vllm serve``.
      settings: environment variables.
    """
    port = free_port()
    command = [python.with_name("vllm"), "serve", model, "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *options]
    log = model.parent / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command,
            env=os.environ | _SETTINGS | settings,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-5000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        # A server that is told to end may leave engines behind.
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(server.pid, end)
                server.wait(15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
