"""The GPU benchmark on a machine without a GPU."""

import subprocess
import sys

import jax
import pytest


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="this machine has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    """One sentence and exit code 2."""
    command = [sys.executable, "-m", "benchmarks.gpu"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300.0)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr == (
        "benchmarks: JAX runs on cpu here; this needs a CUDA GPU and pip install 'jax[cuda13]'\n"
    )
