"""A vocabulary of made-up words, so that texts have tokens without a tokenizer's files.

A word is a space and three syllables, and its text comes back as the same token. Other text is cut
into pieces of up to six letters or single signs, about as many as a real tokenizer makes of
English; such a piece gets the number that its hash leads to.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

_SYLLABLES = [
    first + vowel
    for first in ("b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
    for vowel in "aeiou"
]
_NUMBER = {syllable: number for number, syllable in enumerate(_SYLLABLES)}
_BASE = len(_SYLLABLES)
_PIECE = re.compile(r" ?\w{1,6}|\s+|[^\w\s]")

WORD_LENGTH = 7
"""Characters of every word, its space included."""


class Vocabulary:
    """``size`` tokens, of which the last four are special and have no text."""

    def __init__(self, size: int) -> None:
        """Args: tokens, at most 80 to the power of 3 words and the special ones."""
        self.size = size
        self.words = min(size - 4, _BASE**3)
        """tokens with text; their ids come first."""
        self.begin, self.header, self.end_of_message, self.end = range(size - 4, size)

    def text(self, token: int) -> str:
        """The text of one token."""
        if token >= self.words:
            return ""
        rest, last = divmod(token, _BASE)
        first, middle = divmod(rest, _BASE)
        return f" {_SYLLABLES[first]}{_SYLLABLES[middle]}{_SYLLABLES[last]}"

    def texts(self, tokens: Iterable[int]) -> str:
        """The text of several."""
        return "".join(map(self.text, tokens))

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        return [self._token(piece) for piece in _PIECE.findall(text)]

    def prompt(self, text: str) -> list[int]:
        """A text as a prompt: after the token that begins all."""
        return [self.begin, *self.tokens(text)]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Messages as a prompt for the next one.

        Args:
          messages: role and text of each.
        """
        prompt = [self.begin]
        for role, text in (*messages, ("assistant", "")):
            prompt += [self.header, *self.tokens(role), self.header, *self.tokens(text)]
            prompt.append(self.end_of_message)
        return prompt[:-1]

    def _token(self, piece: str) -> int:
        if len(piece) == WORD_LENGTH and piece[0] == " ":
            numbers = [_NUMBER.get(piece[at : at + 2]) for at in (1, 3, 5)]
            if None not in numbers:
                first, middle, last = (number or 0 for number in numbers)
                word = (first * _BASE + middle) * _BASE + last
                if word < self.words:
                    return word
        return zlib.crc32(piece.encode()) % self.words
