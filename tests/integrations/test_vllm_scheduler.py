"""vLLM's own scheduler plays fresh episodes, and ours schedules the same."""

from __future__ import annotations

import pytest

from jaxserve.datafiles import load_json
from jaxserve.studies.fidelity.scheduler_episodes import our_steps, random_episode
from jaxserve.studies.fidelity.vllm_scheduler import (
    GROUPS,
    RECORD,
    digest,
    first_difference,
    vllm_steps,
)
from tests.integrations.vllm_environment import VERSION, vllm_python

pytestmark = pytest.mark.deep

FRESH = 70
"""Episodes of each group that are not in the record."""
RECORDED = 10
"""Episodes of each group that are."""


def test_episodes_that_nobody_has_seen() -> None:
    """Step by step the same; and what is on record is what vLLM does."""
    groups = {}
    for group, (count, options) in GROUPS.items():
        for seed in [*range(RECORDED), *range(count, count + FRESH)]:
            groups[group, seed] = random_episode(seed, **options)
    version, played = vllm_steps(vllm_python(), list(groups.values()))
    assert version.split("+")[0] == VERSION
    record = load_json(RECORD)
    for ((group, seed), episode), theirs in zip(groups.items(), played, strict=True):
        assert first_difference(our_steps(episode), theirs) is None, (group, seed)
        if seed < RECORDED:
            assert record[group]["episodes"][seed][1] == digest(theirs)
