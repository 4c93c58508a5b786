"""The learner's network: what it sees, how it draws, what it remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.network import (
    INPUTS,
    Normaliser,
    Step,
    _orthogonal,
    choose,
    entropy,
    log_probability,
    look,
    network_for,
    perceive,
)
from jaxserve.env import FEATURE_NAMES
from jaxserve.seeds import episode_key
from jaxserve.spaces import KNOBS

SIZES = (4, 1, 3, 1, 1, 2)


def a_step(seed: int) -> Step:
    keys = jax.random.split(jax.random.key(seed), 3)
    sizes = [size for size in SIZES if size > 1]
    logits = [2.0 * jax.random.normal(k, (n,)) for k, n in zip(keys, sizes, strict=True)]
    return Step(tuple(logits), jnp.float32(0.0))


@given(st.integers(0, 100))
@settings(max_examples=10)
def test_draws_have_the_probabilities_they_are_given(seed: int) -> None:
    """Frequencies of whole actions are exp(log_probability); locked knobs stay at 0."""
    step = a_step(seed)
    keys = jax.random.split(jax.random.key(seed), 20_000)
    drawn = jax.vmap(lambda key: choose(step, SIZES, key))(keys)
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
    """No draw has a higher probability."""
    step = a_step(5)
    best = choose(step, SIZES, jax.random.key(0), greedy=True)
    drawn = jax.vmap(lambda key: choose(step, SIZES, key))(jax.random.split(jax.random.key(1), 99))
    assert (
        log_probability(step, SIZES, best)
        >= jax.vmap(lambda a: log_probability(step, SIZES, a))(drawn).max()
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=20)
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
    _, timestep = env.reset(episode_key(0))
    memory, inputs, features = perceive(env, Normaliser.create(), memory, timestep.observation)
    assert inputs.shape == (INPUTS,) and features.shape == (len(FEATURE_NAMES),)
    params = network.initial_params(jax.random.key(0))
    _, step = look(network, params, memory, inputs)
    drawn = np.asarray(
        jax.vmap(lambda key: choose(step, network.sizes, key))(
            jax.random.split(jax.random.key(1), 2000)
        )
    )
    for knob in ("quantization_tier", "prefill_decode_split"):
        index = KNOBS.index(knob)
        assert (drawn[:, index] == int(memory.last[index])).mean() > 0.95
    caps = np.bincount(drawn[:, KNOBS.index("batch_cap")], minlength=16) / len(drawn)
    assert caps.min() > 0.03 and caps.max() < 0.12
