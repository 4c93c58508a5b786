"""The compilation cache goes where the environment says, and never stands in the way."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from jaxserve.runtime.compilation_cache import enable_compilation_cache


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch):
    """No setting of ours outlives a test."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By default programs are kept in the user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert enable_compilation_cache() == tmp_path / "jaxserve"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "jaxserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert enable_compilation_cache() == tmp_path / ".cache" / "jaxserve"


def test_jax_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory chosen for JAX is left alone."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    assert enable_compilation_cache() == tmp_path / "own"
    assert jax.config.jax_compilation_cache_dir == before


def test_no_place_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory that cannot be made is no error."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert enable_compilation_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    assert enable_compilation_cache() is None
