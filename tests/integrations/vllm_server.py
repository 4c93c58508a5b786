"""A real vLLM that serves a model of a test, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jaxserve.runtime.child_processes import child_server
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
    url, settings = f"http://127.0.0.1:{port}", {**os.environ, **_SETTINGS, **settings}
    with log.open("w") as out, ExitStack() as end:
        server = child_server(
            command, f"{url}/health", start_s=600.0, env=settings, stdout=out, stderr=out
        )
        try:
            end.enter_context(server)
        except RuntimeError as error:
            raise AssertionError(log.read_text()[-5000:]) from error
        yield url
