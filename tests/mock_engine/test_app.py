"""The routes, as clients of vLLM use them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.gateway_thread import Leaver
from tests.mock_engine.conftest import Running
from tests.patience import PATIENCE_S, wait_until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}]}
COMPLETION = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}

BODIES = {"chat/completions": CHAT, "completions": COMPLETION}


@pytest.fixture
def client(engine: Running) -> Iterator[openai.OpenAI]:
    """The official client."""
    options: Any = {"base_url": f"{engine.url}/v1", "api_key": "none", "timeout": PATIENCE_S}
    with openai.OpenAI(**options) as one:
        yield one


def post(engine: Running, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{engine.url}{path}", json=body, timeout=PATIENCE_S, **options)


def events(engine: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream, which must be whole."""
    answer = post(engine, path, {**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    """Whole and streamed answers are the same, with log-probabilities and usage."""
    asked: Any = {**CHAT, "max_completion_tokens": 12, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None and whole.choices[0].logprobs is not None
    assert whole.usage.completion_tokens == len(whole.choices[0].logprobs.content or []) == 12
    assert whole.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    told = [c.choices[0].logprobs for c in chunks[1:-1]]
    content = [token for one in told if one for token in one.content or []]
    assert content == whole.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 3 and token.logprob < 0 for token in content)


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    """Several prompts with several outputs each, with log-probabilities."""
    answer = client.completions.create(
        model="tiny", prompt=[[1, 2], [3, 4]], n=2, max_tokens=6, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == choice.text
        assert [len(top) for top in choice.logprobs.top_logprobs or []] == [2] * 6
    assert answer.usage is not None and answer.usage.prompt_tokens == 4


@pytest.mark.parametrize(("path", "body"), BODIES.items())
def test_token_ids_are_told(engine: Running, path: str, body: dict[str, Any]) -> None:
    """In a stream the prompt's come first, the output's with each event."""
    asked = {**body, "max_tokens": 8, "return_token_ids": True}
    whole = post(engine, f"/v1/{path}", asked).json()
    chunks = events(engine, f"/v1/{path}", asked)
    choices = [chunk["choices"][0] for chunk in chunks]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    owner = whole if "chat" in path else whole["choices"][0]
    first = chunks[0] if "chat" in path else choices[0]
    assert first["prompt_token_ids"] == owner["prompt_token_ids"]
    assert whole["usage"]["prompt_tokens"] == len(owner["prompt_token_ids"])
    text = post(engine, "/detokenize", {"tokens": ids}).json()["prompt"]
    assert post(engine, "/tokenize", {"prompt": text}).json()["tokens"][1:] == ids


def test_outputs_end(engine: Running) -> None:
    """By themselves, at a stop text, at a stop token, or at their greatest length."""

    def ended(**more: Any) -> dict[str, Any]:
        asked = {**COMPLETION, "max_tokens": 200, "return_token_ids": True, **more}
        return post(engine, "/v1/completions", asked).json()["choices"][0]

    free = ended()
    assert (free["finish_reason"], len(free["token_ids"])) == ("length", 200)
    words = free["text"].split()
    stopped = ended(stop=[words[5], "never"])
    assert stopped["finish_reason"] == "stop" and stopped["stop_reason"] == words[5]
    assert stopped["text"] == " " + " ".join(words[:5]) + " "
    assert stopped["token_ids"] == free["token_ids"][:6]
    token = free["token_ids"][3]
    assert ended(stop_token_ids=[token])["token_ids"] == free["token_ids"][:4]
    natural = ended(ignore_eos=False, max_tokens=500 - 3, seed=3)
    assert natural["finish_reason"] in ("stop", "length")
    late = ended(ignore_eos=False, min_tokens=190)
    assert len(late["token_ids"]) > 190


@pytest.mark.parametrize(
    ("body", "status", "message", "param"),
    [
        ({"model": "gpt"}, 404, "The model `gpt` does not exist. Valid aliases: tiny.", "model"),
        (
            {"prompt": [1] * 513},
            400,
            "This model's maximum context length is 512",
            "input_",
        ),
        (
            {"max_tokens": 513},
            400,
            "max_tokens=513 cannot be greater than max_model_len=",
            "max_t",
        ),
        ({"max_tokens": 0}, 400, "request: max_tokens is 0; it must be a whole number", None),
        ({"temperature": -4}, 400, "request: temperature is -4; it must be a number", None),
        ({"top_p": 0}, 400, "request: top_p is 0; it must be a number from", None),
        ({"prompt": {}}, 400, "prompt is {}; it must be a text, token ids", None),
        ({"prompt": [1, "a"]}, 400, "a token id of prompt is 'a'", None),
        ({"prompt": [200_000]}, 400, "a token id of prompt is 200000", None),
        ({"logprobs": 21}, 400, "request: logprobs is 21", None),
        ({"stream": "yes"}, 400, "request: stream is 'yes'; it must be true or false", None),
        ({"stop": [1]}, 400, "stop is [1]; it must be a text or a list of texts", None),
        ({"echo": True}, 400, "echo is not known to the mock engine", "echo"),
        ({"stream_options": {"include_usage": True}}, 400, "Stream options can only", "stream_"),
    ],
)
def test_what_cannot_be_is_refused(
    engine: Running, body: dict[str, Any], status: int, message: str, param: str | None
) -> None:
    """In vLLM's form."""
    answer = post(engine, "/v1/completions", {**COMPLETION, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, status)
    assert error["message"].startswith(message)
    assert error["param"] is None if param is None else error["param"].startswith(param)


def test_other_routes(engine: Running) -> None:
    """Those that vLLM has here, and one error for those that it has not."""
    with httpx.Client(base_url=engine.url, timeout=PATIENCE_S) as http:
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            assert http.request(method, path).status_code == 200
        assert http.get("/load").json() == {"server_load": 0}
        assert re.match(r"\d+\.\d+\.\d+", http.get("/version").json()["version"])
        (card,) = http.get("/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == ("tiny", 512)
        assert http.post("/v1/responses", json={}).json()["error"]["code"] == 404
        assert http.get("/v1/completions").status_code == 405
        assert http.post("/v1/completions", content=b"{").status_code == 400


def test_metrics_have_vllms_names(start: Any) -> None:
    """Every name of a vLLM that speculates, and counts that are those of what was served."""
    engine = start(speculation_depth=2)
    assert len(events(engine, "/v1/completions", {**COMPLETION, "max_tokens": 50})) <= 50
    text = httpx.get(f"{engine.url}/metrics").text
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("num_preemptions_total", "prompt_tokens_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total"),
        *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("request_time_per_output_token_seconds_sum", "e2e_request_latency_seconds_count"),
        *("request_queue_time_seconds_sum", "request_prefill_time_seconds_sum"),
        *("request_decode_time_seconds_sum", "cache_config_info"),
        *("num_requests_waiting_by_reason", "spec_decode_num_drafts_total"),
        *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
        *("request_prompt_tokens_bucket", "request_generation_tokens_bucket"),
        *("request_max_num_generation_tokens_bucket", "request_params_max_tokens_bucket"),
    ):
        assert f"\nvllm:{name}{{" in text
    found = dict(re.findall(r"^vllm:(\w+)\{engine=\"0\",model_name=\"tiny\"\} (\S+)$", text, re.M))
    assert float(found["prompt_tokens_total"]) == 3
    assert float(found["generation_tokens_total"]) == 50
    assert float(found["time_to_first_token_seconds_count"]) == 1
    assert float(found["request_prompt_tokens_sum"]) == 3
    assert float(found["request_max_num_generation_tokens_sum"]) == 50
    drafts, drafted = (
        float(found[f"spec_decode_num_{what}_total"]) for what in ("drafts", "draft_tokens")
    )
    assert drafted == 2 * drafts


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_is_forgotten(start: Any, streamed: bool) -> None:
    """Its place and its blocks are free, whether it was running or waiting."""
    engine = start(speed=1.0, batch_cap=1)
    port = int(engine.url.rpartition(":")[2])
    body = {**COMPLETION, "max_tokens": 500, "stream": streamed}
    leavers = [Leaver(port, body, "/v1/completions") for _ in range(3)]
    state = engine.loop.state
    wait_until(lambda: (state()["running"], state()["waiting"]) == (1, 2))
    for leaver in leavers:
        leaver.leave()
    wait_until(lambda: (state()["running"], state()["waiting"]) == (0, 0))
    assert state()["kv_blocks_used"] == 0


def test_a_client_that_does_not_read_holds_nobody_up(start: Any) -> None:
    """Others are served meanwhile."""
    engine = start()
    body = {**COMPLETION, "max_tokens": 500, "stream": True}
    idle = Leaver(int(engine.url.rpartition(":")[2]), body, "/v1/completions")
    assert len(events(engine, "/v1/completions", COMPLETION)) == 8
    idle.leave()
