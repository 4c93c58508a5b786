"""Examples that need a trainer's packages, as a user would start them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integrations.environments import ROOT
from tests.integrations.trainer_environment import trainer_python

TRAINING = ROOT / "examples" / "training"


def run(name: str, *arguments: str, folder: Path) -> str:
    """What an example prints when it is started in a folder."""
    variables = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [trainer_python(), TRAINING / f"{name}.py", *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout
