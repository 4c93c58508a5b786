"""Promises of the acceptance profiles."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.machine.acceptance import (
    Drafts,
    profile_error,
    profile_names,
    timed_profiles,
    tokens_per_step,
)
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import serve


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


@given(
    profile=st.sampled_from(timed_profiles()),
    gpu=st.sampled_from(["h100-sxm-80gb", "l40s-48gb"]),
    context=st.floats(16, 30_000),
    sequences=st.integers(1, 512),
)
def test_no_depth_is_faster_than_the_chosen(profile, gpu, context, sequences) -> None:
    """At any number of sequences, for times per token of iterations that only decode; no depth is
    beyond the measured drafts."""
    cost = CostModel.of(*serve(gpu, "llama-3.1-8b", None))
    depths = Drafts.fastest(profile, cost, context, 0, 512).depths
    assert len(depths) == 512 and max(depths) <= cost.draft_flat_depth
    times = [
        float(cost.decode_s(sequences, context, depth)) / tokens_per_step(profile)[depth]
        for depth in range(int(cost.draft_flat_depth) + 1)
    ]
    assert times[depths[sequences - 1]] == pytest.approx(min(times))


def test_a_crowd_gets_shallower_drafts() -> None:
    """One sequence leaves arithmetic idle, hundreds of them do not."""
    cost = CostModel.of(*serve("h100-sxm-80gb", "llama-3.1-8b", None))
    depths = Drafts.fastest("sharegpt/eagle", cost, 1000, 0, 512).depths
    assert depths[0] > depths[63] > depths[511]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60))
def test_ranges_are_the_depths(depths: list[int]) -> None:
    """Written out again they are the same, and neighbours differ."""
    ranges = Drafts("sharegpt/eagle", tuple(depths)).ranges
    written = [depth for first, last, depth in ranges for _ in range(first, last + 1)]
    assert written == depths and ranges[0][0] == 1
    assert all(before[2] != after[2] for before, after in itertools.pairwise(ranges))


def test_texts_differ_by_some_per_cent() -> None:
    """EAGLE's profiles are alike, copies of prompts are not."""
    assert 0.01 < profile_error("sharegpt/eagle") < 0.1 < profile_error("sharegpt/ngram")


def test_unknown_profile_is_answered_with_the_allowed_ones() -> None:
    """An unknown profile raises with the list of names."""
    with pytest.raises(InputError, match=r"profile is 'chat'; it must be one of sharegpt/eagle"):
        tokens_per_step("chat")
