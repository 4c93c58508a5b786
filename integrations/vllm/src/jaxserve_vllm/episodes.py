# pyright: reportMissingImports=false
"""Plays episodes of traffic on vLLM's own scheduler, and writes the composition of every step.

usage, in vLLM's environment: python -m jaxserve_vllm.episodes < EPISODES > STEPS

Both are files of JSON lines. Each episode is an object with ``blocks``, ``block_tokens``,
``max_length``, ``batch_cap``, ``token_budget``, ``priority_routing``, ``watermark``,
``prefix_caching``, ``speculation_depth``, ``requests`` and ``turns``. ``requests`` is a list of
[arrival step, prompt tokens, output tokens, priority] in order of arrival, and ``turns`` a list of
[step, knobs turned before the step]. The result of an episode is a list of the steps with computed
tokens, each [[request, tokens] in order of the batch, preempted requests]. The first line of the
output names the version of vLLM.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.version import __version__

from jaxserve_vllm.bare import BareEngine, BareSettings

TOKENS = 500
"""Number of token ids in prompts, below the size of the vocabulary."""


def play(episode: dict[str, Any]) -> list[list[Any]]:
    """The steps of one episode."""
    settings = BareSettings(
        blocks=episode["blocks"],
        block_tokens=episode["block_tokens"],
        max_length=episode["max_length"],
        max_seqs=episode["batch_cap"],
        token_budget=episode["token_budget"],
        caching=episode["prefix_caching"],
        watermark=_watermark(episode),
        speculation=_speculation(episode),
    )
    engine = BareEngine(settings)
    scheduler = engine.scheduler
    if not episode["priority_routing"]:
        engine.put(priority_routing=0)
    arrivals, turns = list(enumerate(episode["requests"])), list(episode["turns"])
    steps: list[list[Any]] = []
    preempted: list[int] = []
    # vLLM reports preemptions to its workers only.
    preempt = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(int(request.request_id))
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    now = 0
    while arrivals or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, arrivals[0][1][0])
        while turns and turns[0][0] <= now:
            answer = engine.put(**_knobs(turns.pop(0)[1], episode))
            if "refused" in answer:
                raise ValueError(answer["refused"])
        while arrivals and arrivals[0][1][0] <= now:
            i, (_, prompt, output, priority) = arrivals.pop(0)
            # No two prompts share a prefix.
            engine.add(str(i), [i % TOKENS] * prompt, output, priority, arrival_s=float(i))
        tokens = engine.step().num_scheduled_tokens
        if not tokens and not preempted:
            raise RuntimeError("vLLM schedules nothing although requests are waiting")
        # A step that only preempts takes no time.
        if tokens:
            steps.append(
                [[[int(name), count] for name, count in tokens.items()], sorted(preempted)]
            )
            preempted.clear()
            now += 1
    return steps


def _watermark(episode: dict[str, Any]) -> float:
    """vLLM's watermark for the same number of free blocks: vLLM also counts block 0."""
    blocks = int(episode["watermark"] * episode["blocks"])
    return (blocks + 0.5) / (episode["blocks"] + 1) if blocks else 0.0


def _speculation(episode: dict[str, Any]) -> dict[str, Any]:
    """Fields of vLLM's speculative config for a constant depth at all batch sizes."""
    depth = episode["speculation_depth"]
    if not depth:
        return {}
    return {
        "method": "ngram",
        "num_speculative_tokens": depth,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
        "num_speculative_tokens_per_batch_size": [(1, episode["batch_cap"], depth)],
    }


def _knobs(knobs: dict[str, float], episode: dict[str, Any]) -> dict[str, float]:
    turned = dict(knobs)
    if "kv_blocks" in turned:
        turned["kv_budget_fraction"] = turned.pop("kv_blocks") / episode["blocks"]
    return turned


def main() -> None:
    """Reads episodes, writes steps."""
    print(json.dumps({"vllm": __version__}))
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
