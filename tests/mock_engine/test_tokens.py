"""The made-up vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.mock_engine.tokens import Vocabulary


@given(st.sampled_from([100, 32_000, 128_256, 600_000]), st.data())
def test_words_come_back_as_their_tokens(size: int, data: st.DataObject) -> None:
    """The tokens of an output's text are the output's."""
    vocabulary = Vocabulary(size)
    tokens = data.draw(st.lists(st.integers(0, vocabulary.words - 1)))
    assert vocabulary.tokens(vocabulary.texts(tokens)) == tokens


@given(st.text())
def test_every_text_has_tokens(text: str) -> None:
    """All of them words of the vocabulary, the same each time, and none for no text."""
    vocabulary = Vocabulary(32_000)
    tokens = vocabulary.tokens(text)
    assert all(0 <= token < vocabulary.words for token in tokens)
    assert tokens == vocabulary.tokens(text)
    assert bool(tokens) == bool(text)


def test_english_has_about_as_many_tokens_as_elsewhere() -> None:
    """Four to six letters each."""
    text = (
        "The scheduler composes every step from the requests that are running and from those that "
        "wait, until the budget of tokens is used up or the cache of keys and values is full."
    )
    assert 4 < len(text) / len(Vocabulary(128_256).tokens(text)) < 6


def test_special_tokens_have_no_text() -> None:
    """They begin a prompt, frame messages and end outputs."""
    vocabulary = Vocabulary(1000)
    assert vocabulary.texts([vocabulary.begin, vocabulary.end]) == ""
    chat = vocabulary.chat([("user", "hello")])
    assert chat[0] == vocabulary.begin and chat[-1] == vocabulary.header
    assert vocabulary.prompt("") == [vocabulary.begin]
    longer = vocabulary.chat([("user", "hello"), ("assistant", "hello"), ("user", "hello")])
    assert longer[: len(chat) - 3] == chat[:-3]


@pytest.mark.parametrize("token", [0, 79, 80, 6399, 6400, 511_999])
def test_words_have_one_length(token: int) -> None:
    """A space and three syllables."""
    assert len(Vocabulary(600_000).text(token)) == 7
