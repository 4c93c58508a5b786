"""One episode, however it is played: again, in a batch, without jit, resumed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.types import TimeStep
from tests.env_episodes import (
    GRADED,
    assert_identical,
    constant_actions,
    environment,
    leaves,
    part,
    play_alone,
    play_batch,
    play_nested,
    play_stacked,
    random_actions,
    reset,
    stacked,
    step,
)


def test_the_same_key_is_the_same_episode_bit_by_bit() -> None:
    """Same program, same key, same actions: identical, and untouched by what ran in between."""
    env, actions = environment("adversarial_multitenant"), random_actions(5)
    first = play_alone(env, episode_key(5), actions)
    play_alone(env, episode_key(6), actions)
    assert_identical(first, play_alone(env, episode_key(5), actions))


REQUESTS = tuple(
    f".metrics.{name}"
    for name in (
        "completed",
        "good",
        "rejected",
        "waiting",
        "running",
        "overdue",
        "on_track",
        "first_tokens",
        "ttft_met",
        "ttft_exceeded",
    )
)
"""Figures of a window that count requests, [T, F] by class or [T, E] by edge."""

TOKENS = (
    ".metrics.tokens",
    ".metrics.itl_s",
    ".metrics.p50_itl_s",
    ".metrics.p99_itl_s",
    ".observation.throughput_tps",
    ".observation.mean_itl_ms",
    ".observation.p50_itl_ms",
)
"""Figures of a window that count what running requests say, or how long that takes, [T]."""
COST = ".observation.estimated_cost_per_1k"
"""Of tokens inside their objectives, of which there may be next to none."""


def assert_close(env: ServeEnv, first: TimeStep, second: TimeStep) -> None:
    """Equal arrivals and events; floats within 3e-4 of their size.

    The size of a figure is the largest of itself, the mean over the episode (of the largest class)
    and, but for seconds and dollars, one. A full KV pool is known to 0.03 tokens in float32, so a
    request in a few thousand is admitted a tick later; quantiles over the few first tokens of a
    window show that ten times larger. The counts that they come from have the size of the window's.

    A line rounds in every tick by what float32 knows of it, and keeps the sum while it stands: a
    quarter of a token after 450 ticks with 20 prompts of 6,144 tokens. That is nothing of such a
    prompt and 1/300 of one of 72 tokens, where these are the next in line. So requests are compared
    to at least the number of their own prompts in a twentieth of the longest line's work so far,
    and tokens to what that many running requests say. Costs of good tokens are compared as what
    they are the inverse of, a part of all tokens.
    """
    prompt_tokens = np.float64(env.workload.classes.prompt_tokens)
    work = np.maximum.accumulate(np.float64(first.metrics.waiting) @ prompt_tokens)
    for name in ("arrivals", "regime", "tier", "prefill_gpus", "oom"):
        one, other = getattr(first.metrics, name), getattr(second.metrics, name)
        np.testing.assert_array_equal(one, other, err_msg=name)
    for (name, one), (_, other) in zip(leaves(first), leaves(second), strict=True):
        tolerance = 1e-3 if "ttft_ms" in name else 3e-4
        one, other = np.float64(one), np.float64(other)
        size = np.maximum(np.abs(one), np.abs(one).mean(axis=0).max())
        if not name.endswith(("_s", "_usd", "cost_so_far", "cost_per_1k")):
            size = np.maximum(size, 1.0)
        if name in REQUESTS:
            by_class = one.shape[1] == len(prompt_tokens)
            prompt = prompt_tokens if by_class else prompt_tokens.min()
            size = np.maximum(size, 0.05 * work[:, None] / prompt)
        if name == COST:
            one, other = (
                1e3 * np.float64(way.metrics.cost_usd) / np.maximum(cost, 1e-9)
                for way, cost in ((first, one), (second, other))
            )
            size = np.float64(first.metrics.tokens)
        if name in TOKENS or name == COST:
            running = np.float64(first.metrics.running)
            compared = np.maximum(running, 0.05 * work[:, None] / prompt_tokens).sum(axis=1)
            size = np.maximum(size, size / (1.0 + running.sum(axis=1)) * compared)
        worst = np.max(np.abs(one - other) / np.maximum(size, 1e-9))
        assert worst <= tolerance, f"{name} differs by {worst:.1e}"


SETTINGS: list[dict[str, float]] = [
    {},
    {"batch_cap": 1},
    {"batch_cap": 16, "priority_routing": 1},
    {"batch_cap": 64},
    {"batch_cap": 64, "kv_budget_fraction": 0.3},
    {"batch_cap": 128, "quantization_tier": 1, "prefill_decode_split": 1, "priority_routing": 1},
    {"batch_cap": 256, "speculation_depth": 3},
    {"batch_cap": 512},
]


@pytest.mark.slow
@pytest.mark.parametrize("task", GRADED)
def test_alone_and_in_a_batch_are_the_same_episode(task: str) -> None:
    """Jitted alone, vmapped by 8 and by 2 x 3: equal events, floats within 3e-4."""
    env, keys = environment(task), episode_keys(8, "validation")
    actions = [constant_actions(**knobs) for knobs in SETTINGS]
    batch = play_batch(env, keys, stacked(actions))[1]
    nested = play_nested(
        env, keys[:6].reshape(2, 3), stacked([stacked(actions[:3]), stacked(actions[3:6])])
    )[1]
    for i in range(8):
        alone = play_alone(env, keys[i], actions[i])[1]
        assert_close(env, alone, part(batch, i))
        if i < 6:
            assert_close(env, alone, part(nested, i // 3, i % 3))


@pytest.mark.slow
def test_without_jit_is_the_same_episode() -> None:
    """Operation by operation the windows come out as they do compiled."""
    env, actions = environment("adversarial_multitenant"), random_actions(9)
    state, _ = env.reset(episode_key(9))
    timesteps = []
    for window in range(6):
        state, timestep = env.step(state, part(actions, window))
        timesteps.append(timestep)
    compiled = play_alone(env, episode_key(9), actions)[1]
    assert_close(env, jax.tree.map(lambda leaf: leaf[:6], compiled), stacked(timesteps))


@pytest.mark.slow
def test_tasks_and_hardware_share_a_batch() -> None:
    """Stacked environments play as each does by itself."""
    envs = [
        environment("static_workload"),
        environment("bursty_workload"),
        jaxserve.make("static_workload", hardware="h100-sxm-80gb"),
        jaxserve.make("bursty_workload", hardware="l40s-48gb"),
    ]
    keys, actions = episode_keys(4), [constant_actions(batch_cap=48)] * 4
    batch = play_stacked(jaxserve.stack(envs), keys, stacked(actions))[1]
    for i, env in enumerate(envs):
        assert_close(env, play_alone(env, keys[i], actions[i])[1], part(batch, i))


@pytest.mark.slow
def test_a_saved_state_resumes_bit_by_bit() -> None:
    """A state that went through NumPy arrays, its key included, continues the same episode."""
    env, actions = environment("adversarial_multitenant"), random_actions(10, held=5)
    state, _ = reset(env, episode_key(10))
    for window in range(30):
        state, _ = step(env, state, part(actions, window))
    saved = [array.copy() for _, array in leaves(state)]

    def restored(leaf: jax.Array, array: np.ndarray) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(array))
        return jnp.asarray(array)

    blank, structure = jax.tree.flatten(reset(env, episode_key(99))[0])
    again = structure.unflatten(map(restored, blank, saved))
    for window in range(30, 60):
        state, timestep = step(env, state, part(actions, window))
        again, same = step(env, again, part(actions, window))
        assert_identical(timestep, same)
    assert_identical(state, again)
