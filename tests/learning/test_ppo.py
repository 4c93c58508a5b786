"""PPO: its formulas against plain loops, its determinism, and that it learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.rollout import rollout
from jaxserve.errors import InputError
from jaxserve.learning.ppo import Learner, TrainState, _one_of_each_block
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.seeds import episode_keys
from jaxserve.tasks.anchors import anchors_score, load_anchors
from jaxserve.tasks.spec import load_task
from tests.quick_compiler import programs_compute

SMALL = PPOConfig(environments=16, rollout_windows=25, minibatches=2, updates=40)


@functools.cache
def learner(recurrent: bool = False) -> Learner:
    config = dataclasses.replace(SMALL, recurrent=recurrent)
    return Learner.create(jaxserve.make("bursty_workload"), config)


@functools.cache
def compiled(recurrent: bool = False):
    return jax.jit(learner(recurrent).update)


@functools.cache
def start(recurrent: bool = False) -> TrainState:
    return jax.jit(learner(recurrent).init)(jax.random.key(0))


@functools.cache
def played(recurrent: bool = False) -> tuple:
    """Windows of a rollout, their advantages and returns, and the value at the end."""
    made = learner(recurrent)

    @jax.jit
    def play(state: TrainState) -> tuple:
        _, windows, final = made._rollout(state, jax.random.key(3))
        return windows, *made._advantages(windows, windows.reward, final), final

    return play(start(recurrent))


def leaves(state: TrainState) -> list[np.ndarray]:
    return [
        np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        for leaf in jax.tree.leaves(state)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_updates_are_deterministic_and_finite(recurrent: bool) -> None:
    """The same state gives the same next state bit by bit, and every number is one."""
    first, report = compiled(recurrent)(start(recurrent))
    second, _ = compiled(recurrent)(start(recurrent))
    for one, other in zip(leaves(first), leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(np.isfinite(leaf).all() for leaf in leaves(first))
    assert all(np.isfinite(value) for value in vars(report).values())
    changed = [
        not np.array_equal(one, other)
        for one, other in zip(
            jax.tree.leaves(first.params), jax.tree.leaves(start(recurrent).params), strict=True
        )
    ]
    assert all(changed)


def test_episodes_end_where_rollouts_do() -> None:
    """Environments start at every quarter of an episode, and at the horizon begin a new one."""
    state = start()
    horizon = learner().horizon
    assert set(np.asarray(state.env_states.step).tolist()) == set(range(0, horizon, 25))
    after, _ = compiled()(state)
    expected = (np.asarray(state.env_states.step) + 25) % horizon
    np.testing.assert_array_equal(after.env_states.step, expected)
    ended = np.asarray(state.env_states.step) == horizon - 25
    same = np.asarray(
        jax.random.key_data(after.env_states.workload.key)
        == jax.random.key_data(state.env_states.workload.key)
    ).all(axis=-1)
    np.testing.assert_array_equal(same, ~ended)


@pytest.mark.slow
def test_advantages_bootstrap_from_the_final_observation() -> None:
    """Generalised advantages are those of a plain backward loop, with the value of what follows."""
    windows, advantages, returns, final = played()
    config = learner().config
    rewards, values = np.asarray(windows.reward, float), np.asarray(windows.value, float)
    later, following = np.zeros(config.environments), np.asarray(final, float)
    for t in reversed(range(len(rewards))):
        error = rewards[t] + config.discount * following - values[t]
        later = error + config.discount * config.gae_lambda * later
        np.testing.assert_allclose(advantages[t], later, atol=1e-5)
        np.testing.assert_allclose(returns[t], later + values[t], atol=1e-5)
        following = values[t]


def test_schedules_go_linearly_from_start_to_end() -> None:
    """Each number is as given in the first update, the share of its end after the last one, and
    halfway between in the middle; past the end it stays."""
    config = dataclasses.replace(
        SMALL,
        learning_rate=2e-3,
        learning_rate_end=0.25,
        entropy_weight=0.1,
        entropy_weight_end=0.0,
        reward_scale=2.0,
        reward_scale_end=3.0,
    )
    for name, start, end in (
        ("learning_rate", 2e-3, 5e-4),
        ("entropy_weight", 0.1, 0.0),
        ("reward_scale", 2.0, 6.0),
    ):
        at = [float(config.scheduled(name, jnp.int32(update))) for update in (0, 20, 40, 50)]
        assert at == pytest.approx([start, (start + end) / 2.0, end, end], abs=1e-6)


def test_minibatches_are_even_and_complete() -> None:
    """Each takes one environment of every block of neighbours; together they take all."""
    blocks = jnp.argsort(jax.random.uniform(jax.random.key(0), (5, 3)), axis=-1)
    batch = jnp.arange(15)[None, :, None] * jnp.ones((2, 1, 4), int)
    parts = [np.asarray(_one_of_each_block([batch], chosen)[0]) for chosen in blocks.T]
    for part in parts:
        assert part.shape == (2, 5, 4)
        np.testing.assert_array_equal(part[0, :, 0] // 3, np.arange(5))
    assert sorted(np.concatenate(parts, axis=1)[0, :, 0]) == list(range(15))


@pytest.mark.parametrize("recurrent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_probabilities_are_of_the_executed_actions(recurrent: bool) -> None:
    """Before the optimiser's first step the loss sees the policy that played: no divergence."""
    made, state = learner(recurrent), start(recurrent)
    _, parts = jax.jit(made._loss)(
        state.params, *played(recurrent)[:3], state.memory.hidden, jnp.float32(0.0)
    )
    assert float(parts["kl"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_groups_share_their_traffic() -> None:
    """Environments of a group face the same requests and are compared with each other."""
    config = dataclasses.replace(SMALL, traffic_group=4)
    grouped = Learner.create(jaxserve.make("bursty_workload"), config)
    state = jax.jit(grouped.init)(jax.random.key(0))
    keys = np.asarray(jax.random.key_data(state.env_states.workload.key)).reshape(4, 4, -1)
    assert (keys == keys[:, :1]).all() and len(np.unique(keys[:, 0], axis=0)) == 4
    windows, _, _, final = played()
    advantages, _ = grouped._advantages(windows, windows.reward, final)
    by_group = np.asarray(advantages).reshape(-1, 4, 4)
    np.testing.assert_allclose(by_group.mean(axis=-1), 0.0, atol=1e-6)


@pytest.mark.slow
def test_rewards_count_as_much_as_their_scale_says() -> None:
    """A scale of 0 leaves nothing but the values to learn from; rewards are reported as paid."""
    _, paid = compiled()(start())
    blind = Learner.create(learner().env, dataclasses.replace(SMALL, reward_scale=0.0))
    state, report = jax.jit(blind.update)(start())
    assert float(report.reward) == pytest.approx(float(paid.reward), abs=1e-6)
    assert float(report.value_loss) != pytest.approx(float(paid.value_loss), rel=0.1)
    np.testing.assert_array_equal(state.rewards.latest, compiled()(start())[0].rewards.latest)


@pytest.mark.slow
def test_seeds_and_hyper_parameters_can_be_batched() -> None:
    """Seeds and learning rates under vmap are the runs that they are alone, and a rate that has
    fallen to nothing changes nothing."""
    made = learner()
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    states = jax.jit(jax.vmap(made.init))(keys)
    states = dataclasses.replace(states, update=jnp.array([0, 0, SMALL.updates]))
    configs = dataclasses.replace(
        made.config,
        learning_rate=jnp.array([1e-3, 3e-3, 1e-3]),
        learning_rate_end=jnp.array([0.05, 0.05, 0.0]),
    )

    def update(config: PPOConfig, state: TrainState):
        return dataclasses.replace(made, config=config).update(state)

    axes = jax.tree.map(lambda _: None, made.config)
    axes = dataclasses.replace(axes, learning_rate=0, learning_rate_end=0)
    after, _ = jax.jit(jax.vmap(update, (axes, 0)))(configs, states)
    alone, _ = compiled()(start())
    for one, other, before in zip(
        *(jax.tree.leaves(state.params) for state in (after, alone, states)), strict=True
    ):
        np.testing.assert_allclose(one[0], other, atol=2e-3)
        assert not np.allclose(one[0], one[1], atol=1e-5)
        np.testing.assert_array_equal(one[2], before[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rollout_windows=33), "rollout_windows is 33; it must divide the horizon"),
        (dict(minibatches=3), "minibatches is 3; it must divide the environments per device: 16"),
        (dict(traffic_group=5), "traffic_group is 5; it must divide the environments per device"),
    ],
)
def test_sizes_must_fit(change: dict[str, int], message: str) -> None:
    """Sizes that do not divide each other are named."""
    with pytest.raises(InputError, match=message):
        Learner.create(learner().env, dataclasses.replace(SMALL, **change))


@pytest.mark.slow
@programs_compute()
def test_beats_the_best_static_setting() -> None:
    """A million windows of training score above the best static setting on test seeds."""
    task = "adversarial_multitenant"
    env = jaxserve.make(task)
    config = PPOConfig(learning_rate=2e-3, environments=512, updates=80)
    made = Learner.create(env, config)
    state = jax.jit(made.init)(jax.random.key(0))
    update = jax.jit(made.update)
    for _ in range(config.updates):
        state, _ = update(state)
    rewards = rollout(env, made.policy(state), episode_keys(32, "test")).timesteps.reward
    assert anchors_score(load_anchors(load_task(task)), float(rewards.mean())) > 0.6
