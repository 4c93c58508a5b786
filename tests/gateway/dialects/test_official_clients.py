"""The official clients understand every answer; their types check each event."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.dialects.conversations import PIXEL
from tests.gateway.dialects.scripted_gateway import ScriptedGateway

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
}
ARGUMENTS = '{"place":"Ulm"}'
COUNTS = Counts(11, 7, 3, 2)
SPOKEN = Completion((CompletionChoice(0, "Höhe: 5", "let me see", finish="stop"),), COUNTS)
CALLED = Completion(
    (
        CompletionChoice(
            0,
            "I look.",
            "which place?",
            calls=(ToolCall("c0", "find", ARGUMENTS), ToolCall("c1", "find", "{}")),
            finish="tool_calls",
        ),
    ),
    COUNTS,
)
CUT = Completion((CompletionChoice(0, "Once upon", finish="length"),), COUNTS)
REFUSED = Completion((CompletionChoice(0, refusal="no", finish="content_filter"),), COUNTS)
EMPTY = Completion((CompletionChoice(0, finish="stop"),))
ALL = (SPOKEN, CALLED, CUT, REFUSED, EMPTY)
SEEN = {"role": "user", "content": "hello"}


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    """A server that does what the test says."""
    with ScriptedGateway() as running:
        yield running


def engine_heard(gateway: ScriptedGateway) -> list[Any]:
    """The last request's messages."""
    return gateway.chats[-1].request["messages"]


# OpenAI


