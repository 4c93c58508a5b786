"""Knobs of engines: obeyed, or refused with one sentence, whatever the engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.engines import upstream as connections
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import EngineRefused, Upstream
from jaxserve.gateway.knobs import engine as module
from jaxserve.gateway.knobs.engine import EngineKnobs, SglangKnobs, engine_knobs
from server.local import free_port
from tests.examples_drawn import any_json
from tests.gateway.knob_engines import PluginEngine, SglangEngine
from tests.gateway.stub_engine import RawServer


def ask(url: str, kind: str, use: Callable[[EngineKnobs], Awaitable[Any]], **keys: str) -> Any:
    """What becomes of using an engine's knobs once."""

    async def play() -> Any:
        upstream = Upstream(connect_s=5.0)
        upstream.start()
        try:
            spec = EngineSpec(kind, url, f"{kind}-0", "default", **keys)  # type: ignore[arg-type]
            return await use(engine_knobs(spec, upstream))
        finally:
            await upstream.close()

    return asyncio.run(play())


def refusal(url: str, kind: str, use: Callable[[EngineKnobs], Awaitable[Any]]) -> str:
    """The one sentence of what is not done."""
    with pytest.raises(EngineRefused) as refused:
        ask(url, kind, use)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def vllm() -> Iterator[PluginEngine]:
    with PluginEngine() as engine:
        yield engine


def test_a_plug_in_is_turned_and_put_back(vllm: PluginEngine) -> None:
    """With its own token, under its own lease."""
    offer = ask(vllm.url, "vllm", lambda one: one.offer(), key="for-all", control_key="mine")
    assert offer.engine_id == "first" and set(offer.knobs) == {
        "batch_cap",
        "token_budget",
        "kv_budget_fraction",
    }
    assert offer.knobs["batch_cap"] == {"now": 64, "static": 64, "least": 1, "most": 64}
    assert offer.why_not("speculation_depth") == "it was started without a drafter"
    assert vllm.tokens == ["Bearer mine"]
    ask(vllm.url, "vllm", lambda one: one.put({"batch_cap": 8}, 20.0), key="for-all")
    assert vllm.commands == [("PUT", {"lease_s": 20.0, "knobs": {"batch_cap": 8}})]
    assert vllm.tokens[-1] == "Bearer for-all"
    ask(vllm.url, "vllm", lambda one: one.release())
    assert vllm.commands[-1] == ("DELETE", None) and vllm.now("batch_cap") == 64


@pytest.mark.parametrize(("told", "now"), [(8, 9), (8, 7), (100, 101), (8, None)])
def test_other_values_than_it_was_told(vllm: PluginEngine, told: float, now: Any) -> None:
    """A cap is a whole number: one more or less is not what it was told."""
    vllm.knobs["batch_cap"]["most"] = 200
    vllm.lies["batch_cap"] = now
    said = refusal(vllm.url, "vllm", lambda one: one.put({"batch_cap": told}, 1.0))
    assert said.startswith("engine vllm-0 has batch_cap") or "answers something else" in said


def test_shares_are_rounded_to_blocks(vllm: PluginEngine) -> None:
    """What a whole number of blocks makes of a share is as good as it, and no more than that."""
    vllm.lies["kv_budget_fraction"] = 0.503
    ask(vllm.url, "vllm", lambda one: one.put({"kv_budget_fraction": 0.5}, 1.0))
    vllm.lies["kv_budget_fraction"] = 0.6
    said = refusal(vllm.url, "vllm", lambda one: one.put({"kv_budget_fraction": 0.5}, 1.0))
    assert said == "engine vllm-0 has kv_budget_fraction 0.6 after it was told 0.5"


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"no JSON", "engine vllm-0 refused with status 200"),
        (200, b"[]", "an engine's control answers something else"),
        (200, b'{"engines": []}', "an engine's control answers something else"),
        (200, b'{"engines": [{"engine_id": 1, "knobs": [1]}]}', "something else"),
        (404, b"{}", "engine vllm-0 has no /jaxserve/control"),
        (
            401,
            b'{"error": "the token is wrong"}',
            "engine vllm-0 refused: the token is wrong; control=VARIABLE of --engine names the "
            "variable with the token of its knobs",
        ),
        (500, b"<html>", "engine vllm-0 refused with status 500"),
    ],
)
def test_answers_that_are_none(vllm: PluginEngine, status: int, body: bytes, reason: str) -> None:
    """Nothing is offered, and the reason is told; a command fails with it."""
    vllm.says = (status, body)
    offer = ask(vllm.url, "vllm", lambda one: one.offer())
    assert not offer.knobs and reason in offer.why_not("batch_cap")
    assert reason in refusal(vllm.url, "vllm", lambda one: one.put({"batch_cap": 8}, 1.0))


JSON = any_json(leaves=6)
KNOB = st.fixed_dictionaries(
    {"offered": st.booleans() | JSON},
    optional={name: JSON for name in ("now", "static", "least", "most", "reason")},
)


@given(
    answer=JSON
    | st.fixed_dictionaries(
        {
            "engines": st.lists(
                st.fixed_dictionaries(
                    {
                        "engine_id": JSON,
                        "knobs": st.dictionaries(st.sampled_from(["batch_cap", "x"]), KNOB | JSON),
                    }
                )
                | JSON,
                max_size=3,
            )
        }
    )
)
def test_whatever_a_plug_in_answers(answer: Any) -> None:
    """It is an offer of numbers, or refused."""
    try:
        offer = module._plugin_offer(answer)
    except EngineRefused:
        return
    for shown in offer.knobs.values():
        for word in ("static", "least", "most"):
            orjson.dumps(shown[word])
            assert shown[word] - shown[word] == 0.0  # finite
        assert shown["now"] is None or shown["now"] - shown["now"] == 0.0


