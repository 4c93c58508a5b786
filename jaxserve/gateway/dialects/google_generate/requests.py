"""Requests of Google's ``generateContent``, and requests to count their tokens.

Google's servers take fields in two spellings, ``topP`` and ``top_p``, and so does this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.gateway.dialects.canonical import Chat, DialectRequest, build_chat
from jaxserve.gateway.dialects.google_generate.schemas import json_schema
from jaxserve.gateway.dialects.request_fields import (
    assistant_message,
    content_of,
    data_url,
    function_call,
    function_tool,
    image_part,
    json_text,
    named_choice,
    only_named,
    optional_object,
    optional_objects,
    optional_text,
    optional_texts,
    refuse_fields,
    refuse_unsupported,
    refuses_bad_input,
    renamed,
    schema_format,
    text_part,
    tool_message,
)
from jaxserve.gateway.dialects.sealed_reasoning import unsealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy

_LACKING = {
    "cachedContent": "nothing is stored here, so send the content itself",
    "config": "put generationConfig, systemInstruction, tools and toolConfig beside contents",
    "continuationToken": "nothing is stored here, so send the whole contents",
    "modelArmorConfig": "nothing is filtered here",
}
_LACKING_OUTPUT = {
    "responseLogprobs": "ask for log-probabilities on /v1/chat/completions",
    "logprobs": "ask for log-probabilities on /v1/chat/completions",
    "speechConfig": "the model writes text only",
    "imageConfig": "the model writes text only",
    "generationOutputConfig": "the model writes text only",
    "translationConfig": "the model writes text only",
    "audioTranscriptionConfig": "the model reads text and images only",
    "audioTimestamp": "the model reads text and images only",
    "enableAffectiveDialog": "the model reads text and images only",
    "responseFormat": "use responseJsonSchema",
    "routingConfig": "the path names the model",
    "modelSelectionConfig": "the path names the model",
}
_NAMES = {
    "maxOutputTokens": "max_completion_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "candidateCount": "n",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_SNAKE = re.compile(r"_([a-z])")
_OF_SERVER = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts for actions of Google's servers."""
_MODES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_VERBATIM = (
    "args",
    "response",
    "responseJsonSchema",
    "parametersJsonSchema",
    "properties",
    "default",
)
"""Fields with names of the client's own inside, which keep their spelling."""


@refuses_bad_input
def to_chat(asked: DialectRequest, policy: TemplatePolicy) -> Chat:
    """Reads a client's request into the canonical form; its path has the model and the method.

    Raises:
      RequestError: the request is malformed, or asks for something that engines lack.
    """
    fields = JsonObject(_camel(dict(asked.fields)), "the request")
    if asked.counts:
        fields = optional_object(fields, "generateContentRequest") or fields
    refuse_fields(fields, _LACKING)
    messages = [*_system(fields), *_contents(fields)]
    config = optional_object(fields, "generationConfig")
    refuse_fields(config, _LACKING_OUTPUT)
    if {*optional_texts(config, "responseModalities")} - {"TEXT"}:
        refuse_unsupported(
            "responseModalities other than TEXT are not supported: the model writes text only"
        )
    request = renamed(config, _NAMES)
    tools = list(_tools(fields))
    if tools:
        request["tools"] = tools
        request |= _tool_choice(fields, tools)
    thinking = optional_object(config, "thinkingConfig")
    request |= _effort(thinking, policy) | _format(config)
    return build_chat(
        asked,
        asked.model or fields.text("model").removeprefix("models/"),
        messages,
        request,
        policy,
        streamed=asked.streamed is True,
        notes={"shows_thoughts": thinking.get("includeThoughts") is True},
    )


