"""What the model that is not there says: drawn from seed and prompt, and known in advance."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jaxserve.mock_engine.tokens import WORD_LENGTH, Vocabulary

_LEAST_CHANCE = 0.5


@dataclass(frozen=True)
class SamplingParams:
    """What a request says of its outputs."""

    max_tokens: int
    """longest output."""
    min_tokens: int = 0
    """tokens before which it does not end by itself."""
    ignore_eos: bool = False
    """whether it never does."""
    stop: tuple[str, ...] = ()
    """texts that end it."""
    stop_token_ids: frozenset[int] = frozenset()
    """tokens that end it."""
    keeps_stop: bool = False
    """whether a text that ended it is part of it."""
    seed: int = 0
    """of the request, beside the engine's."""


class TokenLogprob(NamedTuple):
    """A token with its log-probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Output:
    """One output."""

    vocabulary: Vocabulary
    """what its tokens are."""
    tokens: np.ndarray
    """int64[n], one that ends it included."""
    finish_reason: str
    """``length`` or ``stop``."""
    stop_reason: int | str | None
    """what stopped it, None for its natural end."""
    text_length: int
    """characters of its text."""
    seed: tuple[int, ...]
    """of log-probabilities."""

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens from ``start`` to before ``stop``."""
        return self.tokens[start:stop].tolist()

    def text(self, start: int, stop: int) -> str:
        """Their text."""
        text = self.vocabulary.texts(self.token_ids(start, stop))
        return text[: max(0, self.text_length - WORD_LENGTH * start)]

    def text_before(self, start: int) -> int:
        """Characters of the tokens before ``start``."""
        return WORD_LENGTH * start

    def logprobs(self, start: int, stop: int, count: int) -> list[list[TokenLogprob]]:
        """For each of these tokens itself, the likeliest, and the ``count`` - 1 next likely ones;
        itself in any case."""
        found = []
        chances = self._chances[start:stop].tolist()
        for token, chance in zip(self.token_ids(start, stop), chances, strict=True):
            choices = [TokenLogprob(token, math.log(chance))]
            for place in range(1, count):
                # Half of what is left each time, so that all together never exceed 1.
                other = (token + 7919 * place) % self.vocabulary.words
                choices.append(TokenLogprob(other, math.log1p(-chance) - place * math.log(2)))
            found.append(choices)
        return found

    @cached_property
    def _chances(self) -> np.ndarray:
        """float[n], of each token."""
        rng = np.random.default_rng([*self.seed, 1])
        return _LEAST_CHANCE + (1 - _LEAST_CHANCE) * rng.random(len(self.tokens))


class PseudoModel:
    """Draws outputs; the same prompt, seeds and index give the same one."""

    def __init__(self, vocabulary: Vocabulary, mean_tokens: int, seed: int) -> None:
        """Args: its tokens, the mean length of outputs that end by themselves, and its seed."""
        self._vocabulary = vocabulary
        self._mean_tokens = mean_tokens
        self._seed = seed

    def output(self, prompt: Sequence[int], sampling: SamplingParams, index: int) -> Output:
        """The output number ``index`` for a prompt."""
        digest = zlib.crc32(np.asarray(prompt, np.int64).tobytes())
        seed = (self._seed, digest, sampling.seed % 2**64, index)
        rng = np.random.default_rng(seed)
        # Its natural end is a token as well.
        natural = 1 + rng.geometric(1 / self._mean_tokens)
        length = max(int(natural), sampling.min_tokens + 1)
        finish_reason, stop_reason = "stop", None
        ends = length <= sampling.max_tokens and not sampling.ignore_eos
        if not ends:
            length, finish_reason = sampling.max_tokens, "length"
        tokens = rng.integers(self._vocabulary.words, size=length)
        if ends:
            tokens[-1] = self._vocabulary.end
        text_length = WORD_LENGTH * (length - ends)
        stopped = self._stopped(tokens, sampling)
        if stopped is not None:
            length, stop_reason, text_length = stopped
            tokens, finish_reason = tokens[:length], "stop"
        return Output(self._vocabulary, tokens, finish_reason, stop_reason, text_length, seed)

    def _stopped(
        self, tokens: np.ndarray, sampling: SamplingParams
    ) -> tuple[int, int | str, int] | None:
        """Length, reason and characters of an output that is stopped, None where it is not."""
        least = sampling.min_tokens
        found: list[tuple[int, int | str, int]] = []
        if sampling.stop_token_ids:
            hits = np.flatnonzero(np.isin(tokens[least:], list(sampling.stop_token_ids)))
            if hits.size:
                at = least + int(hits[0])
                found.append((at + 1, int(tokens[at]), WORD_LENGTH * at))
        if sampling.stop:
            text = self._vocabulary.texts(tokens.tolist())
            for stop in sampling.stop:
                # Found when its last character comes, which must be after the least length.
                at = text.find(stop, max(0, WORD_LENGTH * least - len(stop) + 1))
                if at >= 0:
                    end = at + len(stop)
                    characters = end if sampling.keeps_stop else at
                    found.append((-(-end // WORD_LENGTH), stop, characters))
        return min(found, key=lambda one: one[0], default=None)
