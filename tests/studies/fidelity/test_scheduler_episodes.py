"""Random episodes for two schedulers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.studies.fidelity.scheduler_episodes import SchedulerEpisode, our_steps, random_episode

EPISODE = SchedulerEpisode(
    blocks=6,
    block_tokens=16,
    max_length=64,
    batch_cap=4,
    token_budget=40,
    priority_routing=False,
    watermark=0.0,
    prefix_caching=False,
    speculation_depth=0,
    requests=[[0, 44, 6, 0], [0, 44, 2, 0], [9, 3, 1, 1]],
    turns=[(3, {"token_budget": 1}), (7, {"token_budget": 40})],
)


def test_steps_of_an_episode():
    """Chunks, preemption, and a knob turned; vLLM's own steps in ``integrations/vllm``."""
    assert our_steps(EPISODE) == [
        ([[0, 40]], []),
        ([[0, 4], [1, 36]], []),
        ([[0, 1], [1, 8]], []),
        *[([[0, 1]], [])] * 3,
        ([[0, 1]], [1]),
        ([[1, 40]], []),
        ([[1, 5]], []),
        ([[2, 3]], []),
    ]


@pytest.mark.parametrize(
    ("knob", "value", "step", "batch"),
    [
        ("batch_cap", 1, 1, [[0, 4]]),
        ("kv_blocks", 5, 1, [[0, 4]]),
        ("priority_routing", 1, 1, [[0, 4], [2, 9]]),
    ],
)
def test_every_knob_acts(knob, value, step, batch):
    """From the step before which it is turned."""
    requests = [[0, 44, 6, 0], [0, 44, 2, 2], [0, 9, 1, 1]]
    episode = replace(EPISODE, requests=requests, turns=[(step, {knob: value})])
    assert our_steps(episode)[step][0] == batch


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_every_request_of_a_random_episode_can_be_served(seed, caching, speculates):
    """The smallest KV budget holds it, drafts and all, and the steps compute every token of it."""
    episode = random_episode(seed, caching, speculates)
    least = min([episode.blocks, *(k["kv_blocks"] for _, k in episode.turns if "kv_blocks" in k)])
    depth = episode.speculation_depth
    assert (depth > 0) == speculates
    for _, prompt, output, _ in episode.requests:
        assert prompt + output + depth < least * episode.block_tokens
    steps = our_steps(episode)
    served = {request for batch, _ in steps for request, _ in batch}
    assert served == set(range(len(episode.requests)))
    for request, (_, prompt, output, _) in enumerate(episode.requests):
        mine = sum(tokens for batch, _ in steps for i, tokens in batch if i == request)
        preempted = any(request in out for _, out in steps)
        if depth == 0:
            assert mine >= prompt + output - 1
            assert preempted or mine == prompt + output - 1
