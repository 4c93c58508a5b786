"""Episodes of the environment, played by programs that its tests share."""

from __future__ import annotations

import functools
from typing import Any

import chex
import jax
import numpy as np

import jaxserve
from jaxserve.env import EnvState, ServeEnv
from jaxserve.spaces import ACTION_BOUNDS, KNOBS
from jaxserve.types import ServeAction, TimeStep

HORIZON = 200
WINDOWS = 220  # a few past the end; one length, so that one program serves all tests
GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")


@functools.cache
def environment(task: str, rate_scale: float = 1.0) -> ServeEnv:
    """A task in episodes of HORIZON windows, with its requests scaled."""
    scaled = {"rate_scale": rate_scale} if rate_scale != 1.0 else {}  # which no recording is
    return jaxserve.make(task, overrides={"horizon": HORIZON} | scaled)


def random_actions(seed: int, held: int = 1) -> ServeAction:
    """Actions [WINDOWS], uniform over the whole ranges, each held for some windows."""
    generator = np.random.default_rng(seed)

    def draw(knob: str) -> np.ndarray:
        bound = ACTION_BOUNDS[knob]
        count = -(-WINDOWS // held)
        if bound.integer:
            values = generator.integers(int(bound.low), int(bound.high) + 1, count, np.int32)
        else:
            values = generator.uniform(bound.low, bound.high, count).astype(np.float32)
        return np.repeat(values, held)[:WINDOWS]

    return ServeAction(**{knob: draw(knob) for knob in KNOBS})


def constant_actions(**knobs: float) -> ServeAction:
    """One action, held for all windows."""
    action = jaxserve.make_action(**knobs)
    return jax.tree.map(lambda value: np.full(WINDOWS, value), action)


def play(env: ServeEnv, key: jax.Array, actions: ServeAction) -> tuple[EnvState, TimeStep]:
    """An episode: the state at its end, and its TimeSteps [T, ...]."""
    return jax.lax.scan(env.step, env.reset(key)[0], actions)


play_alone = jax.jit(play)
play_batch = jax.jit(jax.vmap(play, (None, 0, 0)))
play_stacked = jax.jit(jax.vmap(play))
play_nested = jax.jit(jax.vmap(jax.vmap(play, (None, 0, 0)), (None, 0, 0)))
reset = jax.jit(ServeEnv.reset)
step = jax.jit(chex.assert_max_traces(ServeEnv.step, n=1))  # in all tests together


def leaves(tree: Any) -> list[tuple[str, np.ndarray]]:
    """Named leaves; typed keys as their words."""

    def plain(leaf: Any) -> np.ndarray:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return [
        (jax.tree_util.keystr(path), plain(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def assert_identical(first: Any, second: Any) -> None:
    """Bit by bit."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for (name, one), (_, other) in zip(leaves(first), leaves(second), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def part(tree: Any, *index: int) -> Any:
    """One episode of a batch."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stacked(parts: list[Any]) -> Any:
    """Episodes as a batch."""
    return jax.tree.map(lambda *leaf: np.stack(leaf), *parts)
