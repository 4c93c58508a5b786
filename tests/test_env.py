"""The environment's contract: shapes, bounds, determinism, resuming, batching."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.env import FEATURE_NAMES, EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.sim.traffic.workload import draw_arrivals
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS, OBSERVATION_BOUNDS
from jaxserve.tasks.spec import load_task, task_names
from jaxserve.types import ServeAction, TimeStep

HORIZON = 200
WINDOWS = 220  # a few past the end; one length, so that one program serves all tests
GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")


@functools.cache
def environment(task: str, rate_scale: float = 1.0) -> ServeEnv:
    """A task, with its requests scaled."""
    overrides = {"rate_scale": rate_scale} if rate_scale != 1.0 else None
    return jaxserve.make(task, overrides=overrides)


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


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def requests(env: ServeEnv, key: jax.Array) -> jax.Array:
    """Arrivals of an episode, float32[T, K, F]."""

    def window(state, index):
        state, arrivals = draw_arrivals(env.workload, state, index, env.ticks, env.window_s)
        return state, arrivals.counts

    return jax.lax.scan(window, env.reset(key)[0].workload, np.arange(HORIZON))[1]


def assert_in_bounds(timestep: TimeStep) -> None:
    """Every leaf finite, every observation inside its bound."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(timestep):
        assert np.isfinite(np.asarray(leaf)).all(), jax.tree_util.keystr(path)
    for name, bound in OBSERVATION_BOUNDS.items():
        entry = np.asarray(getattr(timestep.observation, name))
        assert entry.dtype == np.float32
        assert np.all((entry >= bound.low) & (entry <= bound.high)), name


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


@pytest.mark.parametrize("task", task_names())
def test_random_actions_keep_the_contract(task: str) -> None:
    """Finite and in bounds in every window; never terminated; truncated exactly at the horizon."""
    env = environment(task)
    _, timesteps = play_alone(env, episode_key(1), random_actions(1))
    assert int(env.horizon) == HORIZON
    assert_in_bounds(timesteps)
    assert not np.asarray(timesteps.terminated).any()
    ends = np.arange(1, WINDOWS + 1) >= HORIZON
    np.testing.assert_array_equal(timesteps.truncated, ends)
    np.testing.assert_array_equal(timesteps.observation.step_index, np.arange(1, WINDOWS + 1))
    _, first = reset(env, episode_key(1))
    assert_in_bounds(first)
    assert float(first.reward) == 0.0
    assert not bool(first.truncated)


@pytest.mark.parametrize("task", GRADED)
def test_ten_times_the_load_stays_in_bounds(task: str) -> None:
    """Overload fills queues, not observations with infinities."""
    env = environment(task, rate_scale=10.0)
    _, timesteps = play_alone(env, episode_key(2), random_actions(2))
    assert_in_bounds(timesteps)
    assert np.asarray(timesteps.metrics.rejected).sum() > 0.0


def test_requests_are_conserved() -> None:
    """What arrived is completed, rejected, lost, waiting or running, whatever the knobs do."""
    for task in GRADED:
        _, timesteps = play_alone(environment(task), episode_key(3), random_actions(3))
        metrics = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timesteps.metrics)
        out = (metrics.completed + metrics.rejected + metrics.lost).cumsum(axis=0)
        inside = metrics.waiting + metrics.running
        arrived = metrics.arrivals.cumsum(axis=0)
        np.testing.assert_allclose(out + inside, arrived, rtol=1e-3, atol=0.05)


def test_reward_is_the_sum_of_its_parts_and_goodput_is_bounded() -> None:
    """Nothing earns more than what arrived is worth."""
    for task in GRADED:
        env = environment(task)
        _, timesteps = play_alone(env, episode_key(4), random_actions(4))
        parts = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timesteps.parts)
        total = parts.throughput + parts.latency + parts.slo + parts.cost + parts.memory
        np.testing.assert_allclose(timesteps.reward, total, atol=1e-5)
        value = np.asarray(timesteps.metrics.arrivals, np.float64) @ np.asarray(env.reward.value)
        offered = value.sum() / float(env.reward.expected_value)
        assert 0.0 <= (parts.throughput + parts.slo).sum() <= offered * (1.0 + 1e-4)


