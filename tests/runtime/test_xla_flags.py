"""Flags of one release of jaxlib."""

import os

import pytest
from jaxlib import version as jaxlib_version

from jaxserve.runtime.xla_flags import avoid_hanging_reductions, set_flag

GIVEN = "--xla_dump_to=there"


def test_only_for_the_release_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added once, after what the user has set; never where XLA may not know them."""
    monkeypatch.setenv("XLA_FLAGS", GIVEN)
    monkeypatch.setattr(jaxlib_version, "__version__", "0.11.0")
    avoid_hanging_reductions()
    assert os.environ["XLA_FLAGS"] == GIVEN
    monkeypatch.setattr(jaxlib_version, "__version__", "0.10.2")
    for _ in range(2):
        avoid_hanging_reductions()
        assert os.environ["XLA_FLAGS"] == f"{GIVEN} --xla_cpu_experimental_ynn_fusion_type="


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that is set is not set again."""
    monkeypatch.setattr(jaxlib_version, "__version__", "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    set_flag("--xla_backend_optimization_level", "0")
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=2"
