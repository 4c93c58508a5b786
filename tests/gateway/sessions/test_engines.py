"""What engines are asked, and what is read of their answers."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.sessions.assembly import Assembly, events_of
from jaxserve.gateway.sessions.engines import STRATEGIES, bare, read, sampling_of, shown

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "index",
                    "message",
                    "token_ids",
                    "prompt_token_ids",
                    "logprobs",
                    "content",
                    "meta_info",
                    "output_token_logprobs",
                    "delta",
                    "tool_calls",
                    "function",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_request_is_not_changed(kind: str) -> None:
    """Fault 4: shared objects were changed in place, so that records showed what was not sent."""
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
        "include_reasoning": False,
        "top_logprobs": 2,
    }
    before = copy.deepcopy(chat)
    asked = STRATEGIES[kind].ask(chat)
    assert chat == before and asked != before
    assert asked["messages"] == before["messages"] and asked["top_logprobs"] == 2


def test_what_vllm_is_asked() -> None:
    """Ids, log-probabilities and usage; without reasoning it would give none of them."""
    asked = STRATEGIES["vllm"].ask({"include_reasoning": False, "stream": True, "logprobs": False})
    assert asked == {
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
    }
    assert "stream_options" not in STRATEGIES["vllm"].ask({})


def test_what_sglang_is_asked() -> None:
    """Its own fields, and never a stream, which would lose log-probabilities."""
    asked = STRATEGIES["sglang"].ask({"stream": True, "stream_options": {}, "n": 2})
    assert asked == {
        "n": 2,
        "stream": False,
        "logprobs": True,
        "return_prompt_token_ids": True,
        "return_meta_info": True,
    }


def test_a_missing_logprob_is_none() -> None:
    """Fault 3: not 0.0. One that cannot be told apart from others makes all of them unknown."""
    content = [{"logprob": -1.0}, {"logprob": None}, {}]
    answer = {"choices": [{"token_ids": [1, 2, 3], "logprobs": {"content": content}}]}
    _, (choice,) = read("vllm", answer)
    np.testing.assert_array_equal(choice.logprobs, np.array([-1, np.nan, np.nan], np.float32))
    short = {"choices": [{"token_ids": [1, 2], "logprobs": {"content": content}}]}
    assert np.isnan(read("vllm", short)[1][0].logprobs).all()  # type: ignore[arg-type]
    none = {"choices": [{"token_ids": [1, 2], "logprobs": None}]}
    assert np.isnan(read("vllm", none)[1][0].logprobs).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [None, "abc", [1.5], [True], [2**40], [None], {}])
def test_what_are_no_ids_is_not_told(ids: Any) -> None:
    """Better dropped and counted than wrong."""
    prompt, (choice,) = read("vllm", {"prompt_token_ids": ids, "choices": [{"token_ids": ids}]})
    assert prompt is None and choice.response_ids is None and choice.logprobs is None


@pytest.mark.parametrize("kind", STRATEGIES)
@given(_JSON)
def test_whatever_an_engine_says_is_read(kind: str, said: Any) -> None:
    """Garbage gives nothing, and no exception; what is read is not changed."""
    answer = said if isinstance(said, dict) else {"choices": said}
    before = copy.deepcopy(answer)
    prompt, choices = read(kind, answer)
    assembly = Assembly()
    assembly.add(answer)
    list(events_of(answer))
    bare(answer)
    shown(answer, {"include_reasoning": False})
    assert repr(answer) == repr(before)
    assert prompt is None or prompt.dtype == np.int32
    for choice in choices:
        if choice.response_ids is not None and choice.logprobs is not None:
            assert len(choice.response_ids) == len(choice.logprobs)


_TEXT = st.text("abc", max_size=3)
_CALL = st.fixed_dictionaries(
    {
        "id": _TEXT.filter(bool),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": _TEXT, "arguments": _TEXT}),
    }
)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": _TEXT},
    optional={
        "reasoning": _TEXT.filter(bool),
        "tool_calls": st.lists(_CALL, min_size=1, max_size=2),
    },
)


@given(st.lists(_MESSAGE, min_size=1, max_size=3), st.booleans())
def test_events_and_answer_are_one(messages: list[dict[str, Any]], counted: bool) -> None:
    """An answer made into events and put together again is the same answer."""
    answer: dict[str, Any] = {
        "id": "1",
        "created": 1,
        "model": "m",
        "object": "chat.completion",
        "choices": [
            {"index": index, "message": message, "finish_reason": "stop", "token_ids": [1, 2]}
            for index, message in enumerate(messages)
        ],
    }
    if counted:
        answer["usage"] = {"completion_tokens": 2}
    assembly = Assembly()
    for event in events_of(json.loads(json.dumps(answer))):
        assembly.add(event)
    assert assembly.finished and assembly.answer() == answer


def test_reasoning_stays_where_it_is_not_wanted() -> None:
    """The engine must give it for the ids; the client has not asked for it."""
    said = {"choices": [{"message": {"content": "a", "reasoning": "b"}, "token_ids": [1]}]}
    assert shown(said, {"include_reasoning": False}) == {"choices": [{"message": {"content": "a"}}]}
    assert shown(said, {})["choices"][0]["message"] == {"content": "a", "reasoning": "b"}


def test_sampling_is_what_changes_tokens() -> None:
    """Neither messages nor wishes for the answer's form."""
    asked = {"temperature": 0.0, "top_p": None, "n": 2, "messages": [], "stream": True}
    assert sampling_of(asked) == {"temperature": 0.0, "n": 2}