def test_states_keep_their_types_and_programs_are_compiled_once() -> None:
    """Reset and step agree in structure, shape, dtype and weakness, across tasks and seeds."""
    signatures = set()
    for task in GRADED:
        env = environment(task)
        state, timestep = reset(env, episode_key(0))
        for _ in range(3):
            signatures.add(str((jax.tree.structure((state, timestep)), types((state, timestep)))))
            state, timestep = step(env, state, jaxserve.make_action())
        step(env, state, jaxserve.make_action(batch_cap=64, quantization_tier=1))
    assert len(signatures) == 1


def types(tree: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype and weakness of every leaf."""
    return [
        (leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False))
        for leaf in jax.tree.leaves(tree)
    ]


def test_an_environments_state_is_small() -> None:
    """Thousands of episodes fit: below 16 KB each."""
    for task in task_names():
        state, _ = reset(environment(task), episode_key(0))
        assert sum(leaf.nbytes for _, leaf in leaves(state)) < 16 * 1024


def test_the_same_key_is_the_same_episode_bit_by_bit() -> None:
    """Same program, same key, same actions: identical, and untouched by what ran in between."""
    env, actions = environment("adversarial_multitenant"), random_actions(5)
    first = play_alone(env, episode_key(5), actions)
    play_alone(env, episode_key(6), actions)
    assert_identical(first, play_alone(env, episode_key(5), actions))


def test_fifty_seeds_are_fifty_workloads() -> None:
    """No two seeds of a split, nor the same seed of two splits, bring the same requests."""
    for task in GRADED:
        traffic = [
            np.asarray(requests(environment(task), episode_keys(50, split)))
            for split in ("train", "validation", "test")
        ]
        assert len({episode.tobytes() for split in traffic for episode in split}) == 150


def test_traffic_does_not_depend_on_actions() -> None:
    """Two policies on one key face the same requests."""
    env = environment("adversarial_multitenant")
    runs = [play_alone(env, episode_key(7), random_actions(s))[1] for s in (7, 8)]
    np.testing.assert_array_equal(runs[0].metrics.arrivals, runs[1].metrics.arrivals)
    np.testing.assert_array_equal(runs[0].metrics.regime, runs[1].metrics.regime)
    assert not np.array_equal(runs[0].reward, runs[1].reward)


REQUESTS = tuple(
    f".metrics.{name}"
    for name in (
        "completed",
        "good",
        "rejected",
        "waiting",
        "running",
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
    """Equal arrivals and events; floats within 1e-4 of their size.

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
        tolerance = 1e-3 if "ttft_ms" in name else 1e-4
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


@pytest.mark.parametrize("task", GRADED)
def test_alone_and_in_a_batch_are_the_same_episode(task: str) -> None:
    """Jitted alone, vmapped by 8 and by 2 x 3: equal events, floats within 1e-4."""
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


def test_a_window_past_the_end_is_an_ordinary_window() -> None:
    """Stepping on after truncation continues the traffic; it neither fails nor starts anew."""
    env = environment("bursty_workload")
    _, timesteps = play_alone(env, episode_key(11), constant_actions())
    late = jax.tree.map(lambda leaf: leaf[HORIZON:], timesteps.metrics)
    assert np.asarray(late.arrivals).sum() > 0.0
    assert np.asarray(late.completed).sum() > 0.0


def test_knobs_outside_their_range_act_as_the_nearest_bound() -> None:
    """What acts in a step is always an action inside the bounds, of the right types."""
    env = environment("adversarial_multitenant")
    effective = jax.jit(ServeEnv.effective_action)
    for value, edge in ((np.inf, "high"), (1e9, "high"), (-np.inf, "low"), (np.nan, "low")):
        wild = ServeAction(**dict.fromkeys(KNOBS, jnp.float32(value)))
        tame = jaxserve.make_action(**{k: getattr(b, edge) for k, b in ACTION_BOUNDS.items()})
        assert_identical(effective(env, wild), tame)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (None, "action is a NoneType; it must be a ServeAction"),
        (DEFAULT_ACTION, "action is a dict; it must be a ServeAction"),
        (ServeAction(**DEFAULT_ACTION | {"batch_cap": "8"}), "batch_cap is '8'; it must be a num"),
        (
            ServeAction(**DEFAULT_ACTION | {"batch_cap": None}),
            "batch_cap is None; it must be a num",
        ),
        (
            ServeAction(**DEFAULT_ACTION | {"quantization_tier": np.zeros(3)}),
            r"quantization_tier has shape \(3,\); an action is one number for each knob",
        ),
    ],
)
def test_what_is_not_one_action_is_refused(action: Any, message: str) -> None:
    """Wrong types and shapes are one sentence, in a program and out of one."""
    env = environment("static_workload")
    state, _ = env.reset(episode_key(0))
    with pytest.raises(InputError, match=message):
        env.step(state, action)
    with pytest.raises(InputError, match=message):
        jax.jit(lambda state: env.step(state, action))(state)


