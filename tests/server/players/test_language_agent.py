"""A language model as an operator, against an OpenAI-compatible server on this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.spaces import DEFAULT_ACTION, OBSERVATION_BOUNDS
from server.players.language_agent import LanguageAgent
from server.players.model_settings import ModelSettings
from server.players.playing import InProcess, play_model
from server.sessions.programs import knobs_of
from server.wire.catalogue import describe_task
from server.wire.schemas import readable
from tests.server.players.stub_model import GOOD, KEY, Model

LAST = knobs_of(DEFAULT_ACTION)


def agent(model: Model, **chosen: Any) -> LanguageAgent:
    settings = {"model": "stub", "api_key": KEY, "base_url": model.url, "retries": 2}
    return LanguageAgent(ModelSettings(**settings | chosen))


def decide(player: LanguageAgent) -> tuple[float, ...]:
    task = describe_task("adversarial_multitenant")
    window = dict.fromkeys(OBSERVATION_BOUNDS, 1.0) | {"reward": 0.5}
    return player.decide(task, [window], LAST)


def test_an_answer_sets_the_knobs(model: Model) -> None:
    """Streamed JSON by a schema; the exchange is written down with its tokens."""
    player = agent(model)
    assert decide(player)[0] == 96.0
    assert player.tokens == 100
    (exchange,) = player.trace
    assert (exchange["answer"], exchange["error"], exchange["tokens"]) == (GOOD, None, 100)
    asked = model.asked[0]
    assert asked["key"] == f"Bearer {KEY}"
    assert asked["response_format"]["json_schema"]["strict"] is True
    system, situation = (message["content"] for message in asked["messages"])
    assert "batch_cap" in system
    assert json.loads(situation)["knobs_now"]["batch_cap"] == 32.0


@pytest.mark.parametrize(
    "wrong", ["I would raise the batch cap.", '{"batch_cap": 9999}', "[]", "{}", '{"boost": 1}']
)
def test_a_wrong_answer_is_repaired_once(model: Model, wrong: str) -> None:
    """The model is told what is wrong; what is wrong twice changes nothing."""
    model.answers = [wrong, GOOD]
    player = agent(model)
    assert decide(player)[0] == 96.0
    assert [exchange["attempt"] for exchange in player.trace] == ["first", "repair"]
    assert player.trace[0]["error"]
    assert "corrected JSON" in model.asked[1]["messages"][-1]["content"]
    model.answers = [wrong]
    assert decide(player) == LAST
    assert len(model.asked) == 4


def test_what_rests_on_no_request_is_not_shown(model: Model) -> None:
    """A model is told so instead of a number, and reads no billionth of a request."""
    game = InProcess("azure_code", 42, "test")
    quiet = game.step(LAST)
    while quiet.observation["request_arrival_rate"] > 0.0 or quiet.figures["ended"] > 1e-3:
        quiet = game.step(LAST)
    window = readable(quiet.observation, quiet.figures) | {"reward": quiet.reward}
    agent(model).decide(describe_task("azure_code"), [window], LAST)
    (shown,) = json.loads(model.asked[0]["messages"][1]["content"])["last_windows"]
    assert shown["slo_compliance_rate"] is None and shown["p99_ttft_ms"] is None
    numbers = [value for value in shown.values() if value is not None]
    assert all(value == 0.0 or abs(value) >= 1e-4 for value in numbers)


def test_a_busy_server_is_asked_again(model: Model) -> None:
    """429 and 500 are retried; what stays broken holds the knobs and is written down."""
    model.answers = [429, 500, GOOD]
    player = agent(model)
    assert decide(player)[0] == 96.0
    assert len(model.asked) == 3
    model.answers = [500]
    assert decide(player) == LAST
    assert player.trace[-1]["error"] == "status 500 of InternalServerError"


def test_a_refused_key_is_not_told(model: Model) -> None:
    """The error names the status, not what the server wrote; it is not asked again."""
    model.answers = [401]
    player = agent(model)
    assert decide(player) == LAST
    assert player.hopeless == (
        "the model stub has never answered: status 401 of AuthenticationError; the key is refused"
    )
    assert KEY not in json.dumps(player.trace)
    assert KEY not in repr(player.settings)


def test_servers_without_schemas_are_asked_by_tool_or_without(model: Model) -> None:
    """Once; afterwards it is known."""
    model.answers = [lambda body: 400 if "response_format" in body else GOOD]
    player = agent(model)
    assert [decide(player)[0] for _ in range(2)] == [96.0, 96.0]
    forms = ("response_format", "tools")
    assert [[form in body for form in forms] for body in model.asked] == [
        [True, False],
        [False, True],
        [False, True],
    ]
    model.asked.clear()
    model.answers = [lambda body: 422 if "response_format" in body or "tools" in body else GOOD]
    player = agent(model)
    assert [decide(player)[0] for _ in range(2)] == [96.0, 96.0]
    assert [any(form in body for form in forms) for body in model.asked] == [
        True,
        True,
        False,
        False,
    ]
    model.answers = [400]
    assert decide(player) == LAST


_UNSUPPORTED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead."
)
_ONE_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.0 with this model."


def test_models_that_reason_are_asked_as_they_take_it(model: Model) -> None:
    """With another name of the limit and without a temperature; once, then it is known."""

    def picky(body: dict[str, Any]) -> Any:
        if "max_tokens" in body:
            return 400, _UNSUPPORTED
        return (400, _ONE_TEMPERATURE) if "temperature" in body else GOOD

    model.answers = [picky]
    player = agent(model)
    assert [decide(player)[0] for _ in range(2)] == [96.0, 96.0]
    assert len(model.asked) == 4
    last = model.asked[-1]
    assert last["max_completion_tokens"] > 4000
    assert "response_format" in last and "seed" in last
    assert (player.decisions, player.answers) == (2, 2)


@pytest.mark.parametrize(
    "around",
    [
        '<think>If {load} is high, {{"batch_cap": 1}} would not do.</think>%s',
        'so a {"batch_cap": 2} is too small</think>\n%s',
        '%s\nThis is for {calm} traffic; see {"note": 1}.',
        "For {calm} traffic I chose:\n```json\n%s\n```\nwith {care}",
    ],
)
def test_knobs_are_found_in_what_surrounds_them(model: Model, around: str) -> None:
    """Thoughts before them, prose with braces around them; knobs that are not named stay."""
    model.answers = [around % json.dumps({"speculation_depth": 4})]
    assert decide(agent(model)) == knobs_of(DEFAULT_ACTION | {"speculation_depth": 4})
    assert len(model.asked) == 1


def test_an_answer_that_was_cut_off_gets_room(model: Model) -> None:
    """A model that thinks first is asked the same once more, with more tokens."""
    model.answers = ["<think>" + "hm " * 50, GOOD]
    model.finish = "length"
    player = agent(model)
    assert decide(player)[0] == 96.0
    assert model.asked[1]["max_tokens"] == 8 * model.asked[0]["max_tokens"]
    assert model.asked[1]["messages"] == model.asked[0]["messages"]


def test_a_tool_call_sets_the_knobs(model: Model) -> None:
    """Its arguments are streamed in pieces, and repaired like any answer."""
    model.calls_tools = True
    model.answers = [400, '{"batch_cap": 9999}', GOOD]
    player = agent(model)
    assert decide(player)[0] == 96.0
    assert [exchange["attempt"] for exchange in player.trace] == ["first", "first", "repair"]
    assert model.asked[-1]["tool_choice"]["function"]["name"] == "set_knobs"


@pytest.mark.parametrize("broken", [b"{oops", b"[1]", b'"text"', b'{"choices": [{}]}', b""])
def test_a_broken_stream_holds_the_knobs(model: Model, broken: bytes) -> None:
    """Whatever comes in place of a chunk, or a connection that ends in the middle of one."""
    model.broken = broken
    player = agent(model, retries=0)
    assert decide(player) == LAST
    assert player.trace[-1]["error"]
    model.broken = None
    assert decide(player)[0] == 96.0


def test_budgets_end_the_asking(model: Model) -> None:
    """By tokens, counted or estimated, and by time, also in the middle of an answer."""
    player = agent(model, max_tokens=150)
    assert [decide(player)[0] for _ in range(4)] == [96.0, 96.0, 32.0, 32.0]
    assert len(model.asked) == 2
    assert "150 tokens" in (player.exhausted or "")
    model.counts_tokens = False
    player = agent(model)
    decide(player)
    assert player.tokens > 100
    model.pause_s = 0.2
    model.answers = [GOOD.replace("calm", "calm " * 300)]
    player = agent(model, max_seconds=0.5)
    # Read to its end, the answer would set them.
    assert decide(player) == LAST
    assert "0.5 s" in (player.exhausted or "")


def test_silence_is_a_time_out(model: Model) -> None:
    """The knobs are held."""
    model.pause_s = 3.0
    player = agent(model, request_timeout_s=0.3, retries=0)
    assert decide(player) == LAST
    assert player.trace[-1]["error"] == "APITimeoutError"


def test_without_a_key_it_says_what_to_set() -> None:
    """One sentence; and the variables that count when there is one."""
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        ModelSettings.from_environment({})
    hub = ModelSettings.from_environment({"HF_TOKEN": "x", "MODEL_NAME": "m"})
    assert (hub.model, hub.base_url) == ("m", "https://router.huggingface.co/v1")
    own = {"OPENAI_API_KEY": "x", "API_BASE_URL": "http://here/v1"}
    assert ModelSettings.from_environment(own, model="n").base_url == "http://here/v1"


def test_a_model_that_is_always_busy_is_given_up(model: Model) -> None:
    """After a few decisions, and one that answered once is not."""
    model.answers = [429]
    player = agent(model, retries=0)
    assert [decide(player) for _ in range(3)] == [LAST] * 3
    assert "status 429" in (player.hopeless or "")
    model.answers = [GOOD, 429]
    player = agent(model, retries=0)
    assert [decide(player)[0] for _ in range(6)] == [96.0] + [32.0] * 5
    assert player.hopeless is None


def test_a_key_that_is_refused_in_the_middle_is_not_tried_again(model: Model) -> None:
    """The last knobs are held, and what was played with the model has a score."""
    model.answers = [GOOD, GOOD, 401]
    result = play_model(InProcess("static_workload", 0, "test"), agent(model), "static_workload")
    assert (result["decisions"], result["failed_decisions"], len(model.asked)) == (3, 1, 3)
    assert result["steps"] == 200


def test_an_answer_that_was_repaired_is_no_failure(model: Model) -> None:
    """Of the decisions of a run, none has failed."""
    model.answers = ["I would raise the batch cap.", GOOD]
    result = play_model(InProcess("static_workload", 0, "test"), agent(model), "static_workload")
    assert (result["decisions"], result["failed_decisions"]) == (20, 0)
    assert result["failed_exchanges"] == 1
