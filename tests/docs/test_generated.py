"""The generated parts of the documentation are those that the code gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_docs.py"


def test_nothing_is_out_of_date() -> None:
    """``python scripts/generate_docs.py`` would change nothing."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