def test_what_is_not_one_key_is_refused() -> None:
    """Numbers, keys of the old kind and batches of keys are one sentence."""
    keys: list[Any] = [None, 3, jax.random.PRNGKey(0), jax.random.split(jax.random.key(0))]
    for key in keys:
        with pytest.raises(InputError, match=r"key is [\s\S]*; it must be one typed key"):
            environment("static_workload").reset(key)


def test_limits_of_a_task_hold() -> None:
    """Whatever is asked for, an active knob stays inside; a locked one is at its value anyway."""
    limits = {
        "batch_cap": (4, 24),
        "kv_budget_fraction": (0.5, 0.75),
        "speculation_depth": (1, 2),
    }
    spec = load_task("static_workload")
    asked = random_actions(seed=5)
    acts = jax.vmap(jaxserve.make(dataclasses.replace(spec, limits=limits)).effective_action)(asked)
    for knob in ("batch_cap", "kv_budget_fraction"):
        value = getattr(asked, knob)
        low, high = np.asarray(limits[knob], value.dtype)
        np.testing.assert_array_equal(getattr(acts, knob), np.clip(value, low, high))
    assert set(np.asarray(acts.speculation_depth)) == {DEFAULT_ACTION["speculation_depth"]}
    free = jax.vmap(jaxserve.make(spec).effective_action)(asked)
    np.testing.assert_array_equal(free.batch_cap, asked.batch_cap)


def test_locked_knobs_do_nothing() -> None:
    """A task's inactive knobs keep their locked value, whatever the agent sets."""
    env = environment("static_workload")
    turned = jaxserve.make_action(
        speculation_depth=8, quantization_tier=2, prefill_decode_split=3, priority_routing=1
    )
    effective = env.effective_action(turned)
    assert {knob: float(getattr(effective, knob)) for knob in KNOBS} == DEFAULT_ACTION


def test_features_are_named_finite_and_small() -> None:
    """What a network sees is one float32 per name, of the order of one."""
    for task in GRADED:
        env = environment(task, rate_scale=10.0)
        _, timesteps = play_alone(env, episode_key(2), random_actions(2))
        features = np.asarray(jax.vmap(env.observe)(timesteps.observation))
        assert features.shape == (WINDOWS, len(FEATURE_NAMES))
        assert features.dtype == np.float32
        assert np.abs(features).max() <= 3.0
        assert env.observe(reset(env, episode_key(0))[1].observation).shape == (len(FEATURE_NAMES),)
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)


def test_the_median_itl_is_not_moved_by_a_few_long_iterations() -> None:
    """While prefill is rare the median is that of plain steps; networks see the mean."""
    env = environment("bursty_workload")
    calm = jax.tree.map(lambda value: jnp.full(WINDOWS, value), jaxserve.make_action(batch_cap=64))
    _, timesteps = play_alone(env, episode_key(0), calm)
    seen, metrics = timesteps.observation, timesteps.metrics
    np.testing.assert_allclose(seen.mean_itl_ms, 1000.0 * metrics.itl_s, rtol=1e-6)
    np.testing.assert_allclose(seen.p50_itl_ms, 1000.0 * metrics.p50_itl_s, rtol=1e-6)
    median, mean = np.asarray(seen.p50_itl_ms), np.asarray(seen.mean_itl_ms)
    assert np.median(median) < 0.9 * np.median(mean)
    features = jax.vmap(env.observe)
    moved = dataclasses.replace(seen, p50_itl_ms=2.0 * seen.p50_itl_ms)
    np.testing.assert_array_equal(features(moved), features(seen))


def test_randomised_hardware_differs_by_episode_and_is_off_by_default() -> None:
    """Each episode draws its own slowness, inside the width that was asked for."""
    keys = episode_keys(64)
    scale = jax.vmap(lambda env, key: env.reset(key)[0].sim.time_scale, (None, 0))
    np.testing.assert_array_equal(scale(environment("bursty_workload"), keys), 1.0)
    env = jaxserve.make("bursty_workload", overrides={"randomisation": 0.15})
    drawn = np.asarray(scale(env, keys))
    assert len(np.unique(drawn)) > 60
    assert np.exp(-0.15) <= drawn.min() < 0.9 < 1.1 < drawn.max() <= np.exp(0.15)
