"""Blocks come one after the other, whatever the engine mixes."""

from __future__ import annotations

import pytest

from jaxserve.gateway.dialects.blocks import BlockClosed, BlockGrown, BlockOpened, Blocks, BlockStep
from jaxserve.gateway.dialects.deltas import Arguments, CallStart, Reasoning, Text
from jaxserve.gateway.http.errors import RequestError


def steps_of(*deltas: Reasoning | Text | CallStart | Arguments) -> list[BlockStep]:
    """All that deltas do."""
    blocks = Blocks()
    found = [step for delta in deltas for step in blocks.feed(delta)]
    return [*found, *blocks.end()]


def told(steps: list[BlockStep]) -> list[tuple[str, str]]:
    """Kinds and whole texts of blocks, which must not overlap."""
    found, opened = [], None
    for step in steps:
        match step:
            case BlockOpened(block):
                assert opened is None
                opened = block
                assert block.number == len(found)
            case BlockGrown(block, _):
                assert block is opened
            case BlockClosed(block):
                assert block is opened
                found.append((block.kind.__name__, block.text))
                opened = None
    assert opened is None
    return found


def test_kinds_in_turn() -> None:
    """A block ends where another kind begins; empty pieces begin none."""
    thoughts = [Reasoning(0, text) for text in "abd"]
    steps = steps_of(Text(0, ""), *thoughts[:2], Text(0, "c"), thoughts[2])
    assert told(steps) == [("Reasoning", "ab"), ("Text", "c"), ("Reasoning", "d")]


def test_text_within_a_call_waits_for_its_end() -> None:
    """The call's arguments stay in one block."""
    steps = steps_of(
        CallStart(0, 0, "c0", "f"),
        Arguments(0, 0, '{"a":'),
        Text(0, "\n"),
        Arguments(0, 0, "1}"),
        CallStart(0, 1, "c1", "g"),
        Text(0, "end"),
    )
    kinds, texts = zip(*told(steps), strict=True)
    assert kinds == ("CallStart", "Text") * 2 and texts == ('{"a":1}', "\n", "", "end")


def test_arguments_of_a_call_that_has_ended() -> None:
    """Cannot be told in any order, so the engine's answer is refused."""
    first, second = CallStart(0, 0, "c0", "f"), CallStart(0, 1, "c1", "g")
    for deltas in ((first, second, Arguments(0, 0, "{}")), (Arguments(0, 0, "{}"),)):
        with pytest.raises(RequestError) as refused:
            steps_of(*deltas)
        assert refused.value.reason == "engine_garbage"
