"""Ratios are 1 where the policy is the one that sampled, and say so where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.rollouts.ratios import importance_ratios, token_logprobs
from jaxserve.rollouts.traces import TokenTrace

VOCABULARY, WIDTH = 17, 8


class Model:
    """A random softmax over what the last two tokens are."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(2, VOCABULARY, WIDTH))
        self.head = rng.normal(size=(WIDTH, VOCABULARY))

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """``[T, V]``."""
        before = np.concatenate([[0], ids[:-1]])
        return np.tanh(self.embedding[0, ids] + self.embedding[1, before]) @ self.head

    def __call__(self, trace: TokenTrace) -> np.ndarray:
        ids = np.concatenate([trace.prompt_ids, trace.response_ids])
        return token_logprobs(self.logits(ids), trace)


def played(model: Model, seed: int, turns: int = 3) -> TokenTrace:
    """Sampled token by token, with tokens of others between the answers."""
    rng = np.random.default_rng(seed)
    ids, mask, logprobs = list(rng.integers(VOCABULARY, size=4)), [], []
    for _ in range(turns):
        for token in rng.integers(VOCABULARY, size=2):
            ids, mask, logprobs = [*ids, token], [*mask, 0], [*logprobs, np.nan]
        for _ in range(4):
            row = model.logits(np.array(ids))[-1]
            chances = np.exp(row - row.max())
            chances /= chances.sum()
            token = rng.choice(VOCABULARY, p=chances)
            ids, mask, logprobs = [*ids, token], [*mask, 1], [*logprobs, np.log(chances[token])]
    return TokenTrace(
        prompt_ids=np.array(ids[:4], np.int32),
        response_ids=np.array(ids[4:], np.int32),
        loss_mask=np.array(mask, np.uint8),
        response_logprobs=np.array(logprobs, np.float32),
    )


@given(st.integers(0, 2**32 - 1))
def test_the_policy_that_sampled(seed: int) -> None:
    """Up to rounding to float32; tokens of others do not count."""
    model = Model(seed)
    found = importance_ratios([played(model, seed), played(model, seed + 1)], model)
    assert found.tokens == 24 and found.largest < 1e-5 and abs(found.mean - 1) < 1e-5


def test_what_is_wrong_shows() -> None:
    """A wrong token, a shifted log-probability, another policy; and where."""
    model = Model(0)
    good, trace = played(model, 1), played(model, 2)
    shifted = trace.response_logprobs.copy()
    shifted[9] += np.log(2)
    found = importance_ratios([good, replace(trace, response_logprobs=shifted)], model)
    assert found.where == (1, 9) and abs(found.largest - 0.5) < 1e-5
    other = trace.response_ids.copy()
    other[2] = (other[2] + 1) % VOCABULARY
    assert importance_ratios([replace(trace, response_ids=other)], model).largest > 0.01
    assert importance_ratios([trace], Model(1)).largest > 0.01


def test_a_ratio_past_all_floats() -> None:
    """Infinite, and said to be."""
    trace = played(Model(0), 1)
    assert importance_ratios([trace], lambda one: one.response_ids * 0.0 + 1e4).largest == np.inf


def test_what_is_refused() -> None:
    """Nothing to train on, another shape, NaN, logits that do not fit."""
    model = Model(0)
    trace = played(model, 1)
    for traces in ([], [replace(trace, loss_mask=np.zeros_like(trace.loss_mask))]):
        with pytest.raises(InputError, match="0 trainable tokens"):
            importance_ratios(traces, model)
    with pytest.raises(InputError, match=r"shape \(17,\); it must be \(18,\)"):
        importance_ratios([trace], lambda one: model(one)[1:])
    with pytest.raises(InputError, match="a ratio of trace 0 is NaN"):
        importance_ratios([trace], lambda one: model(one) * np.nan)
    with pytest.raises(InputError, match="21 rows for 4 tokens of prompt; they must have 22"):
        token_logprobs(np.zeros((21, VOCABULARY)), trace)
