"""A vocabulary of artificial words, a tokenizer without files.

A word is a space and three syllables; its text is tokenized as the same token again. Other text is
cut into pieces of up to six letters or single signs, about as many as a real tokenizer makes of
English; the hash of a piece is its token id.
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
"""Characters of a word, its space included."""


class Vocabulary:
    """A vocabulary of ``size`` tokens; the last four are special and have no text."""

    def __init__(self, size: int) -> None:
        """Args: number of tokens; at most 80 ** 3 of them are words."""
        self.size = size
        self.words = min(size - 4, _BASE**3)
        """number of words; their ids come first."""
        self.begin, self.header, self.end_of_message, self.end = range(size - 4, size)

    def text(self, token: int) -> str:
        """The text of one token."""
        if token >= self.words:
            return ""
        rest, last = divmod(token, _BASE)
        first, middle = divmod(rest, _BASE)
        return f" {_SYLLABLES[first]}{_SYLLABLES[middle]}{_SYLLABLES[last]}"

    def texts(self, tokens: Iterable[int]) -> str:
        """The text of several tokens."""
        return "".join(map(self.text, tokens))

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        return [self._token(piece) for piece in _PIECE.findall(text)]

    def prompt(self, text: str) -> list[int]:
        """The prompt of a text: the begin token and the text's tokens."""
        return [self.begin, *self.tokens(text)]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The prompt of a chat, which ends where the assistant's next message begins.

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
