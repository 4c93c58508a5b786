"""Environments beside that of the tests, for programs whose packages do not go with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")


def made(
    name: str,
    packages: Sequence[str],
    options: Sequence[str | Path] = (),
    recipe: str = "",
    finish: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Python of the environment ``build/NAME``, which is kept there for the next run.

    Where it cannot be made, the test that asks is skipped.

    Args:
      packages: what is installed.
      options: of ``uv pip install``, and what is installed in any version.
      recipe: what else makes it; where that or a package changes, it is made anew.
      finish: done in its ``site-packages`` at the end.
    """
    if not UV.exists():
        pytest.skip(f"environments are made by uv, which is not beside {sys.executable}")
    folder = ROOT / "build" / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join([*packages, recipe])
    if not stamp.exists() or stamp.read_text() != wanted:
        # PyPI's torch comes with CUDA; a folder of wheels may have one without.
        links = os.environ.get("PIP_FIND_LINKS")
        torch = ["--find-links", links] if links else ["--torch-backend", "cpu"]
        _run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        install = [UV, "pip", "install", "--quiet", "--python", python, *torch]
        _run([*install, *options, *packages])
        finish(next(folder.glob("lib/python3*/site-packages")))
        stamp.write_text(wanted)
    return python


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        pytest.skip(f"{command[-1]} cannot be installed here: {lines[0]}")
