"""XLA's flags of one release of jaxlib, and the folder of compiled programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jaxlib import version as jaxlib_version

from jaxserve.runtime.jax_setup import enable_compilation_cache, set_flag, set_xla_flags
from server.sessions import programs
from server.sessions.episodes import parse_episode

GIVEN = "--xla_dump_to=there"


def test_only_for_the_release_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added once, after what the user has set; never where XLA may not know them."""
    monkeypatch.setenv("XLA_FLAGS", GIVEN)
    monkeypatch.setattr(jaxlib_version, "__version__", "0.11.0")
    set_xla_flags()
    assert os.environ["XLA_FLAGS"] == GIVEN
    monkeypatch.setattr(jaxlib_version, "__version__", "0.10.2")
    for _ in range(2):
        set_xla_flags()
        assert os.environ["XLA_FLAGS"].startswith(
            f"{GIVEN} --xla_cpu_experimental_ynn_fusion_type= "
        )


def test_a_user_may_refuse_the_flags() -> None:
    """``JAXSERVE_XLA_FLAGS=0`` leaves the environment as it is; by default both flags are set."""
    code = "import os, jaxserve; print(os.environ.get('XLA_FLAGS', 'none'))"
    printed = {}
    for chosen in ("0", ""):
        variables = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=variables | {"JAXSERVE_XLA_FLAGS": chosen},
            capture_output=True,
            text=True,
            check=True,
        )
        printed[chosen] = done.stdout.strip()
    assert printed["0"] == "none"
    if jaxlib_version.__version__.startswith("0.10."):
        assert "ynn_fusion_type" in printed[""] and "small_while_loop" in printed[""]


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that is set is not set again."""
    monkeypatch.setattr(jaxlib_version, "__version__", "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    set_flag("--xla_backend_optimization_level", "0")
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=2"


def _compiled_whole(compiled: jax.stages.Compiled) -> bool:
    """Whether a loop of the program is one function; XLA marks the call of it."""
    return "xla_cpu_small_call" in (compiled.as_text() or "")


@pytest.mark.slow
@pytest.mark.skipif(
    not jaxlib_version.__version__.startswith("0.10."), reason="the flag is of jaxlib 0.10"
)
def test_loops_of_one_environment_are_compiled_whole() -> None:
    """XLA has read the flag: in the program of the server's steps too, but not where a loop goes
    over the arrays of many environments."""

    @jax.jit
    def loop(start: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 10, lambda _, x: 2.0 * jnp.sin(x), start)

    assert _compiled_whole(loop.lower(jnp.ones(2_000)).compile())
    assert not _compiled_whole(loop.lower(jnp.ones(40_000)).compile())
    simulator = programs.simulator(parse_episode("static_workload", 0, "train", None))
    vectors = simulator.layout.env.shape, simulator.layout.state.shape
    action = jax.ShapeDtypeStruct((6,), jnp.float32)
    step = programs._step.lower(simulator.layout, *vectors, action)
    assert _compiled_whole(step.compile())


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
