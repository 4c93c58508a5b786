"""Flags of one release of jaxlib."""

import os

import jax
import jax.numpy as jnp
import pytest
from jaxlib import version as jaxlib_version

from jaxserve.runtime.xla_flags import avoid_hanging_reductions, set_flag
from server.sessions import programs
from server.sessions.episodes import parse_episode

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


def _compiled_whole(compiled: jax.stages.Compiled) -> bool:
    """Whether a loop of the program is one function; XLA marks the call of it."""
    return "xla_cpu_small_call" in (compiled.as_text() or "")


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
