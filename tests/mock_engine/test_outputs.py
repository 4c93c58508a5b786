"""What the model that is not there says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.mock_engine.outputs import PseudoModel, SamplingParams
from jaxserve.mock_engine.tokens import Vocabulary

VOCABULARY = Vocabulary(5000)
MODEL = PseudoModel(VOCABULARY, 20, 7)

SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 60),
    min_tokens=st.just(0),
    ignore_eos=st.booleans(),
    stop=st.lists(st.sampled_from(["ba", " d", "zu", "i ", "never there"]), max_size=2).map(tuple),
    stop_token_ids=st.frozensets(st.integers(0, 4995), max_size=300),
    keeps_stop=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
).flatmap(
    lambda one: st.integers(0, one.max_tokens).map(lambda least: replace(one, min_tokens=least))
)


@given(SAMPLINGS, st.lists(st.integers(0, 4999), min_size=1, max_size=5), st.data())
def test_an_output_is_what_was_asked(
    sampling: SamplingParams, prompt: list[int], data: st.DataObject
) -> None:
    """Between its bounds, with the reason of its end, and in pieces as in one."""
    output = MODEL.output(prompt, sampling, 0)
    length = len(output.tokens)
    assert max(1, sampling.min_tokens) <= length <= sampling.max_tokens
    text, ids = output.text(0, length), output.token_ids(0, length)
    if output.finish_reason == "length":
        assert length == sampling.max_tokens and output.stop_reason is None
    elif isinstance(output.stop_reason, str):
        assert output.stop_reason in sampling.stop
        assert text.endswith(output.stop_reason) or not sampling.keeps_stop
        told = text if sampling.keeps_stop else text + output.stop_reason
        assert VOCABULARY.texts(ids).startswith(told)
    elif output.stop_reason is not None:
        assert ids[-1] == output.stop_reason in sampling.stop_token_ids
        assert text == VOCABULARY.texts(ids[:-1])
    else:
        assert ids[-1] == VOCABULARY.end and not sampling.ignore_eos
    cut = data.draw(st.integers(0, length))
    assert output.text(0, cut) + output.text(cut, length) == text
    assert output.logprobs(0, length, 2)[cut:] == output.logprobs(cut, length, 2)


def test_the_same_question_has_the_same_answer() -> None:
    """And other seeds, prompts or places have others."""
    asked = SamplingParams(50, ignore_eos=True)

    def ids(model: PseudoModel = MODEL, prompt: int = 1, seed: int = 0, index: int = 0) -> tuple:
        return tuple(model.output([prompt], replace(asked, seed=seed), index).token_ids(0, 50))

    others = {ids(PseudoModel(VOCABULARY, 20, 8)), ids(prompt=2), ids(seed=1), ids(index=1)}
    assert ids() == ids() and len(others | {ids()}) == 5


def test_outputs_end_at_their_mean_length() -> None:
    """Where they may."""
    lengths = [len(MODEL.output([n], SamplingParams(1000), 0).tokens) for n in range(2000)]
    assert np.mean(lengths) == 21 or abs(np.mean(lengths) - 21) < 2


def test_log_probabilities_are_possible() -> None:
    """The token first, the others less likely in turn, all together at most 1."""
    output = MODEL.output([1], SamplingParams(30, ignore_eos=True), 0)
    for token, choices in zip(output.tokens, output.logprobs(0, 30, 21), strict=True):
        assert choices[0].token == token
        logprobs = [choice.logprob for choice in choices]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1 + 1e-9
        assert len({choice.token for choice in choices}) == 21
