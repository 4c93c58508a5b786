"""What a completion continues."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from jaxserve.gateway.recording import linking
from jaxserve.gateway.recording.linking import message_digest
from jaxserve.gateway.recording.records import Link
from tests.rollouts.conversation_trees import Tree, user

ONE, SAME = '{"a":1,"b":2}', '{"b": 2, "a": 1}'


def said(text: str, **more: Any) -> dict[str, Any]:
    """What an assistant says."""
    return {"role": "assistant", "content": text, **more}


def test_the_deepest_turn_is_the_parent() -> None:
    """Not the first whose tokens fit."""
    tree = Tree()
    messages = [user("a")]
    for turn in ("x", "y", "z"):
        tree.ask(messages, [turn])
        messages = [*messages, said(turn), user("b")]
    assert [record.link.parent for record in tree.records] == [None, (1, 0), (2, 0)]
    assert all(record.link.in_line for record in tree.records[1:])


def test_other_tokens_of_the_deepest_turn_win_over_exact_ones_before_it() -> None:
    """A prompt that holds turn 2 in other tokens follows turn 2, though it extends turn 1."""
    tree = Tree()
    tree.ask([user("a")], ["x"])
    tree.ask([user("a"), said("x"), user("b")], ["~y"])
    third = tree.ask([user("a"), said("x"), user("b"), said("~y"), user("c")], ["z"])
    assert third.link == Link((2, 0), "retokenised", True)


def test_a_message_that_changed_is_not_carried() -> None:
    """The prompt of the turn is there, its answer is not."""
    tree = Tree()
    tree.ask([user("a")], ["~y"])
    assert tree.ask([user("a"), said("~other"), user("c")], ["z"]).link == Link()


def test_the_same_prompt_alone_is_no_parent() -> None:
    """Nothing follows a completion but what extends it strictly."""
    tree = Tree()
    tree.ask([user("a")], ["x"])
    assert tree.ask([user("a")], ["x"]).link == Link()


def test_equal_answers_are_told_apart_by_who_is_free() -> None:
    """Of two with the same tokens each gets one successor in line."""
    tree = Tree()
    tree.ask([user("a")], ["x"])
    tree.ask([user("a")], ["x"])
    then = [user("a"), said("x"), user("b")]
    links = [tree.ask(then, [text]).link for text in ("1", "2", "3")]
    assert [link.in_line for link in links] == [True, True, False]
    assert {link.parent for link in links} == {(1, 0), (2, 0)}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (said("a"), {"role": "assistant", "content": [{"type": "text", "text": "a"}]}),
        (said("", tool_calls=[]), {"role": "assistant", "content": None}),
        (said("a", reasoning="r"), said("a", reasoning_content="r")),
        (
            said("", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": ONE}}]),
            said("", tool_calls=[{"function": {"name": "f", "arguments": SAME}}]),
        ),
    ],
)
def test_spelling_does_not_change_a_message(ours: Any, theirs: Any) -> None:
    """Clients write the same thing in several ways."""
    assert message_digest(ours) == message_digest(theirs)


def test_words_do_change_a_message() -> None:
    """Text, reasoning and arguments count."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    other = {"function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [said("a"), said("b"), said("a", reasoning="r"), said("a", tool_calls=[call])]
    messages.append(said("a", tool_calls=[other]))
    assert len({message_digest(message) for message in messages}) == len(messages)


def test_a_link_costs_one_look_at_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is linear: the bytes hashed do not grow with the number of completions."""
    hashed, real = 0, hashlib.blake2b

    class Counting:
        def __init__(self, data: Any = b"", **options: Any) -> None:
            self._real = real(data, **options)
            self._count(data)

        def _count(self, data: Any) -> None:
            nonlocal hashed
            hashed += memoryview(data).nbytes // 4

        def update(self, data: Any) -> None:
            self._count(data)
            self._real.update(data)

        def digest(self) -> bytes:
            return self._real.digest()

    tree = Tree()
    messages = [user("a")]
    for _ in range(200):
        tree.ask(messages, ["x"])
        messages = [*messages, said("x"), user("b")]
    last = tree.records[-1]
    assert last.prompt_ids is not None
    longer = np.append(last.prompt_ids, [120, 3, 12, 98, 3, 13]).astype(np.int32)
    monkeypatch.setattr(linking.hashlib, "blake2b", Counting)
    assert tree.linker.link(longer, messages).parent == (200, 0)
    assert hashed <= 2 * len(longer)
