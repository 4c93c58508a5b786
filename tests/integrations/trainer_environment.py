"""torch and TRL in an environment of its own, which sees the packages of the tests as well."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests.integrations.environments import made

TRL = "1.16.0"
"""TRL that the slow tests run."""


def trainer_python() -> Path:
    """Python of the environment; where it cannot be made, the test that asks is skipped."""
    if sys.platform != "linux":
        pytest.skip("the trainers' environment is made for Linux only")
    ours = sysconfig.get_path("purelib")
    return made(
        "trainer_env",
        [f"trl=={TRL}"],
        recipe=ours,
        finish=lambda packages: _link(packages, ours),
    )


def _link(packages: Path, ours: str) -> None:
    """The packages of the tests come after its own."""
    (packages / "tests_environment.pth").write_text(f"{ours}\n")
