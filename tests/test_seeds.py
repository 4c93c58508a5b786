"""Seeds: every seed is an episode of its own, and splits can never meet."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.seeds import MAX_SEED, SPLITS, episode_key, episode_keys, policy_key


def words(keys: jax.Array) -> set[tuple[int, ...]]:
    """Key data as a set."""
    return {tuple(row) for row in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()}


def test_splits_are_disjoint() -> None:
    """Train, validation and test keys differ, seed by seed and as sets."""
    count = 4096
    keys = [words(episode_keys(count, split)) for split in SPLITS]
    assert [len(each) for each in keys] == [count] * 3
    assert len(set.union(*keys)) == 3 * count


def test_keys_are_those_of_their_seeds() -> None:
    """A batch of keys is the single keys, from any first seed on, and they are typed."""
    batch = episode_keys(5, "test", first=7)
    assert jax.dtypes.issubdtype(batch.dtype, jax.dtypes.prng_key)
    singles = [episode_key(seed, "test") for seed in range(7, 12)]
    np.testing.assert_array_equal(
        jax.random.key_data(batch), np.stack([jax.random.key_data(key) for key in singles])
    )
    assert words(episode_key(MAX_SEED)) != words(episode_key(0))


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 1.0, "1", True, None, float("nan")])
def test_bad_seeds_are_refused(seed: Any) -> None:
    """A seed is a whole number in range."""
    with pytest.raises(InputError, match="seed is"):
        episode_key(seed)


@pytest.mark.parametrize("split", ["Test", "", None, 3, ["test"]])
def test_bad_splits_are_refused(split: Any) -> None:
    """There are three splits."""
    with pytest.raises(InputError, match="split is"):
        episode_key(1, split)
    with pytest.raises(InputError, match="split is"):
        episode_keys(3, split)


@pytest.mark.parametrize(("count", "first"), [(-1, 0), (2, MAX_SEED), (1.5, 0), (3, -1), ("3", 0)])
def test_bad_ranges_of_seeds_are_refused(count: Any, first: Any) -> None:
    """A range of seeds stays inside the seeds."""
    with pytest.raises(InputError, match="seed"):
        episode_keys(count, "train", first)


def test_a_policy_has_a_stream_of_its_own() -> None:
    """Its keys differ from window to window and from all that the episode's traffic uses."""
    episode, windows = episode_key(3), np.arange(2000)
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    scale, workload = jax.random.split(episode)
    policy = words(jax.vmap(policy_key, (None, 0))(episode, windows))
    traffic = words(fold(workload, windows)) | words(
        jax.random.wrap_key_data(
            np.stack([jax.random.key_data(key) for key in (episode, scale, workload)])
        )
    )
    assert len(policy) == len(windows) and not policy & traffic