@pytest.fixture
def openai_client(gateway: ScriptedGateway) -> Any:
    """Their client."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)


@pytest.mark.parametrize("completion", ALL)
def test_chat(gateway: ScriptedGateway, openai_client: Any, completion: Completion) -> None:
    """Whole and streamed, by types and by their own accumulation."""
    import openai

    gateway.says(completion)
    choice = completion.first
    create = openai_client.chat.completions.create
    function = {"name": "find", "parameters": SCHEMA, "strict": True}
    asked: dict[str, Any] = {"model": "m", "messages": [SEEN]}
    asked["tools"] = [{"type": "function", "function": function}]
    whole = create(**asked)
    strict(type(whole), whole)
    message = whole.choices[0].message
    assert (message.content or "", message.refusal or "") == (choice.text, choice.refusal)
    assert getattr(message, "reasoning_content", "") == choice.reasoning
    assert [call.function.arguments for call in message.tool_calls or ()] == [
        call.arguments for call in choice.calls
    ]
    for chunk in create(**asked, stream=True, stream_options={"include_usage": True}):
        strict(type(chunk), chunk)
    raised = {"length": openai.LengthFinishReasonError}
    raised["content_filter"] = openai.ContentFilterFinishReasonError
    with openai_client.chat.completions.stream(**asked) as stream:
        if choice.finish in raised:
            with pytest.raises(raised[choice.finish]):
                stream.get_final_completion()
            return
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.choices[0].finish_reason
    assert (final.message.content or "") == choice.text
    assert [call.id for call in final.message.tool_calls or ()] == [
        call.id for call in choice.calls
    ]


@pytest.mark.parametrize("completion", ALL)
def test_responses(gateway: ScriptedGateway, openai_client: Any, completion: Completion) -> None:
    """Whole and streamed; the client sends the output back, and the engine has it again."""
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    gateway.says(completion)
    choice = completion.first
    create = openai_client.responses.create
    tool = {"type": "function", "name": "find", "parameters": SCHEMA, "strict": True}
    asked: dict[str, Any] = {
        "model": "m",
        "input": [SEEN],
        "instructions": "be brief",
        "tools": [tool],
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    whole = create(**asked)
    strict(Response, whole)
    assert whole.output_text == choice.text
    events = TypeAdapter(ResponseStreamEvent)
    last: Any = None
    for event in create(**asked, stream=True):
        last = events.validate_python(event.model_dump(by_alias=True))
    assert last.response.model_dump() == whole.model_dump()
    with openai_client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
    create(**asked | {"input": [SEEN, *whole.output, SEEN]})
    system, first, *again, _ = engine_heard(gateway)
    assert system == {"role": "system", "content": "be brief"} and first == SEEN
    if completion is EMPTY:
        assert again == []
        return
    assert again[0]["content"] == choice.text + choice.refusal
    assert again[0].get("reasoning_content", "") == choice.reasoning
    assert [call["id"] for call in again[0].get("tool_calls", ())] == [
        call.id for call in choice.calls
    ]


def test_structured_responses(gateway: ScriptedGateway, openai_client: Any) -> None:
    """Their parser gives the schema, and gets what it parses."""
    from pydantic import BaseModel

    class Place(BaseModel):
        """What is wanted."""

        place: str

    gateway.says(Completion((CompletionChoice(0, ARGUMENTS, finish="stop"),), COUNTS))
    found = openai_client.responses.parse(model="m", input="hello", text_format=Place)
    assert found.output_parsed == Place(place="Ulm")
    wanted = gateway.chats[-1].request["response_format"]
    assert wanted["json_schema"]["schema"]["properties"]["place"]["type"] == "string"
    chat = openai_client.chat.completions.parse(model="m", messages=[SEEN], response_format=Place)
    assert chat.choices[0].message.parsed == Place(place="Ulm")


def test_counting_and_models_of_openai(gateway: ScriptedGateway, openai_client: Any) -> None:
    """Input tokens of responses; the list and one of it."""
    gateway.tokens = 42
    assert openai_client.responses.input_tokens.count(model="m", input="hi").input_tokens == 42
    assert [model.id for model in openai_client.models.list()] == ["m"]
    strict(type(openai_client.models.retrieve("m")), openai_client.models.retrieve("m"))


def test_errors_of_openai(gateway: ScriptedGateway, openai_client: Any) -> None:
    """By class and sentence, before and inside a stream."""
    import openai

    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        openai_client.responses.create(model="m", input="hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="no such model"):
        openai_client.models.retrieve("other")
    gateway.says(SPOKEN)
    gateway.fails_with = RequestError(502, "engine_broke", "engine e broke the connection")
    with pytest.raises(openai.APIError, match="broke the connection"):
        list(openai_client.chat.completions.create(model="m", messages=[SEEN], stream=True))


# Anthropic


@pytest.fixture
def anthropic_client(gateway: ScriptedGateway) -> Any:
    """Their client."""
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    return anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0)


@pytest.mark.parametrize("completion", ALL)
def test_messages(gateway: ScriptedGateway, anthropic_client: Any, completion: Completion) -> None:
    """Whole and streamed; content is sent back as it came, with results and an image."""
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    gateway.says(completion)
    choice = completion.first
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 2000,
        "messages": [SEEN],
        "system": "be brief",
        "tools": [{"name": "find", "input_schema": SCHEMA}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    whole = anthropic_client.messages.create(**asked)
    strict(Message, whole)
    events = TypeAdapter(RawMessageStreamEvent)
    for event in anthropic_client.messages.create(**asked, stream=True):
        events.validate_python(event.model_dump(by_alias=True))
    with anthropic_client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    without_tokens = {"parsed_output"}
    assert [block.model_dump(exclude=without_tokens) for block in final.content] == [
        block.model_dump() for block in whole.content
    ]
    assert final.stop_reason == whole.stop_reason
    # The client adds the start's usage to the end's, which says all there is.
    assert final.usage.output_tokens == whole.usage.output_tokens
    results = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "is_error": True,
            "content": [
                {"type": "text", "text": "seen"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                },
            ],
        }
        for call in choice.calls
    ]
    history = [
        SEEN,
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": results or "go on"},
    ]
    anthropic_client.messages.create(**asked | {"messages": history})
    _, _, answer, *rest = engine_heard(gateway)
    assert (answer["content"] or "") == choice.text + choice.refusal
    assert answer.get("reasoning_content", "") == choice.reasoning
    assert [call["function"] for call in answer.get("tool_calls", ())] == [
        {"name": call.name, "arguments": call.arguments} for call in choice.calls
    ]
    for result, call in zip(rest, choice.calls, strict=bool(choice.calls)):
        assert result["tool_call_id"] == call.id
        assert result["content"] == [
            {"type": "text", "text": "Error: seen"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ]


def test_counting_and_models_of_anthropic(gateway: ScriptedGateway, anthropic_client: Any) -> None:
    """Tokens of a prompt; the list and one of it."""
    gateway.tokens = 42
    counted = anthropic_client.messages.count_tokens(model="m", messages=[SEEN], system="x")
    assert counted.input_tokens == 42
    (model,) = anthropic_client.models.list()
    strict(type(model), model)
    assert anthropic_client.models.retrieve("m") == model


def test_errors_of_anthropic(gateway: ScriptedGateway, anthropic_client: Any) -> None:
    """By class and sentence, before and inside a stream."""
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0"):
        anthropic_client.messages.create(model="m", messages=[SEEN], max_tokens=0)
    gateway.says(SPOKEN)
    gateway.fails_with = RequestError(502, "engine_broke", "engine e broke the connection")
    with (
        pytest.raises(anthropic.APIError, match="broke the connection"),
        anthropic_client.messages.stream(model="m", messages=[SEEN], max_tokens=5) as stream,
    ):
        stream.get_final_message()


# Google


@pytest.fixture
def google_client(gateway: ScriptedGateway) -> Any:
    """Their client."""
    genai = pytest.importorskip("google.genai", reason="the package google-genai is not installed")
    return genai.Client(api_key="k", http_options={"base_url": gateway.url})


@pytest.mark.parametrize("completion", ALL)
def test_google(gateway: ScriptedGateway, google_client: Any, completion: Completion) -> None:
    """Whole and streamed; the content is sent back as the client's own objects."""
    from google.genai import types

    gateway.says(completion)
    choice = completion.first
    declared = types.FunctionDeclaration(
        name="find",
        parameters=types.Schema(
            type=types.Type.OBJECT, properties={"place": types.Schema(type=types.Type.STRING)}
        ),
    )
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        max_output_tokens=50,
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    ask = types.Content(
        role="user",
        parts=[
            types.Part(text="hello"),
            types.Part.from_bytes(data=base64.b64decode(PIXEL), mime_type="image/png"),
        ],
    )
    whole = google_client.models.generate_content(model="m", contents=[ask], config=config)
    said = [part.text for part in whole.candidates[0].content.parts if not part.thought]
    assert "".join(text for text in said if text) == choice.text + choice.refusal
    assert whole.usage_metadata.total_token_count == (
        (completion.counts.prompt or 0) + (completion.counts.output or 0)
    )
    sent = gateway.chats[-1].request
    assert sent["messages"][0] == {"role": "system", "content": "be brief"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "hello"}, image]
    assert sent["max_completion_tokens"] == 50
    assert sent["tools"][0]["function"]["parameters"]["properties"] == {"place": {"type": "string"}}
    chunks = list(
        google_client.models.generate_content_stream(model="m", contents=[ask], config=config)
    )
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or ()]
    assert chunks[-1].candidates[0].finish_reason == whole.candidates[0].finish_reason
    assert [json.dumps(part.function_call.args) for part in parts if part.function_call] == [
        json.dumps(json.loads(call.arguments)) for call in choice.calls
    ]
    for content in (whole.candidates[0].content, types.Content(role="model", parts=parts)):
        google_client.models.generate_content(
            model="m", contents=[ask, content, ask], config=config
        )
        answer = engine_heard(gateway)[2]
        assert (answer["content"] or "") == choice.text + choice.refusal
        assert answer.get("reasoning_content", "") == choice.reasoning
        assert [call["id"] for call in answer.get("tool_calls", ())] == [
            call.id for call in choice.calls
        ]


