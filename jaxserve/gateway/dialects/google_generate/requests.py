"""Google's ``generateContent``: requests, and requests to count their tokens.

Names of fields are read in both spellings that Google's servers take: ``topP`` and ``top_p``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.gateway.dialects.canonical import Asked, Chat, chat_from
from jaxserve.gateway.dialects.google_generate.schemas import json_schema
from jaxserve.gateway.dialects.request_fields import (
    assistant,
    content_of,
    data_url,
    dumped,
    function_call,
    function_tool,
    image_part,
    lacks,
    listed,
    named_choice,
    only_named,
    refuse_fields,
    refusing,
    renamed,
    said,
    schema_format,
    text_part,
    tool_result,
    within,
    words,
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
"""Parts that say what Google's servers did."""
_MODES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_VERBATIM = (
    "args",
    "response",
    "responseJsonSchema",
    "parametersJsonSchema",
    "properties",
    "default",
)
"""Fields whose content is the client's own, and so are the names in it."""


@refusing
def chat_of(asked: Asked, policy: TemplatePolicy) -> Chat:
    """A client's request in canonical form; its path says the model and whether to stream.

    Raises:
      Problem: it is malformed, or asks for what engines lack.
    """
    fields = JsonObject(_camel(dict(asked.fields)), "the request")
    if asked.counts:
        fields = within(fields, "generateContentRequest") or fields
    refuse_fields(fields, _LACKING)
    messages = [*_system(fields), *_contents(fields)]
    config = within(fields, "generationConfig")
    refuse_fields(config, _LACKING_OUTPUT)
    if {*words(config, "responseModalities")} - {"TEXT"}:
        lacks("responseModalities other than TEXT are not supported: the model writes text only")
    request = renamed(config, _NAMES)
    tools = list(_tools(fields))
    if tools:
        request["tools"] = tools
        request |= _tool_choice(fields, tools)
    thinking = within(config, "thinkingConfig")
    request |= _effort(thinking, policy) | _format(config)
    return chat_from(
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
    parts = [text_part(text) for part in _parts(given) if (text := said(part, "text"))]
    if parts:
        yield {"role": "system", "content": content_of(parts)}


def _parts(content: JsonObject) -> list[JsonObject]:
    """Those of a content, which may be a single one."""
    if isinstance(content.get("parts"), Mapping):
        return [content.inside("parts")]
    return list(listed(content, "parts"))


@dataclass(slots=True)
class _Open:
    """Calls that have no result yet: theirs need no id, chat's do."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """id and name."""

    def answered(self, call_id: Any, name: str) -> str:
        """The id of the call that a result belongs to: the one it names, else the first of its
        function; a result of a call that the client has forgotten is known by the function."""
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
        contents = list(listed(fields, "contents"))
    waiting = _Open()
    for number, content in enumerate(contents):
        role = content.get("role") or "user"
        if role not in ("user", "model", "function"):
            refuse(content.name("role"), role, "user or model")
        if role == "model":
            yield _model(content, number, waiting)
        else:
            yield from _user(content, waiting)


def _model(content: JsonObject, number: int, waiting: _Open) -> dict[str, Any]:
    texts, thoughts, sealed, calls = [], [], [], []
    for place, part in enumerate(_parts(content)):
        kept = unsealed(part.get("thoughtSignature"))
        if kept is not None:
            sealed.append(kept)
        if part.get("functionCall") is not None:
            call = part.inside("functionCall")
            call_id = said(call, "id") or f"call_{number}_{place}"
            name = call.text("name")
            waiting.calls.append((call_id, name))
            calls.append(function_call(call_id, name, dumped(dict(within(call, "args")))))
        elif part.get("thought") is True:
            thoughts.append(said(part, "text"))
        elif "text" in part:
            texts.append(said(part, "text"))
        elif not any(name in part for name in (*_OF_SERVER, "thoughtSignature")):
            refuse(part.where, dict(part), "a part that the model writes")
    # Clients drop thoughts rather than signatures, which hold all of them.
    return assistant("".join(texts), "".join(sealed or thoughts), calls)


def _user(content: JsonObject, waiting: _Open) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    told = False
    for part in _parts(content):
        if part.get("functionResponse") is not None:
            if parts:
                yield {"role": "user", "content": content_of(parts)}
                parts = []
            yield _result(part.inside("functionResponse"), waiting)
            told = True
        elif not any(name in part for name in _OF_SERVER):
            parts.append(_part(part))
    if parts or not told:
        yield {"role": "user", "content": content_of(parts)}


def _part(part: JsonObject) -> dict[str, Any]:
    """Text or an image."""
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
    return text_part(said(part, "text"))


def _image_type(data: JsonObject) -> str:
    kind = data.text("mimeType")
    if not kind.startswith("image/"):
        lacks(f"data of type {kind} is not supported: send text and images")
    return kind


def _plain_base64(data: str) -> str:
    """Data in the alphabet of data URLs: Google's clients write the one of file names."""
    return data.replace("-", "+").replace("_", "/")


def _result(result: JsonObject, waiting: _Open) -> dict[str, Any]:
    """By their convention ``output`` has what the function gave, ``error`` why it failed."""
    name = result.text("name")
    response = within(result, "response")
    key = next(iter(response)) if len(response) == 1 else None
    found: Any = response[key] if key in ("output", "error") else dict(response)
    content: Any = found if isinstance(found, str) else dumped(found)
    images = [_part(part) for part in listed(result, "parts")]
    if images:
        content = [text_part(content), *images]
    call_id = waiting.answered(result.get("id"), name)
    return tool_result(call_id, content, failed=key == "error")


def _tools(fields: JsonObject) -> Iterator[dict[str, Any]]:
    """Functions of the client; what else tools are, Google's servers run, but for a computer's."""
    for tool in listed(fields, "tools"):
        if tool.get("computerUse") is not None:
            lacks("tools of type computerUse are not supported: declare functions")
        for function in listed(tool, "functionDeclarations"):
            schema = function.get("parametersJsonSchema")
            if schema is None and function.get("parameters") is not None:
                schema = json_schema(function["parameters"], function.name("parameters"))
            yield function_tool(function.text("name"), function.get("description"), schema)


def _tool_choice(fields: JsonObject, tools: list[dict[str, Any]]) -> dict[str, Any]:
    config = within(within(fields, "toolConfig"), "functionCallingConfig")
    mode = config.get("mode") or "AUTO"
    if mode not in (*_MODES, "MODE_UNSPECIFIED"):
        refuse(config.name("mode"), mode, f"one of {', '.join(_MODES)}")
    names = words(config, "allowedFunctionNames")
    if names and mode in ("ANY", "VALIDATED"):
        allowed = only_named(tools, names, config.name("allowedFunctionNames"))
        if len(allowed) == 1 and mode == "ANY":
            return {"tool_choice": named_choice(names[0])}
        return {"tools": allowed, "tool_choice": _MODES[mode]}
    return {} if "mode" not in config or mode not in _MODES else {"tool_choice": _MODES[mode]}


def _effort(thinking: JsonObject, policy: TemplatePolicy) -> dict[str, Any]:
    """How much to think: a budget of 0 is none, one of -1 is the model's own choice."""
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
            lacks(f"responseMimeType {kind} is not supported: ask for application/json")
