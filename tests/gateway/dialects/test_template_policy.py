"""Messages are fitted to a template, and stay in their order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.template_policy import TemplatePolicy, fitted, limited
from tests.gateway.dialects.conversations import contents, conversations

policies = st.builds(
    TemplatePolicy,
    knows_developer=st.booleans(),
    later_system=st.sampled_from(("keep", "fold")),
    joins_text=st.booleans(),
    tool_images=st.sampled_from(("keep", "follow")),
    reasoning_fields=st.sampled_from((("reasoning_content",), ("reasoning", "reasoning_content"))),
)


@st.composite
def with_later_system(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Conversations with system and developer messages anywhere that an agent puts them: not
    between a call and its result."""
    found: list[dict[str, Any]] = []
    for message in draw(conversations()):
        if message["role"] in ("user", "assistant"):
            for role in draw(st.lists(st.sampled_from(("system", "developer")), max_size=2)):
                found.append({"role": role, "content": draw(contents())})
        found.append(message)
    return found


def texts_of(messages: list[Any]) -> str:
    """All that is said, in its order."""
    said = []
    for message in messages:
        content = message["content"] or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        said += [part["text"] for part in parts if "text" in part]
    return "".join(said).replace("\n", "")


@given(with_later_system(), policies)
def test_nothing_is_reordered_or_lost(messages: list[Any], policy: TemplatePolicy) -> None:
    """Texts are in their order under every policy, and the client's messages are unchanged."""
    before = repr(messages)
    found = fitted(messages, policy)
    assert texts_of(found) == texts_of(messages)
    assert repr(messages) == before


@given(with_later_system(), policies, st.data())
def test_a_prompt_is_the_beginning_of_the_next(
    messages: list[Any], policy: TemplatePolicy, data: st.DataObject
) -> None:
    """An agent that adds the answer and goes on sends the same beginning again: no later message
    changes an earlier one."""
    cuts = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    early = messages[: data.draw(st.sampled_from(cuts))]
    first = fitted(early, policy)
    assert fitted(messages, policy)[: len(first)] == first


def test_roles_and_fields() -> None:
    """``developer`` is renamed where the template lacks it, and reasoning has the model's names."""
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "reasoning_content": "d"},
        {"role": "developer", "content": "e"},
    ]
    assert fitted(messages, TemplatePolicy())[0] == {"role": "system", "content": "a"}
    assert fitted(messages, TemplatePolicy(knows_developer=True)) == messages
    renamed = fitted(messages, TemplatePolicy(reasoning_fields=("reasoning",)))
    assert renamed[2] == {"role": "assistant", "content": "c", "reasoning": "d"}


def test_leading_system_messages_are_one() -> None:
    """Those of one role that come before all others; later ones stay as they are."""
    system = [{"role": "system", "content": text} for text in "abc"]
    user = {"role": "user", "content": "x"}
    found = fitted([system[0], system[1], user, system[2]], TemplatePolicy())
    assert found == [{"role": "system", "content": "a\n\nb"}, user, system[2]]
    developer = {"role": "developer", "content": "a"}
    found = fitted([developer, system[1], user], TemplatePolicy())
    assert found == [{"role": "system", "content": "a\n\nb"}, user]
    known = fitted([developer, system[1], user], TemplatePolicy(knows_developer=True))
    assert known == [developer, system[1], user]


def test_later_system_messages_are_folded() -> None:
    """Into the user message right behind them, else into one of their own."""
    user, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    later = {"role": "system", "content": "s"}
    policy = TemplatePolicy(later_system="fold")
    (last,) = fitted([user, answer, later, user], policy)[2:]
    assert last == {"role": "user", "content": "s\n\nx"}
    assert fitted([user, later, answer], policy)[1:] == [{"role": "user", "content": "s"}, answer]
    assert fitted([user, answer, later], policy)[2:] == [{"role": "user", "content": "s"}]


def test_images_of_tools_can_follow() -> None:
    """In a user message behind all results in a row, which templates without images in results
    need."""
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    text = {"type": "text", "text": "seen"}
    results = [
        {"role": "tool", "tool_call_id": "1", "content": [text, image]},
        {"role": "tool", "tool_call_id": "2", "content": "done"},
    ]
    assert fitted(results, TemplatePolicy()) == results
    assert fitted(results, TemplatePolicy(tool_images="follow")) == [
        {"role": "tool", "tool_call_id": "1", "content": "seen"},
        results[1],
        {"role": "user", "content": [image]},
    ]


def test_wishes_for_output() -> None:
    """Are lowered to what the engine holds, if the operator says what that is."""
    fields = {"max_completion_tokens": 32_000, "max_tokens": 5, "n": 2}
    assert limited(fields, TemplatePolicy()) == fields
    lowered = limited(fields, TemplatePolicy(max_output_tokens=1000))
    assert lowered == {"max_completion_tokens": 1000, "max_tokens": 5, "n": 2}
    assert limited({"n": 2}, TemplatePolicy(max_output_tokens=1000)) == {"n": 2}


def test_text_in_parts() -> None:
    """Is one text, unless the policy keeps parts; an image keeps them."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    assert fitted([message], TemplatePolicy()) == [{"role": "user", "content": "a\nb"}]
    assert fitted([message], TemplatePolicy(joins_text=False)) == [message]