def _camel(value: Any) -> Any:
    """With names of fields in the one spelling."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, inner in value.items():
        new = _SNAKE.sub(_upper, name) if "_" in name else name
        if new == "properties" and isinstance(inner, dict):
            found[new] = {key: _camel(schema) for key, schema in inner.items()}
        else:
            found[new] = inner if new in _VERBATIM else _camel(inner)
    return found


def _upper(found: re.Match[str]) -> str:
    return found[1].upper()


def _system(fields: JsonObject) -> Iterator[dict[str, Any]]:
    if fields.get("systemInstruction") is None:
        return
    content = fields["systemInstruction"]
    if isinstance(content, str):
        content = {"parts": [{"text": content}]}
    given = JsonObject(content, fields.name("systemInstruction"))
    parts = [text_part(text) for part in _parts(given) if (text := optional_text(part, "text"))]
    if parts:
        yield {"role": "system", "content": content_of(parts)}


def _parts(content: JsonObject) -> list[JsonObject]:
    """Parts of a content, whose field may hold a list or a single part."""
    if isinstance(content.get("parts"), Mapping):
        return [content.inside("parts")]
    return list(optional_objects(content, "parts"))


@dataclass(slots=True)
class _PendingCalls:
    """Calls without a result so far. Google's need no id, chat's do."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """ids and names."""

    def answered(self, call_id: Any, name: str) -> str:
        """Id of the call of a result, which is then removed.

        A result without an id answers the first open call of its function. A result without an
        open call keeps its own id, or takes the name of the function.
        """
        for one in self.calls:
            if call_id == one[0] or (call_id is None and name == one[1]):
                self.calls.remove(one)
                return one[0]
        return call_id or name


def _contents(fields: JsonObject) -> Iterator[dict[str, Any]]:
    if isinstance(fields.get("contents"), Mapping):
        contents = [fields.inside("contents")]
    else:
        fields.entries("contents")
        contents = list(optional_objects(fields, "contents"))
    waiting = _PendingCalls()
    for number, content in enumerate(contents):
        role = content.get("role") or "user"
        if role not in ("user", "model", "function"):
            refuse(content.name("role"), role, "user or model")
        if role == "model":
            yield _model(content, number, waiting)
        else:
            yield from _user(content, waiting)


def _model(content: JsonObject, number: int, waiting: _PendingCalls) -> dict[str, Any]:
    texts, thoughts, sealed, calls = [], [], [], []
    for place, part in enumerate(_parts(content)):
        kept = unsealed(part.get("thoughtSignature"))
        if kept is not None:
            sealed.append(kept)
        if part.get("functionCall") is not None:
            call = part.inside("functionCall")
            call_id = optional_text(call, "id") or f"call_{number}_{place}"
            name = call.text("name")
            waiting.calls.append((call_id, name))
            calls.append(
                function_call(call_id, name, json_text(dict(optional_object(call, "args"))))
            )
        elif part.get("thought") is True:
            thoughts.append(optional_text(part, "text"))
        elif "text" in part:
            texts.append(optional_text(part, "text"))
        elif not any(name in part for name in (*_OF_SERVER, "thoughtSignature")):
            refuse(part.where, dict(part), "a part that the model writes")
    # Prefer signatures: clients drop thoughts, and a signature holds all of them.
    return assistant_message("".join(texts), "".join(sealed or thoughts), calls)


def _user(content: JsonObject, waiting: _PendingCalls) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    has_result = False
    for part in _parts(content):
        if part.get("functionResponse") is not None:
            if parts:
                yield {"role": "user", "content": content_of(parts)}
                parts = []
            yield _result(part.inside("functionResponse"), waiting)
            has_result = True
        elif not any(name in part for name in _OF_SERVER):
            parts.append(_part(part))
    if parts or not has_result:
        yield {"role": "user", "content": content_of(parts)}


def _part(part: JsonObject) -> dict[str, Any]:
    """Content part of a part of the user: text or an image."""
    if part.get("inlineData") is not None:
        data = part.inside("inlineData")
        return image_part(data_url(_image_type(data), _plain_base64(data.text("data"))))
    if part.get("fileData") is not None:
        data = part.inside("fileData")
        if data.get("mimeType") is not None:
            _image_type(data)
        return image_part(data.text("fileUri"))
    if "text" not in part:
        refuse(part.where, dict(part), "a part with text, inlineData, fileData or functionResponse")
    return text_part(optional_text(part, "text"))


def _image_type(data: JsonObject) -> str:
    kind = data.text("mimeType")
    if not kind.startswith("image/"):
        refuse_unsupported(f"data of type {kind} is not supported: send text and images")
    return kind


def _plain_base64(data: str) -> str:
    """URL-safe base64 of Google's clients as the base64 of data URLs."""
    return data.replace("-", "+").replace("_", "/")


