"""TPOT of a closed loop that keeps ``concurrency`` requests in flight, from a cost model.

    TPOT = t(decode of all slots) / accepted + (running - 1) / output * t(prefill added by a prompt)

Fewer than ``concurrency`` requests run if the KV pool or a limit of the server holds the others
back. Requests that begin together end together, and their successors arrive together: short prompts
share an iteration, and the sum counts iterations. An engine with separate iterations for prompts
keeps equal requests in step: it prefills all prompts of a round one after the other. On average a
request spends half of that time before its first token and half of it after. TTFT is not compared,
because it includes the wait for a slot of the load generator.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jaxserve.checks import JsonObject
from jaxserve.datafiles import load_json
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.table.closed_loop import SHARED_TOKENS, closed_loop
from jaxserve.studies.fidelity.served_recipes import mean_tokens

TOKEN_BUDGET = 8192
"""Tokens per iteration of the measured engines: TensorRT-LLM's default, also in the recipes for
vLLM."""
WAITED_TOKENS = 0.9 * 16384
"""Most prompt tokens that a server gathers while it holds prompts back: the recipe's
``batch_wait_max_tokens_ratio`` times its ``max_num_tokens``."""
LONG_OUTPUT = 4096
"""Least tokens of a long output: text about random tokens repeats itself after a while, and drafts
of it are right more often."""


@dataclass(frozen=True)
class Accepted:
    """Chance that a token drafted by DeepSeek's multi-token prediction is right, given that all
    drafts before it were right."""

    short: float
    """chance in outputs below ``LONG_OUTPUT``."""
    long: float
    """chance in longer outputs."""

    def tokens_per_step(self, output: ArrayLike, drafts: ArrayLike) -> np.ndarray:
        """Mean tokens that a step with this many drafts yields for a sequence, 1 without drafts."""
        right = np.where(np.asarray(output) >= LONG_OUTPUT, self.long, self.short)
        return (1 - right ** (np.asarray(drafts) + 1)) / (1 - right)


@functools.cache
def shipped_accepted() -> Accepted:
    """The chances in ``data/served/drafts.json``."""
    item = JsonObject(load_json("served/drafts.json"), "served/drafts.json")
    return Accepted(short=item.number("short", 0, 1), long=item.number("long", 0, 1))


@dataclass(frozen=True)
class Loop:
    """Closed loops; every field has one entry a loop."""

    concurrency: np.ndarray
    """requests in flight."""
    prompt: np.ndarray
    """tokens of a prompt, as the source names them."""
    output: np.ndarray
    """tokens of an output, as the source names them."""
    equal: np.ndarray
    """whether all requests have exactly these lengths and stay in step."""
    drafts: np.ndarray
    """draft tokens of a sequence and step."""
    most_running: np.ndarray
    """largest number of running sequences."""
    held_iterations: np.ndarray
    """iterations for which prompts are held back, to prefill several together."""
    ranks: np.ndarray
    """GPUs with sequences of their own, each of which prefills a prompt in the same iteration."""

    def tpot_s(
        self,
        cost: CostModel,
        *,
        kv_tokens: float = float("inf"),
        reserves: bool = False,
        accepted: Accepted | None = None,
    ) -> np.ndarray:
        """Mean seconds per output token.

        Args:
          cost: iteration times of the server.
          kv_tokens: capacity of the KV pool, tokens.
          reserves: whether admission reserves KV for the whole output.
          accepted: chances that drafts are right; None for the shipped chances.
        """
        accepted = accepted or shipped_accepted()
        prompt, output = (mean_tokens(each, self.equal) for each in (self.prompt, self.output))
        held = prompt + output * (1.0 if reserves else 0.5)
        running = np.minimum(self.concurrency, self.most_running)
        running = np.minimum(running, np.maximum(kv_tokens / held, 1.0))
        tokens = accepted.tokens_per_step(self.output, self.drafts)
        decode_s = cost.decode_s(running, prompt + output / 2, self.drafts) / tokens
        if cost.beyond is not None and cost.beyond.prefill_first:
            pause_s = cost.prefill_added_s(running, prompt, token_budget=TOKEN_BUDGET)
            paused = np.where(self.equal, 0.5, 1.0) * (running - 1)
            return decode_s + paused / output * pause_s
        together = self._together(running, prompt, output)
        others = np.ceil(running / together) - 1
        added = together * prompt
        added_s = cost.prefill_added_s(running, added, token_budget=TOKEN_BUDGET)
        # Prompts that share an iteration do not attend to each other.
        pairs_s = cost.prefill_attention_s(added, 0)
        pairs_s -= together * cost.prefill_attention_s(prompt, 0)
        return decode_s + others / output * (added_s - pairs_s)

    def through_table_s(self, cost: CostModel, kv_tokens: float, tier: int = 0) -> np.ndarray:
        """``tpot_s`` by the closed loop that fills latency tables.

        That loop knows two start options of the servers, the tokens of an iteration and the limit
        of running sequences, which is the batch cap of a table.
        """
        prompt, output = (mean_tokens(each, self.equal) for each in (self.prompt, self.output))
        return closed_loop(
            cost,
            np.minimum(self.concurrency, self.most_running),
            prompt,
            output,
            depth=self.drafts,
            tier=tier,
            tokens_per_step=shipped_accepted().tokens_per_step(self.output, self.drafts),
            kv_tokens=kv_tokens,
            token_budget=TOKEN_BUDGET,
            in_step=self.equal,
        ).tpot_s

    def _together(self, running: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Number of prompts prefilled in one iteration."""
        fit = np.clip(SHARED_TOKENS // self.prompt, 1, running)
        most = np.maximum(WAITED_TOKENS / prompt, 1.0)
        gathered = np.clip(running * self.held_iterations / output, 1.0, most)
        alone = np.where(self.held_iterations > 0, gathered, fit)
        return np.maximum(alone, np.minimum(self.ranks, running))
