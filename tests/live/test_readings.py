"""What a gateway says is read whole, or refused with one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.live.readings import counted, fell, parse_engine_state, parse_knobs, parse_window
from tests.examples_drawn import any_json
from tests.live.deployment import engines_answer, knobs_answer, window_answer

KNOBS = parse_knobs(knobs_answer())


def test_a_window() -> None:
    """Field by field; a class that nobody is in counts nobody."""
    found = parse_window(window_answer(arrivals_by_priority={"0": 3, "-2": 1}, itl_p50_s=None))
    chat = found.classes["chat"]
    assert (found.seconds, found.gateway, found.itl_p50_s) == (1.0, "one", None)
    assert (chat.arrivals, chat.completed, chat.good) == ((2, 2, 2, 2), 8, 8)
    assert (chat.waiting, chat.running) == (1, 3) and chat.ttft_s == (0.05,) * 8
    assert found.arrivals_by_priority == {0: 3, -2: 1}
    assert parse_window(window_answer(in_flight={})).classes["chat"].running == 0


def test_engines() -> None:
    """Each has its counters, pools are as small as the smallest, and who is away is named."""
    one = engines_answer(output_tokens=5.0, kv_tokens=100.0, kv_use=0.2)["vllm-0"]
    other = engines_answer(output_tokens=7.0, kv_tokens=90.0, kv_use=0.4)["vllm-0"]
    found = parse_engine_state({"vllm-0": one, "vllm-1": other}, KNOBS)
    assert [each["output_tokens"] for each in found.counters.values()] == [5.0, 7.0]
    assert found.kv_use == pytest.approx(0.3) and found.kv_tokens == 90.0
    assert all(each["drafted"] is None for each in found.counters.values())
    assert (found.up, found.count) == (2, 2)
    away = parse_engine_state({"vllm-0": one, "vllm-1": {"error": "gone"}}, KNOBS)
    assert (away.up, away.count) == (1, 2) and away.counters.keys() != found.counters.keys()
    assert counted(found, away, "output_tokens") is None
    later = {"vllm-0": one, "vllm-1": other | {"started_unix_s": 2e9}}
    assert found.counters.keys() != parse_engine_state(later, KNOBS).counters.keys()


def test_an_engine_that_comes_or_goes_adds_nothing() -> None:
    """What it counted before it could be read, or since it was read last, is in no window."""

    def state(**tokens: float) -> Any:
        engines = {
            name: engines_answer(output_tokens=each)["vllm-0"] for name, each in tokens.items()
        }
        return parse_engine_state(engines, KNOBS)

    one, both = state(a=10.0), state(a=15.0, b=9e6)
    assert counted(one, both, "output_tokens") == 5.0
    assert counted(both, state(a=18.0), "output_tokens") == 3.0
    assert counted(one, state(b=9e6), "output_tokens") is None
    assert fell(one, both) is None and fell(both, one) == "output_tokens"


def test_counters() -> None:
    """What they have risen by; one that appears later, as SGLang's do, has not gone back."""

    def state(**values: Any) -> Any:
        return parse_engine_state(engines_answer(**values), KNOBS)

    before, after = state(output_tokens=10.0), state(output_tokens=15.0)
    assert counted(before, after, "output_tokens") == 5.0 and fell(before, after) is None
    assert counted(after, before, "output_tokens") is None
    assert fell(after, before) == "output_tokens"
    late = state(preemptions=None, output_tokens=10.0)
    assert counted(late, after, "preemptions") is None and fell(late, after) is None


CHANGES: list[tuple[Callable[[Any], Any], Callable[[], Any], tuple[Any, ...], Any, str]] = [
    (parse_window, window_answer, (), [], "the window is []; it must be a JSON object"),
    (parse_window, window_answer, ("gateway",), None, "gateway is None"),
    (parse_window, window_answer, ("until_s",), float("nan"), "until_s is nan"),
    (parse_window, window_answer, ("complete",), 1, "complete is 1"),
    (parse_window, window_answer, ("in_flight",), None, "in_flight is None"),
    (parse_window, window_answer, ("in_flight", "chat"), 5, "in flight is 5"),
    (parse_window, window_answer, ("itl_mean_s",), -1.0, "itl_mean_s is -1"),
    (parse_window, window_answer, ("classes", "chat", "good"), 1.5, "good is 1.5"),
    (parse_window, window_answer, ("classes", "chat", "good"), -1, "good is -1"),
    (parse_window, window_answer, ("classes", "chat", "ttft_s"), None, "ask for slices"),
    (parse_window, window_answer, ("classes", "chat", "ttft_s", 0), "x", "ttft_s is"),
    (parse_window, window_answer, ("classes", "chat", "arrivals_by_slice"), [], "at least one"),
    (parse_window, window_answer, ("classes", "chat", "arrivals_by_slice", 0), 0.5, "whole"),
    (parse_window, window_answer, ("arrivals_by_priority", "x"), 1, "'x' is no priority"),
    (parse_knobs, knobs_answer, (), None, "the knobs is None"),
    (parse_knobs, knobs_answer, ("held",), "yes", "held is 'yes'"),
    (parse_knobs, knobs_answer, ("engines", "vllm-0"), 3, "vllm-0 is 3"),
    (parse_knobs, knobs_answer, ("knobs", "batch_cap", "how"), "maybe", "how is 'maybe'"),
    (parse_knobs, knobs_answer, ("knobs", "batch_cap", "now"), "8", "now is '8'"),
    (parse_knobs, knobs_answer, ("knobs", "batch_cap", "least"), None, "least is None"),
    (parse_knobs, knobs_answer, ("knobs", "batch_cap", "allowed"), [], "allowed is []"),
    (parse_knobs, knobs_answer, ("knobs", "token_budget"), None, "token_budget is None"),
]


@pytest.mark.parametrize(("parse", "make", "path", "value", "message"), CHANGES)
def test_what_cannot_be(
    parse: Callable[[Any], Any], make: Callable[[], Any], path: Any, value: Any, message: str
) -> None:
    """The field is named."""
    answer = make()
    target = answer
    for key in path[:-1]:
        target = target[key]
    if path:
        target[path[-1]] = value
    else:
        answer = value
    with pytest.raises(InputError) as refused:
        parse(answer)
    assert message in str(refused.value)


@given(
    data=st.data(), junk=any_json(leaves=5), which=st.sampled_from(["window", "engines", "knobs"])
)
def test_garbage_anywhere(data: st.DataObject, junk: Any, which: str) -> None:
    """Whatever stands in one place, it is read or refused."""
    makes = {"window": window_answer, "engines": engines_answer, "knobs": knobs_answer}
    answer = copy.deepcopy(makes[which]())
    target: Any = answer
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        inner = target[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            target[key] = junk
            break
        target = inner
    try:
        if which == "engines":
            parse_engine_state(answer, KNOBS)
        else:
            (parse_window if which == "window" else parse_knobs)(answer)
    except InputError as error:
        assert "\n" not in str(error)
