"""A client that a generator makes of ``/openapi.json`` plays an episode."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from server.local import LocalServer
from tests.integrations.environments import made

pytestmark = pytest.mark.slow
GENERATOR = "openapi-python-client==0.29.1"


def test_a_generated_client_plays_an_episode(server: LocalServer, tmp_path: Path) -> None:
    """The generator has nothing to say, and every answer is what its client expects."""
    python = made("openapi_env", [GENERATOR])
    # It formats what it writes by a program that is beside it.
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    # By itself the generator asks a server for five seconds only.
    schema = tmp_path / "openapi.json"
    schema.write_bytes(httpx.get(f"{server.url}/openapi.json", timeout=600.0).content)
    generate = [
        python.parent / "openapi-python-client",
        "generate",
        *("--path", schema),
        *("--meta", "none", "--output-path", "generated", "--fail-on-warning"),
    ]
    done = subprocess.run(generate, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    played = subprocess.run(
        [python, Path(__file__).with_name("generated_client.py"), server.url],
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stderr
