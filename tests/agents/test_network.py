"""The learner's network: what it sees, how it draws, what it remembers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.network import (
    NetworkPolicy,
    Normaliser,
    Outputs,
    _orthogonal,
    encode_observation,
    entropy,
    forward,
    input_width,
    log_probability,
    network_for,
    sample_action,
    sticky_action,
)
from jaxserve.agents.rollout import rollout
from jaxserve.agents.task_setup import packaged_weights
from jaxserve.agents.weights import load_weights
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.evaluation.episode_statistics import interval
from jaxserve.grids import action_at
from jaxserve.seeds import episode_key, episode_keys, policy_key
from jaxserve.spaces import KNOBS
from tests.compiled_env import reset, step
from tests.examples_drawn import FEW

SIZES = (4, 1, 3, 1, 1, 2, 1)


def a_step(seed: int) -> Outputs:
    keys = jax.random.split(jax.random.key(seed), 3)
    sizes = [size for size in SIZES if size > 1]
    logits = [2.0 * jax.random.normal(k, (n,)) for k, n in zip(keys, sizes, strict=True)]
    return Outputs(tuple(logits), jnp.float32(0.0))


@given(st.integers(0, 100))
@FEW
def test_draws_have_the_probabilities_they_are_given(seed: int) -> None:
    """Frequencies of whole actions are exp(log_probability); locked knobs stay at 0."""
    step = a_step(seed)
    keys = jax.random.split(jax.random.key(seed), 20_000)
    drawn = jax.vmap(lambda key: sample_action(step, SIZES, key))(keys)
    assert (np.asarray(drawn)[:, [1, 3, 4]] == 0).all()
    actions, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
    probability = np.exp([log_probability(step, SIZES, jnp.asarray(a)) for a in actions])
    np.testing.assert_allclose(counts / len(keys), probability, atol=0.015)
    assert probability.sum() == pytest.approx(1.0, abs=0.01)


def test_entropy_is_that_of_the_product() -> None:
    """Entropies of independent knobs add up."""
    step = a_step(3)
    expected = 0.0
    for logits in step.logits:
        p = np.asarray(jax.nn.softmax(logits), np.float64)
        expected -= (p * np.log(p)).sum()
    assert float(entropy(step)) == pytest.approx(expected, rel=1e-5)


def test_greedy_is_the_most_likely_action() -> None:
    """No draw has a higher probability than what is played where nothing is held."""
    step = a_step(5)
    best = sticky_action(step, SIZES, jnp.zeros(len(SIZES), jnp.int32), 0.0)
    drawn = jax.vmap(lambda key: sample_action(step, SIZES, key))(
        jax.random.split(jax.random.key(1), 99)
    )
    assert (
        log_probability(step, SIZES, best)
        >= jax.vmap(lambda a: log_probability(step, SIZES, a))(drawn).max()
    )


@given(
    st.integers(0, 100),
    st.tuples(*(st.integers(0, size - 1) for size in SIZES)),
    st.floats(0.01, 4.0),
)
def test_a_hand_moves_for_a_clear_preference(seed: int, last: tuple[int, ...], nats: float) -> None:
    """A knob takes its most likely value exactly where that is likelier by so many nats than its
    last one, each knob by itself; locked knobs stay at 0."""
    step = a_step(seed)
    found = np.asarray(sticky_action(step, SIZES, jnp.asarray(last), nats))
    knobs = [i for i, size in enumerate(SIZES) if size > 1]
    assert not found[[i for i in range(len(SIZES)) if i not in knobs]].any()
    for i, logits in zip(knobs, map(np.asarray, step.logits), strict=True):
        gain = logits.max() - logits[last[i]]
        if abs(gain - nats) > 1e-5:
            assert found[i] == (logits.argmax() if gain > nats else last[i])


def flat_policy(greedy: bool, seed: int = 0) -> tuple[ServeEnv, NetworkPolicy]:
    """A fresh network, whose preferences are within a tenth of a nat or so of each other."""
    env = jaxserve.make("bursty_workload")
    network = network_for(env)
    params = network.initial_params(jax.random.key(seed))
    return env, NetworkPolicy(params, Normaliser.create(), network, greedy=greedy)


@pytest.mark.slow
def test_a_flat_head_keeps_its_hand_still() -> None:
    """The knobs stay where the task has them, and the memory says so; of equals the most likely one
    would flap. Drawn actions change nearly every window, whatever is held."""
    env, still = flat_policy(greedy=True)
    key = episode_key(0)
    env_state, timestep = reset(env, key)
    played: dict[str, list[np.ndarray]] = {"still": [], "flapping": [], "drawn": [], "held": []}
    policies = {
        "still": still,
        "flapping": dataclasses.replace(still, hold_nats=0.0),
        "drawn": dataclasses.replace(still, greedy=False),
        "held": dataclasses.replace(still, greedy=False, hold_nats=99.0),
    }
    steps = {name: jax.jit(policy.act) for name, policy in policies.items()}
    memories = {name: policy.init(env) for name, policy in policies.items()}
    free = [i for i, size in enumerate(still.network.sizes) if size > 1]
    start = np.asarray(memories["still"].last)[free]
    for window in range(12):
        dice = policy_key(key, window)
        for name, act in steps.items():
            action, memories[name] = act(env, memories[name], timestep.observation, dice)
            played[name].append(np.asarray(memories[name].last)[free])
            np.testing.assert_array_equal(
                np.asarray(action_at(memories[name].last).batch_cap), np.asarray(action.batch_cap)
            )
        env_state, timestep = step(env, env_state, action)
    assert (np.stack(played["still"]) == start).all()
    assert (np.stack(played["flapping"]) != start).any()
    assert (np.diff(np.stack(played["drawn"]), axis=0) != 0).any(axis=1).mean() > 0.8
    np.testing.assert_array_equal(played["drawn"], played["held"])


@pytest.mark.deep
@pytest.mark.parametrize("task", ["bursty_workload", "adversarial_multitenant"])
def test_packaged_weights_turn_less_for_as_much(task: str) -> None:
    """Of the changes of knobs a fifth are left, at no reward that 64 test episodes would show: the
    numbers of docs/agents.md."""
    env = jaxserve.make(task)
    policy = load_weights(packaged_weights(task), env, task)
    keys, changes, rewards = episode_keys(64, "test"), [], []
    for nats in (0.0, policy.hold_nats):
        played = rollout(env, dataclasses.replace(policy, hold_nats=nats), keys)
        turned = np.stack([np.asarray(getattr(played.actions, knob)) for knob in KNOBS])
        changes.append((np.diff(turned, axis=2) != 0).sum(axis=2).mean(axis=1))
        rewards.append(np.asarray(played.timesteps.reward, np.float64).mean(axis=1))
    gain = interval(rewards[1] - rewards[0])
    for before, after, knob in zip(*changes, KNOBS, strict=True):
        print(f"{task}, {knob}: {before:.1f} changes in an episode, {after:.1f} held")
    print(f"{task}, reward a window: {gain.mean:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})")
    assert changes[1].sum() < 0.2 * changes[0].sum()
    assert changes[1][KNOBS.index("kv_budget_fraction")] < 8.0
    assert gain.mean > -0.001 and gain.low > -0.006


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 99))
def test_normaliser_merges_samples_as_if_they_came_at_once(sizes: list[int], seed: int) -> None:
    """Mean and variance after batches are those of all samples together, and of the prior one."""
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3.0, 2.0, (n, len(FEATURE_NAMES))) for n in sizes]
    found = Normaliser.create()
    for batch in batches:
        found = found.updated(jnp.asarray(batch, jnp.float32))
    count = sum(sizes)
    samples = np.concatenate(batches)
    mean = samples.sum(axis=0) / (count + 1.0)
    # The prior stands for one sample of mean 0 and variance 1.
    square = (1.0 + (samples**2).sum(axis=0)) / (count + 1.0)
    np.testing.assert_allclose(found.mean, mean, atol=1e-4)
    np.testing.assert_allclose(found.variance, square - mean**2, rtol=1e-3)
    assert np.abs(np.asarray(found(jnp.asarray(samples[0], jnp.float32)))).max() <= 5.0


@pytest.mark.parametrize("shape", [(64, 64), (74, 64), (64, 1), (36, 64)])
def test_fresh_weights_are_orthogonal(shape: tuple[int, int]) -> None:
    """Rows or columns, whichever are fewer, are orthogonal and of the length asked for; matrices
    of several keys under ``vmap`` are those of each key, and all differ."""
    initialise = _orthogonal(2.0)
    keys = jax.random.split(jax.random.key(0), 50)
    together = np.asarray(jax.jit(jax.vmap(lambda key: initialise(key, shape)))(keys))
    np.testing.assert_allclose(initialise(keys[3], shape), together[3], atol=1e-5)
    few = together if shape[0] >= shape[1] else together.swapaxes(1, 2)
    products = np.einsum("bij,bik->bjk", few, few)
    unit = np.broadcast_to(4.0 * np.eye(min(shape)), products.shape)
    np.testing.assert_allclose(products, unit, atol=1e-4)
    assert abs(together.mean()) < 0.05 and np.ptp(together[:, 0, 0]) > 0.2


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_fresh_policy_keeps_tier_and_split(recurrent: bool) -> None:
    """Knobs that cost a restart nearly always keep their value; the others are drawn evenly."""
    env = jaxserve.make("adversarial_multitenant")
    network = network_for(env, recurrent=recurrent)
    memory = network.initial_memory(env)
    _, timestep = reset(env, episode_key(0))
    memory, inputs, features = encode_observation(
        network, env, Normaliser.create(), memory, timestep.observation
    )
    assert inputs.shape == (input_width(len(FEATURE_NAMES)),) and features.shape == (
        len(FEATURE_NAMES),
    )
    params = network.initial_params(jax.random.key(0))
    _, step = forward(network, params, memory, inputs)
    drawn = np.asarray(
        jax.vmap(lambda key: sample_action(step, network.sizes, key))(
            jax.random.split(jax.random.key(1), 2000)
        )
    )
    for knob in ("quantization_tier", "prefill_decode_split"):
        index = KNOBS.index(knob)
        assert (drawn[:, index] == int(memory.last[index])).mean() > 0.95
    caps = np.bincount(drawn[:, KNOBS.index("batch_cap")], minlength=16) / len(drawn)
    assert caps.min() > 0.03 and caps.max() < 0.12
