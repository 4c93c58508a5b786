"""Promises of the acceptance profiles."""

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.machine.acceptance import profile_names, tokens_per_step


@pytest.mark.parametrize("profile", profile_names())
def test_profile_is_a_concave_gain(profile: str) -> None:
    """Each drafted token adds less than one token, and never more than the one before it."""
    gains = np.diff(tokens_per_step(profile))
    assert tokens_per_step(profile)[0] == 1.0
    assert ((gains > 0) & (gains < 1)).all()
    assert (np.diff(gains) <= 1e-9).all()


def test_measured_values_are_kept() -> None:
    """Depths that were measured are returned as measured."""
    profile = tokens_per_step("sharegpt/eagle")
    np.testing.assert_allclose(profile[[1, 5, 8]], [1.66, 2.476, 2.606])


def test_depth_seven_matches_a_replay() -> None:
    """The interpolated depth 7 is what a replay of the published acceptance lengths gives."""
    replayed = {"sharegpt/eagle": 2.582, "cnn/eagle": 2.694, "instructcoder/ngram": 2.448}
    for profile, mean in replayed.items():
        assert tokens_per_step(profile)[7] == pytest.approx(mean, rel=0.005)


def test_workloads_differ() -> None:
    """Copying pays on code and not on arithmetic; a draft model pays on all datasets."""
    assert tokens_per_step("instructcoder/ngram")[5] > 1.9 * tokens_per_step("gsm8k/ngram")[5]
    eagle = [tokens_per_step(name)[5] for name in profile_names() if name.endswith("/eagle")]
    assert len(eagle) == 4 and min(eagle) > 2.4


def test_unknown_profile_is_answered_with_the_allowed_ones() -> None:
    """An unknown profile raises with the list of names."""
    with pytest.raises(InputError, match=r"profile is 'chat'; it must be one of sharegpt/eagle"):
        tokens_per_step("chat")
