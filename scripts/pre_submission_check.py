"""Checks of a deployment, in one table.

python scripts/pre_submission_check.py --skip-docker
python scripts/pre_submission_check.py --space-url https://USER-jaxserve.hf.space
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxserve.client import ServeClient  # noqa: E402
from server.local import LocalServer  # noqa: E402

Check = Callable[[], str]
_START_LIMIT_S = 30.0
"""Processor time until a server is healthy; a busy machine needs as much of it as an idle one."""
_IMAGE_LIMIT_MB = 1000


class Skipped(Exception):
    """Error of a check that is not requested or cannot run here."""


def main() -> int:
    """Runs all checks; returns 1 if one failed."""
    chosen = _parser().parse_args()
    table = Table("check", "result", "detail")
    failed = False
    with tempfile.TemporaryDirectory() as folder, LocalServer(Path(folder)) as server:
        for name, check in _checks(chosen, server, Path(folder)).items():
            started = time.monotonic()
            try:
                result, detail = "[green]pass[/]", check()
            except Skipped as reason:
                result, detail = "[yellow]skip[/]", str(reason)
            except Exception as error:
                failed, result = True, "[red]FAIL[/]"
                detail = f"{type(error).__name__}: {error}"[-400:]
            table.add_row(name, result, f"{detail} ({time.monotonic() - started:.1f} s)")
    Console().print(table)
    return int(failed)


def _checks(chosen: argparse.Namespace, server: LocalServer, folder: Path) -> dict[str, Check]:
    return {
        "tests": lambda: _run(
            [
                sys.executable,
                "-m",
                "pytest",
                "tests/server/sessions/test_store.py",
                "tests/client",
            ]
        ),
        "openenv validate": _validate_package,
        "openenv validate --url": lambda: _run(["openenv", "validate", "--url", server.url]),
        "walk": lambda: _walk(server.url),
        "start": lambda: _start(folder),
        "baseline": lambda: _baseline(server.url),
        "openai baseline": lambda: _openai_baseline(chosen, server.url),
        "docker build": lambda: _docker(chosen.skip_docker),
        "space": lambda: _space(chosen.space_url),
    }


def _run(command: list[str]) -> str:
    """Last line of a command's output."""
    beside = Path(sys.executable).parent / command[0]
    if beside.exists():
        command = [str(beside), *command[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode != 0:
        raise RuntimeError("\n".join(lines[-5:]))
    return lines[-1] if lines else "no output"


def _validate_package() -> str:
    """Validates a copy of the deployed files, since validators read a whole folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("openenv.yaml", "pyproject.toml", "uv.lock", "Dockerfile", "README.md"):
            shutil.copy(ROOT / name, folder)
        for name in ("server", "validation"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        return _run(["openenv", "validate", "--level", "static", folder])


def _walk(url: str) -> str:
    """Plays as a first user does: tasks, reset, step, state, grade, by HTTP and by the client."""
    with httpx.Client(base_url=url, timeout=120.0) as http:
        begun = http.post("/reset", json={}).raise_for_status().json()
        http.post("/step", json={"action": {"batch_size": 64}}).raise_for_status()
        state = http.get("/state").raise_for_status().json()
        if (state["step_count"], state["session_id"]) != (1, begun["session_id"]):
            raise RuntimeError(f"unexpected state {state}")
        for path in ("/tasks", "/info", "/runtime", "/schema", "/metadata", "/openapi.json"):
            http.get(path).raise_for_status()
        http.get("/", follow_redirects=True).raise_for_status()
    with ServeClient(url) as env:
        env.reset(task_id=3, seed=42)
        done = False
        while not done:
            _, _, done, info = env.step({"batch_cap": 64})
        return f"{info['step']} windows, score {env.grade()['score']:.3f}"


def _start(folder: Path) -> str:
    started, used = time.monotonic(), os.times()
    with LocalServer(folder):
        seconds = time.monotonic() - started
    ended = os.times()
    computed_s = ended.children_user + ended.children_system
    computed_s -= used.children_user + used.children_system
    found = f"healthy after {seconds:.1f} s and {computed_s:.1f} s of processor time"
    if computed_s > _START_LIMIT_S:
        raise RuntimeError(f"{found}; allowed are {_START_LIMIT_S:g} s of it")
    return found


def _baseline(url: str) -> str:
    answer = httpx.get(f"{url}/baseline", timeout=600.0).raise_for_status().json()
    scores = {task: result["score"] for task, result in answer["baseline"].items()}
    return json.dumps(scores)


def _openai_baseline(chosen: argparse.Namespace, url: str) -> str:
    if not chosen.run_openai_baseline:
        raise Skipped("not asked for: --run-openai-baseline")
    options = ["--mode", "openai", "--runtime", chosen.baseline_runtime, "--base-url", url]
    options += ["--model", chosen.model] if chosen.model else []
    return _run([sys.executable, "-m", "server.players.baseline_inference", *options])


def _docker(skip: bool) -> str:
    if skip:
        raise Skipped("not asked for: --skip-docker")
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        raise Skipped("no Docker engine here")
    _run([docker, "build", "-t", "jaxserve-check", "."])
    size = int(_run([docker, "image", "inspect", "jaxserve-check", "--format", "{{.Size}}"]))
    if size > _IMAGE_LIMIT_MB * 10**6:
        raise RuntimeError(f"the image has {size / 1e6:.0f} MB; allowed are {_IMAGE_LIMIT_MB} MB")
    return f"{size / 1e6:.0f} MB"


def _space(url: str | None) -> str:
    if url is None:
        raise Skipped("not asked for: --space-url")
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.post(f"{url.rstrip('/')}/reset", json={}, headers=headers, timeout=30.0)
    answer.raise_for_status()
    return _run(["openenv", "validate", "--url", url])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--space-url", help="a deployed server to check as well")
    parser.add_argument("--skip-docker", action="store_true", help="do not build the image")
    parser.add_argument(
        "--run-openai-baseline",
        action="store_true",
        help="let a language model play",
    )
    parser.add_argument(
        "--baseline-runtime",
        choices=["in-process", "http"],
        default="in-process",
        help="where it plays: here, or on the server that is checked",
    )
    parser.add_argument("--model", help="the language model; default is MODEL_NAME")
    return parser


if __name__ == "__main__":
    sys.exit(main())
