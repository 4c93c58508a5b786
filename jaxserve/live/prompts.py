"""Prompts for load tests."""

from __future__ import annotations

import random

from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient

# Ids of single bytes or common pieces in every vocabulary; a small one may lack higher ids.
_LOW_ID, _HIGH_ID = 16, 250
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class RandomPrompts:
    """Random prompts of a given length, all different, so that no prefix cache helps."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words: tuple[float, float] | None = None
        self.learning_tokens = 0
        """tokens in and out that ``learn`` has spent."""

    async def learn(self, engine: EngineClient) -> None:
        """Tests whether the engine takes token ids; otherwise measures the tokens of a word."""
        try:
            if await self._counted(engine, self.make(32)) == 32:
                return
        except InputError:
            pass  # words below show whether the ids were the reason
        few, many = [await self._counted(engine, self._text(words)) for words in (16, 144)]
        per_word = (many - few) / 128
        if per_word <= 0:
            raise InputError(
                f"engine {engine.target.url} counts {few} tokens in 16 words and {many} in 144; "
                "a longer prompt must have more"
            )
        self._words = per_word, few - 16 * per_word

    async def _counted(self, engine: EngineClient, prompt: list[int] | str) -> int:
        """Tokens of a prompt, counted by the engine."""
        found = await engine.complete(prompt, 2)
        self.learning_tokens += found.prompt_tokens + found.output_tokens
        return found.prompt_tokens

    def make(self, tokens: int) -> list[int] | str:
        """A prompt of ``tokens`` tokens, approximately so if it consists of words."""
        if self._words is None:
            return [self._random.randrange(_LOW_ID, _HIGH_ID) for _ in range(tokens)]
        per_word, first = self._words
        return self._text(max(1, round((tokens - first) / per_word)))

    def _text(self, words: int) -> str:
        return " ".join("".join(self._random.choices(_LETTERS, k=4)) for _ in range(words))
