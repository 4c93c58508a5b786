"""What engines are asked, and what is read of their answers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jaxserve.gateway.recording.token_ids import (
    FORMATS,
    TokenCollector,
    sampling_parameters,
    without_tokens,
)
from tests.examples_drawn import any_json

KEYS = "choices index message token_ids prompt_token_ids logprobs content meta_info"
KEYS += " output_token_logprobs delta tool_calls function"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_request_is_not_changed(kind: str) -> None:
    """Shared objects are not changed in place: records show what was sent."""
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
        "include_reasoning": False,
        "top_logprobs": 2,
    }
    before = copy.deepcopy(chat)
    asked = FORMATS[kind].ask(chat)
    assert chat == before and asked != before
    assert asked["messages"] == before["messages"] and asked["top_logprobs"] == 2


def test_what_vllm_is_asked() -> None:
    """Ids and log-probabilities; without reasoning it would give none of them."""
    asked = FORMATS["vllm"].ask({"include_reasoning": False, "stream": True, "logprobs": False})
    assert asked == {
        "stream": True,
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
    }


def test_what_sglang_is_asked() -> None:
    """Its own fields, and never a stream, which would lose log-probabilities."""
    asked = FORMATS["sglang"].ask({"stream": True, "stream_options": {}, "n": 2})
    assert asked == {
        "n": 2,
        "stream": False,
        "logprobs": True,
        "return_prompt_token_ids": True,
        "return_meta_info": True,
    }


def read(kind: str, answer: Any) -> TokenCollector:
    """What a whole answer tells."""
    tokens = TokenCollector(kind)
    tokens.add(answer)
    return tokens


def test_a_missing_logprob_is_none() -> None:
    """A missing value is NaN, not 0.0; entries that fit no token make all of them unknown."""
    content = [{"logprob": -1.0}, {"logprob": None}, {}]
    answer = {"choices": [{"token_ids": [1, 2, 3], "logprobs": {"content": content}}]}
    _, logprobs = read("vllm", answer).of(0)
    np.testing.assert_array_equal(logprobs, np.array([-1, np.nan, np.nan], np.float32))
    for unknown in ({"content": content}, None):
        short = {"choices": [{"token_ids": [1, 2], "logprobs": unknown}]}
        assert np.isnan(read("vllm", short).of(0)[1]).all()  # type: ignore[arg-type]


def test_what_sglang_samples_stands_in_its_meta_info() -> None:
    """All of it: ``logprobs`` leaves out tokens without text, as the last one usually is."""
    pairs = [[-0.1, 10, "a"], [-0.2, 11, "b"], [-0.3, 12, None]]
    content = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]
    choice = {"prompt_token_ids": [1, 2], "logprobs": {"content": content}}
    choice["meta_info"] = {"output_token_logprobs": pairs}
    tokens = read("sglang", {"choices": [choice]})
    ids, logprobs = tokens.of(0)
    assert tokens.prompt_ids is not None and tokens.prompt_ids.tolist() == [1, 2]
    assert ids is not None and ids.tolist() == [10, 11, 12]
    np.testing.assert_array_equal(logprobs, np.array([-0.1, -0.2, -0.3], np.float32))


def test_texts_of_tokens() -> None:
    """As the engine writes them; none at all where they cannot be told apart."""
    content = [{"token": "a", "logprob": -1.0}, {"logprob": -1.0}, {"token": "\n", "logprob": -1}]
    vllm = read("vllm", {"choices": [{"token_ids": [1, 2, 3], "logprobs": {"content": content}}]})
    assert vllm.texts(0) == ("a", "", "\n") and vllm.texts(1) is None
    for told in (content[:2], [{}, {}, {}], None):
        answer = {"choices": [{"token_ids": [1, 2, 3], "logprobs": {"content": told}}]}
        assert read("vllm", answer).texts(0) is None
    for pairs, texts in (
        ([[-0.1, 10, "a"], [-0.2, 11, None]], ("a", "")),
        ([[-0.1, 10], [-0.2, 11]], None),
    ):
        answer = {"choices": [{"meta_info": {"output_token_logprobs": pairs}}]}
        assert read("sglang", answer).texts(0) == texts


def test_events_tell_what_a_whole_answer_does() -> None:
    """Event by event, choices by turns."""
    tokens = TokenCollector("vllm")
    tokens.add({"prompt_token_ids": [7], "choices": [{"index": 0, "delta": {}}]})
    for index, token in ((0, 1), (1, 2), (0, 3)):
        content = [{"token": f"t{token}", "logprob": -float(token)}]
        choice = {"index": index, "token_ids": [token], "logprobs": {"content": content}}
        tokens.add({"choices": [choice], "prompt_token_ids": None})
    assert tokens.prompt_ids is not None and tokens.prompt_ids.tolist() == [7]
    assert [part.tolist() for part in tokens.of(0) if part is not None] == [[1, 3], [-1, -3]]
    assert [part.tolist() for part in tokens.of(1) if part is not None] == [[2], [-2]]
    assert tokens.of(2) == (None, None)
    assert (tokens.texts(0), tokens.texts(1)) == (("t1", "t3"), ("t2",))


@pytest.mark.parametrize("ids", [None, "abc", [1.5], [True], [2**40], [None], {}])
def test_what_are_no_ids_is_not_told(ids: Any) -> None:
    """Better dropped and counted than wrong."""
    tokens = read("vllm", {"prompt_token_ids": ids, "choices": [{"token_ids": ids}]})
    assert tokens.prompt_ids is None and tokens.of(0) == (None, None)


@pytest.mark.parametrize("kind", FORMATS)
@given(any_json(KEYS, 20))
def test_whatever_an_engine_says_is_read(kind: str, said: Any) -> None:
    """Garbage gives nothing, and no exception; what is read is not changed."""
    answer = said if isinstance(said, dict) else {"choices": said}
    before = copy.deepcopy(answer)
    tokens = read(kind, answer)
    tokens.add(answer)
    without_tokens(answer)
    assert repr(answer) == repr(before)
    assert tokens.prompt_ids is None or tokens.prompt_ids.dtype == np.int32
    for index in range(3):
        ids, logprobs = tokens.of(index)
        assert (ids is None) == (logprobs is None)
        assert ids is None or logprobs is None or len(ids) == len(logprobs)


def test_sampling_is_what_changes_tokens() -> None:
    """Neither messages nor wishes for the answer's form."""
    asked = {"temperature": 0.0, "top_p": None, "n": 2, "messages": [], "stream": True}
    assert sampling_parameters(asked) == {"temperature": 0.0, "n": 2}
