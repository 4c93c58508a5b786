"""The GPU benchmark: it says when there is none, and its table has what was measured."""

import subprocess
import sys

import jax
import pytest

from benchmarks import gpu


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


def test_every_batch_size_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's and the learner's speed at each number of environments, on all devices."""
    measured: list[tuple[str, int]] = []

    def play(task: str, batch: int, devices: int) -> tuple[float, float]:
        assert devices == jax.device_count()
        measured.append((task, batch))
        return 1000.0 * batch, 1.5

    def learn(task: str, batch: int) -> tuple[float, float]:
        return 10.0 * batch, 2.5

    monkeypatch.setattr(gpu, "batched_windows_per_s", play)
    monkeypatch.setattr(gpu, "ppo_windows_per_s", learn)
    rows = gpu.speeds_page((8, 16)).splitlines()[-2:]
    assert rows == ["| 8 | 8,000 | 1.5 s | 80 | 2.5 s |", "| 16 | 16,000 | 1.5 s | 160 | 2.5 s |"]
    assert measured == [(gpu.TASK, 8), (gpu.TASK, 16)]
