"""Prompts for load tests."""

from __future__ import annotations

import random

from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient

# Ids of single bytes or common pieces in every vocabulary; longer ones might not be in a small one.
_LOW_ID, _HIGH_ID = 16, 250
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class RandomPrompts:
    """Random prompts of a wanted length; no two alike, so that no prefix cache has them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words: tuple[float, float] | None = None

    async def learn(self, engine: EngineClient) -> None:
        """Finds out whether the engine takes token ids; where not, how many tokens words have."""
        try:
            if (await engine.complete(self.make(32), 2)).prompt_tokens == 32:
                return
        except InputError:
            pass  # words tell whether it is the ids that it does not take
        few, many = [
            (await engine.complete(self._text(words), 2)).prompt_tokens for words in (16, 144)
        ]
        per_word = (many - few) / 128
        if per_word <= 0:
            raise InputError(
                f"engine {engine.target.url} counts {few} tokens in 16 words and {many} in 144; "
                "a longer prompt must have more"
            )
        self._words = per_word, few - 16 * per_word

    def make(self, tokens: int) -> list[int] | str:
        """A prompt of ``tokens``, nearly so where it is made of words."""
        if self._words is None:
            return [self._random.randrange(_LOW_ID, _HIGH_ID) for _ in range(tokens)]
        per_word, first = self._words
        return self._text(max(1, round((tokens - first) / per_word)))

    def _text(self, words: int) -> str:
        return " ".join("".join(self._random.choices(_LETTERS, k=4)) for _ in range(words))