def test_several_ranks_are_one_engine(vllm: PluginEngine) -> None:
    """The narrowest range; no value where they differ."""
    one = {"engine_id": "a", "knobs": {"batch_cap": vllm.knobs["batch_cap"]}}
    other = {"engine_id": "b", "knobs": {"batch_cap": {**vllm.knobs["batch_cap"], "most": 32}}}
    other["knobs"]["batch_cap"] |= {"now": 16, "least": 2}
    offer = module._plugin_offer({"engines": [one, other]})
    assert offer.engine_id == "a+b"
    assert offer.knobs["batch_cap"] == {"now": None, "static": 64, "least": 2, "most": 32}
    other["knobs"]["batch_cap"] = {"offered": False, "reason": "not this one"}
    offer = module._plugin_offer({"engines": [one, other]})
    assert not offer.knobs and offer.why_not("batch_cap") == "not this one"


def test_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever, and no address is told."""
    url = f"http://127.0.0.1:{free_port()}"
    for kind in ("vllm", "sglang"):
        assert refusal(url, kind, lambda one: one.release()) == (
            f"engine {kind}-0 cannot be reached"
        )
        offer = ask(url, kind, lambda one: one.offer())
        assert offer.why_not("batch_cap") == f"engine {kind}-0 cannot be reached"
    monkeypatch.setattr(connections, "ANSWER_WITHIN_S", 0.05)
    with RawServer(stays=True) as silent, RawServer(b"garbage\r\n\r\n") as mad:
        said = refusal(silent.url, "vllm", lambda one: one.release())
        assert said == "engine vllm-0 did not answer within 0.05 s"
        monkeypatch.setattr(connections, "ANSWER_WITHIN_S", 30.0)
        assert "other than HTTP" in refusal(mad.url, "vllm", lambda one: one.release())


def test_sglang_has_a_batch_cap() -> None:
    """Told, read back, and put back to what the engine was started with."""
    with SglangEngine(most=48, ranks=2, pp_max_micro_batch_size=40) as engine:
        offer = ask(engine.url, "sglang", lambda one: one.offer())
        assert dict(offer.knobs) == {"batch_cap": {"now": 40, "static": 40, "least": 1, "most": 48}}
        assert "no such knob" in offer.why_not("token_budget")
        ask(engine.url, "sglang", lambda one: one.put({"batch_cap": 8}, 1.0))
        offer = ask(engine.url, "sglang", lambda one: one.offer())
        # Also in the eyes of a gateway that has been started since.
        assert (offer.knobs["batch_cap"]["now"], offer.knobs["batch_cap"]["static"]) == (8, 40)
        ask(engine.url, "sglang", lambda one: one.release())
        assert engine.cap == 40 and engine.caps == [8, 40]
        ask(engine.url, "sglang", lambda one: one.release())
        ask(engine.url, "sglang", lambda one: one.put({}, 1.0))
        assert engine.caps == [8, 40]
        engine.states[1]["pp_max_micro_batch_size"] = 3
        assert ask(engine.url, "sglang", lambda one: one.offer()).knobs["batch_cap"]["now"] is None
    assert SglangKnobs.leases is False


def test_sglang_without_a_cap_of_its_own() -> None:
    """Static is then as many as may run."""
    with SglangEngine(most=48) as engine:
        offer = ask(engine.url, "sglang", lambda one: one.offer())
        assert offer.knobs["batch_cap"] == {"now": 48, "static": 48, "least": 1, "most": 48}


@pytest.mark.parametrize("answers", [False, None, "yes", 1])
def test_an_sglang_that_refuses(answers: Any) -> None:
    """Every rank must say that it has done it."""
    with SglangEngine(ranks=2) as engine:
        engine.answers = answers
        said = refusal(engine.url, "sglang", lambda one: one.put({"batch_cap": 8}, 1.0))
        assert said == "engine sglang-0 did not take a batch cap of 8"


def test_an_sglang_that_does_not_do_what_it_says() -> None:
    """What it answers is read back."""
    with SglangEngine() as engine:
        engine.obeys = False
        said = refusal(engine.url, "sglang", lambda one: one.put({"batch_cap": 8}, 1.0))
        assert said == "engine sglang-0 has batch_cap 48.0 after it was told 8"


@pytest.mark.parametrize(
    "info",
    [
        {"pp_size": 2},
        {"internal_states": []},
        {"internal_states": None},
        {"internal_states": [7]},
        {"internal_states": [{"effective_max_running_requests_per_dp": "many"}]},
        {"internal_states": [{"effective_max_running_requests_per_dp": True}]},
    ],
)
def test_an_sglang_whose_cap_is_not_live(info: dict[str, Any]) -> None:
    """It offers none, and says why."""
    with SglangEngine(**info) as engine:
        engine.states = info.get("internal_states", engine.states)
        offer = ask(engine.url, "sglang", lambda one: one.offer())
        assert not offer.knobs and "pipeline parallelism" in offer.why_not("batch_cap")
        ask(engine.url, "sglang", lambda one: one.release())
        assert not engine.caps