def test_structured_google(gateway: ScriptedGateway, google_client: Any) -> None:
    """A schema reaches the engine in either of their two forms."""
    gateway.says(Completion((CompletionChoice(0, ARGUMENTS, finish="stop"),), COUNTS))
    for name, schema in (
        ("response_json_schema", SCHEMA),
        ("response_schema", {"type": "OBJECT", "properties": {"place": {"type": "STRING"}}}),
    ):
        config = {"response_mime_type": "application/json", name: schema}
        found = google_client.models.generate_content(model="m", contents="hi", config=config)
        assert json.loads(found.text) == {"place": "Ulm"}
        wanted = gateway.chats[-1].request["response_format"]["json_schema"]["schema"]
        assert wanted["properties"] == {"place": {"type": "string"}}


def test_counting_models_and_errors_of_google(gateway: ScriptedGateway, google_client: Any) -> None:
    """Tokens of a prompt; the list and one of it; errors by status and sentence."""
    from google.genai import errors

    gateway.tokens = 42
    assert google_client.models.count_tokens(model="m", contents="hi").total_tokens == 42
    (model,) = google_client.models.list()
    assert (model.name, model.input_token_limit) == ("models/m", 4096)
    assert google_client.models.get(model="m").name == "models/m"
    with pytest.raises(
        errors.ClientError, match=r"400 INVALID_ARGUMENT.*responseLogprobs is not supported"
    ):
        google_client.models.generate_content(
            model="m", contents="hi", config={"response_logprobs": True}
        )
    gateway.says(SPOKEN)
    gateway.fails_with = RequestError(502, "engine_broke", "engine e broke the connection")
    with pytest.raises(errors.APIError, match="broke the connection"):
        list(google_client.models.generate_content_stream(model="m", contents="hi"))


def strict(kind: Any, found: Any) -> None:
    """Checks what a client made without a check."""
    kind.model_validate(found.model_dump(by_alias=True))