def _result(result: JsonObject, waiting: _PendingCalls) -> dict[str, Any]:
    """Message with a result: by convention, ``output`` holds a value and ``error`` a failure."""
    name = result.text("name")
    response = optional_object(result, "response")
    key = next(iter(response)) if len(response) == 1 else None
    found: Any = response[key] if key in ("output", "error") else dict(response)
    content: Any = found if isinstance(found, str) else json_text(found)
    images = [_part(part) for part in optional_objects(result, "parts")]
    if images:
        content = [text_part(content), *images]
    call_id = waiting.answered(result.get("id"), name)
    return tool_message(call_id, content, failed=key == "error")


def _tools(fields: JsonObject) -> Iterator[dict[str, Any]]:
    """Functions of the client. Google's servers run all other tools but ``computerUse``."""
    for tool in optional_objects(fields, "tools"):
        if tool.get("computerUse") is not None:
            refuse_unsupported("tools of type computerUse are not supported: declare functions")
        for function in optional_objects(tool, "functionDeclarations"):
            schema = function.get("parametersJsonSchema")
            if schema is None and function.get("parameters") is not None:
                schema = json_schema(function["parameters"], function.name("parameters"))
            yield function_tool(function.text("name"), function.get("description"), schema)


def _tool_choice(fields: JsonObject, tools: list[dict[str, Any]]) -> dict[str, Any]:
    config = optional_object(optional_object(fields, "toolConfig"), "functionCallingConfig")
    mode = config.get("mode") or "AUTO"
    if mode not in (*_MODES, "MODE_UNSPECIFIED"):
        refuse(config.name("mode"), mode, f"one of {', '.join(_MODES)}")
    names = optional_texts(config, "allowedFunctionNames")
    if names and mode in ("ANY", "VALIDATED"):
        allowed = only_named(tools, names, config.name("allowedFunctionNames"))
        if len(allowed) == 1 and mode == "ANY":
            return {"tool_choice": named_choice(names[0])}
        return {"tools": allowed, "tool_choice": _MODES[mode]}
    return {} if "mode" not in config or mode not in _MODES else {"tool_choice": _MODES[mode]}


def _effort(thinking: JsonObject, policy: TemplatePolicy) -> dict[str, Any]:
    """Effort or budget of reasoning: a budget of 0 turns it off, -1 leaves it to the model."""
    budget, level = thinking.get("thinkingBudget"), thinking.get("thinkingLevel")
    if budget is not None and thinking.whole("thinkingBudget", -1) == 0:
        return {"reasoning_effort": "none"}
    found: dict[str, Any] = {}
    if level is not None and level != "THINKING_LEVEL_UNSPECIFIED":
        found["reasoning_effort"] = thinking.text("thinkingLevel").lower()
    if budget is not None and budget > 0 and policy.thinking_budget_field is not None:
        found[policy.thinking_budget_field] = budget
    return found


def _format(config: JsonObject) -> dict[str, Any]:
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = json_schema(config["responseSchema"], config.name("responseSchema"))
    kind = config.get("responseMimeType") or "text/plain"
    match kind:
        case "text/plain" if schema is None:
            return {}
        case "application/json":
            if schema is None:
                return {"response_format": {"type": "json_object"}}
            return {"response_format": schema_format("output", schema)}
        case "text/plain":
            refuse(config.name("responseMimeType"), kind, "application/json beside a schema")
        case _:
            refuse_unsupported(
                f"responseMimeType {kind} is not supported: ask for application/json"
            )
