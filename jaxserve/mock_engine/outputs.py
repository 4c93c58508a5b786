"""Outputs of a pseudo model, drawn from seed and prompt before the engine runs."""

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
    """Sampling parameters of a request."""

    max_tokens: int
    """most tokens of an output."""
    min_tokens: int = 0
    """tokens before which an output does not end by itself."""
    ignore_eos: bool = False
    """whether an output never ends by itself."""
    stop: tuple[str, ...] = ()
    """texts that end an output."""
    stop_token_ids: frozenset[int] = frozenset()
    """token ids that end an output."""
    keeps_stop: bool = False
    """whether the output keeps the text that ended it."""
    seed: int = 0
    """seed of the request, combined with the engine's."""


class TokenLogprob(NamedTuple):
    """A token with its log-probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Output:
    """One output, known as a whole."""

    vocabulary: Vocabulary
    """vocabulary of the tokens."""
    tokens: np.ndarray
    """int64[n], the token that ends the output included."""
    finish_reason: str
    """``length`` or ``stop``."""
    stop_reason: int | str | None
    """stop text or token id; None for a natural end."""
    text_length: int
    """characters of the text."""
    seed: tuple[int, ...]
    """seed of the log-probabilities."""

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens from ``start`` to before ``stop``."""
        return self.tokens[start:stop].tolist()

    def text(self, start: int, stop: int) -> str:
        """Text of the tokens from ``start`` to before ``stop``."""
        text = self.vocabulary.texts(self.token_ids(start, stop))
        return text[: max(0, self.text_length - WORD_LENGTH * start)]

    def text_before(self, start: int) -> int:
        """Characters of the tokens before ``start``."""
        return WORD_LENGTH * start

    def logprobs(self, start: int, stop: int, count: int) -> list[list[TokenLogprob]]:
        """The ``count`` likeliest tokens, at least one, for every place from ``start`` to ``stop``.

        The output's own token is always the likeliest, and first.
        """
        found = []
        chances = self._chances[start:stop].tolist()
        for token, chance in zip(self.token_ids(start, stop), chances, strict=True):
            choices = [TokenLogprob(token, math.log(chance))]
            for place in range(1, count):
                # Each gets half of the remaining probability: the sum never exceeds 1.
                other = (token + 7919 * place) % self.vocabulary.words
                choices.append(TokenLogprob(other, math.log1p(-chance) - place * math.log(2)))
            found.append(choices)
        return found

    @cached_property
    def _chances(self) -> np.ndarray:
        """float[n], probability of each token."""
        rng = np.random.default_rng([*self.seed, 1])
        return _LEAST_CHANCE + (1 - _LEAST_CHANCE) * rng.random(len(self.tokens))


class PseudoModel:
    """Draws outputs; the same prompt, seeds and index give the same output."""

    def __init__(self, vocabulary: Vocabulary, mean_tokens: int, seed: int) -> None:
        """Args: vocabulary, mean length of outputs that end by themselves, and seed."""
        self._vocabulary = vocabulary
        self._mean_tokens = mean_tokens
        self._seed = seed

    def output(self, prompt: Sequence[int], sampling: SamplingParams, index: int) -> Output:
        """Output number ``index`` for a prompt."""
        digest = zlib.crc32(np.asarray(prompt, np.int64).tobytes())
        seed = (self._seed, digest, sampling.seed % 2**64, index)
        rng = np.random.default_rng(seed)
        # The natural end is a token as well.
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
        """Length, reason and characters of an output at its first stop; None without a stop."""
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
                # A stop counts at its last character, which must lie after the least length.
                at = text.find(stop, max(0, WORD_LENGTH * least - len(stop) + 1))
                if at >= 0:
                    end = at + len(stop)
                    characters = end if sampling.keeps_stop else at
                    found.append((-(-end // WORD_LENGTH), stop, characters))
        return min(found, key=lambda one: one[0], default=None)
