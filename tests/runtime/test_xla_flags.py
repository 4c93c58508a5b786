"""The flag against a defect of one release of jaxlib."""

import os

import pytest
from jaxlib import version as jaxlib_version

from jaxserve.runtime.xla_flags import avoid_hanging_reductions


def test_only_for_the_release_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added once, after what the user has set; never where XLA may not know it."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    monkeypatch.setattr(jaxlib_version, "__version__", "0.11.0")
    avoid_hanging_reductions()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=there"
    monkeypatch.setattr(jaxlib_version, "__version__", "0.10.2")
    for _ in range(2):
        avoid_hanging_reductions()
        assert (
            os.environ["XLA_FLAGS"] == "--xla_dump_to=there --xla_cpu_experimental_ynn_fusion_type="
        )
