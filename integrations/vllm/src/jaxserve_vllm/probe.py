# pyright: reportMissingImports=false
"""Probes the knobs of a vLLM scheduler at its start, since the interface is not public."""

from __future__ import annotations

import math
from typing import Any

from jaxserve_vllm.engine_control.leased_knobs import NotOffered, OfferedKnob
from jaxserve_vllm.kv_budget import KvBudget


def probe(scheduler: Any, kv_budget: KvBudget | None) -> dict[str, OfferedKnob | NotOffered]:
    """Every knob of jaxserve: as ``scheduler`` offers it, or the reason why it does not."""
    return {
        "batch_cap": _batch_cap(scheduler),
        "token_budget": _token_budget(scheduler),
        "kv_budget_fraction": _kv_budget_fraction(scheduler, kv_budget),
        "speculation_depth": _speculation_depth(scheduler),
        "priority_routing": _priority_routing(scheduler),
        "quantization_tier": NotOffered("vLLM holds one set of weights; it has to be restarted"),
        "prefill_decode_split": NotOffered("vLLM's roles are fixed when it starts"),
    }


def find_kv_budget(scheduler: Any) -> KvBudget | None:
    """The scheduler's block pool under a budget; None if the release has no such pool."""
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    asked = ("num_gpu_blocks", "get_num_free_blocks", "get_new_blocks", "get_usage")
    return KvBudget(pool) if all(hasattr(pool, name) for name in asked) else None


def _missing(*names: str) -> NotOffered:
    return NotOffered(f"this release of vLLM has no {' or '.join(names)}")


def _batch_cap(scheduler: Any) -> OfferedKnob | NotOffered:
    """Limit of running sequences; sequences above a lowered cap run to their end."""
    if hasattr(scheduler, "max_num_active_reqs"):
        name = "max_num_active_reqs"
    elif hasattr(scheduler, "max_num_running_reqs"):
        # Older releases use one number for admission and for the sequences that may run at all:
        # ``ControlledScheduler.schedule`` keeps it at or above the running ones.
        name = "wanted_batch_cap"
        scheduler.wanted_batch_cap = scheduler.max_num_running_reqs
    else:
        return _missing("max_num_active_reqs", "max_num_running_reqs")
    return _attribute(scheduler, name, least=1)


def _token_budget(scheduler: Any) -> OfferedKnob | NotOffered:
    """Tokens of one step."""
    if not hasattr(scheduler, "max_num_scheduled_tokens"):
        return _missing("max_num_scheduled_tokens")
    config = scheduler.scheduler_config
    if not config.enable_chunked_prefill:
        return NotOffered("vLLM runs without chunked prefill, so that a step must fit any prompt")
    if getattr(config, "disable_chunked_mm_input", False):
        return NotOffered("vLLM must fit every multimodal input whole into one step")
    # vLLM never schedules a sequence whose smallest piece is longer than a step.
    least = 1 + scheduler.num_spec_tokens + getattr(scheduler, "num_prefill_lookahead", 0)
    return _attribute(scheduler, "max_num_scheduled_tokens", least)


def _kv_budget_fraction(scheduler: Any, budget: KvBudget | None) -> OfferedKnob | NotOffered:
    """Share of the KV blocks in use at most."""
    if budget is None:
        return _missing("kv_cache_manager.block_pool")
    least = min(_longest_sequence_blocks(scheduler), budget.total)

    def turn(fraction: float | None) -> None:
        assert fraction is not None
        budget.blocks = max(least, round(fraction * budget.total))

    return OfferedKnob(least / budget.total, 1.0, turn, lambda: budget.blocks / budget.total)


def _longest_sequence_blocks(scheduler: Any) -> int:
    """Blocks of a request of the greatest length that runs alone."""
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    config = scheduler.kv_cache_config
    sequences = get_max_concurrency_for_kv_cache_config(scheduler.vllm_config, config)
    blocks = math.ceil(config.num_blocks / sequences - 1e-6)  # against rounding of the quotients
    # One more block of each group for draft tokens past the end of the sequence.
    return blocks + len(config.kv_cache_groups)


def _speculation_depth(scheduler: Any) -> OfferedKnob | NotOffered:
    """Draft tokens per sequence and step; None is vLLM's own table by batch size."""
    if not hasattr(scheduler, "dynamic_sd_lookup"):
        return _missing("dynamic_sd_lookup")
    own = scheduler.dynamic_sd_lookup
    if own is None:
        return NotOffered(
            "vLLM runs without num_speculative_tokens_per_batch_size in its --speculative-config, "
            "which it switches off with data parallelism"
        )

    def turn(depth: float | None) -> None:
        scheduler.dynamic_sd_lookup = own if depth is None else [depth] * len(own)

    def now() -> float | None:
        depths = set(scheduler.dynamic_sd_lookup[1:])  # of batches of 1 and more
        return depths.pop() if len(depths) == 1 else None

    return OfferedKnob(0, max(own), turn, now)


def _priority_routing(scheduler: Any) -> OfferedKnob | NotOffered:
    """Queue order: 1 by (priority, arrival), 0 by arrival."""
    policy = getattr(scheduler, "policy", None)
    if getattr(policy, "value", None) != "priority":
        return NotOffered("vLLM was started without --scheduling-policy priority")
    from vllm.v1.core.sched.request_queue import SchedulingPolicy

    def turn(routing: float | None) -> None:
        set_policy(scheduler, SchedulingPolicy.PRIORITY if routing else SchedulingPolicy.FCFS)

    return OfferedKnob(0, 1, turn, lambda: int(scheduler.policy is SchedulingPolicy.PRIORITY))


def set_policy(scheduler: Any, policy: Any) -> None:
    """Sets the scheduling policy and reorders the waiting requests by it."""
    from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue

    if scheduler.policy is policy:
        return
    scheduler.policy = policy
    queues = {name: q for name, q in vars(scheduler).items() if isinstance(q, RequestQueue)}
    for name, queue in queues.items():
        ordered = create_request_queue(policy)
        for request in sorted(queue, key=lambda request: request.arrival_time):
            ordered.add_request(request)
        setattr(scheduler, name, ordered)


def _attribute(scheduler: Any, name: str, least: int) -> OfferedKnob:
    """A knob that is one attribute of the scheduler, at most its start-up value."""
    return OfferedKnob(
        least,
        getattr(scheduler, name),
        lambda value: setattr(scheduler, name, value),
        lambda: getattr(scheduler, name),
    )
