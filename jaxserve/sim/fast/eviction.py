"""Eviction at the end of a tick: sequences lose their KV where it is short, where a GPU restarts,
and where they grow into a full pool."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, staged
from jaxserve.sim.fast.ages import ages_of, take_newest
from jaxserve.sim.fast.prompt_work import distinct_kv
from jaxserve.sim.fast.tick_state import (
    TINY,
    Admission,
    Ages,
    Decoding,
    Eviction,
    Queues,
    WindowPlan,
    counted,
)
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.traffic.workload import TrafficClasses
from jaxserve.types import PRIORITY_GROUPS


@staged
def evictions(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    admission: Admission,
    decoding: Decoding,
    first_tick: jax.Array,
) -> Eviction:
    """Sequences that lose their KV at the end of the tick, the lowest priority first.

    Args:
      plan: knobs of the window, resolved against the deployment.
      classes: traffic classes.
      queues: running and preempted sequences after decoding, float32[F, ...] each.
      admission: requests that entered the batch, and the shortage of KV that they met.
      decoding: sequences that completed, and tokens decoded.
      first_tick: bool[...], whether the tick is the window's first, in which restarts fall.
    """
    running, context = queues.running, queues.context
    # KV in use beyond the pool: used = context + half a block of slack for each sequence (vLLM's
    # paged blocks, Kwon et al., SOSP 2023). A restart takes all KV of its share of the GPUs.
    used = distinct_kv(plan.work, context, running) + plan.work.slack_tokens * running
    share = _last_groups_share(plan.group, used, add_up(used) - plan.kv_tokens)
    beyond = share * used
    share = jnp.minimum(share + jnp.where(first_tick, plan.restarted, 0.0), 1.0)

    # Running sequences grow into a full pool. Where KV is short, admission leaves less free than
    # the next prompt in line needs, anything from nothing to that. Between two completions on a GPU
    # its sequences grow by one output's length together. If that does not fit, the newest sequence
    # is evicted, which holds little more than its prompt: P = 1 - exp(-output / prompt). Where
    # k sequences complete in one iteration, one of them nearly always makes the room: exp(-k).
    completed = add_up(decoding.completed)
    together = completed / jnp.maximum(plan.decode_gpus * decoding.steps, TINY)
    prompts = add_up(decoding.completed * classes.prompt_tokens)
    too_little = 1.0 - jnp.exp(-add_up(decoding.tokens) / jnp.maximum(prompts, TINY))
    pushed_out = admission.kv_starved * completed * too_little * jnp.exp(-together)
    newest = _last_groups_share(plan.group, running, pushed_out)
    newest = jnp.minimum(newest, 1.0 - share)
    held = jnp.minimum(running * classes.prompt_tokens, context)
    if classes.output_ages is not None and queues.ages is not None:
        pushed = newest * (held + plan.work.slack_tokens * running)
        restarted = jnp.where(first_tick, plan.restarted, 0.0)
        return _evict_by_age(plan, classes, queues, queues.ages, beyond + pushed, restarted)
    return Eviction(count=(share + newest) * running, context=share * context + newest * held)


def _evict_by_age(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    ages: Ages,
    kv_tokens: jax.Array,
    restarted: jax.Array,
) -> Eviction:
    """Evicts the newest sequences that hold ``kv_tokens``, float32[F, ...], and the share
    ``restarted`` of all others."""
    assert classes.output_ages is not None
    # KV of a sequence of each age: its class's mean prompt and the tokens that it has decoded.
    decoded = plan.decode_tokens[:, None] * ages_of(classes.output_ages, ages)
    outputs = add_up(ages.running * decoded, axis=1)
    prompt = jnp.maximum(queues.context - outputs, 0.0) / jnp.maximum(queues.running, TINY)
    each = prompt[:, None] + decoded
    slack: float | jax.Array = BLOCK_SLACK_TOKENS
    if plan.work.beside_kv is not None:
        slack = slack + plan.work.beside_kv[:, None]
    taken = take_newest(ages.running * (each + slack), kv_tokens)
    by_age = ages.running * (taken + (1.0 - taken) * restarted)
    return Eviction(
        count=jnp.minimum(add_up(by_age, axis=1), queues.running),
        context=jnp.minimum(add_up(by_age * each, axis=1), queues.context),
        by_age=by_age,
    )


def _last_groups_share(group: jax.Array, amount: jax.Array, wanted: jax.Array) -> jax.Array:
    """float32[F, ...]: share of each class that makes up ``wanted``, the last group first.

    Args:
      group: int32[F, ...], priority group of each class.
      amount: float32[F, ...], what each class has.
      wanted: float32[...], what is taken from all classes together.
    """
    share = jnp.zeros_like(amount)
    for index in reversed(range(PRIORITY_GROUPS)):
        member = group == index
        available = add_up(jnp.where(member, amount, 0.0))
        taken = jnp.clip(wanted / jnp.maximum(available, TINY), 0.0, 1.0)
        share = jnp.where(member, taken, share)
        wanted = wanted - available
    return share


def evict(queues: Queues, evicted: Eviction) -> Queues:
    """Queues in which the evicted sequences are preempted and their context is to be recomputed."""
    after = dataclasses.replace(
        queues,
        running=queues.running - evicted.count,
        context=queues.context - evicted.context,
        preempted=queues.preempted + evicted.count,
        preempted_context=queues.preempted_context + evicted.context,
        recompute_context=queues.recompute_context + evicted.context,
        ages=None
        if queues.ages is None or evicted.by_age is None
        else dataclasses.replace(
            queues.ages,
            running=jnp.maximum(queues.ages.running - evicted.by_age, 0.0),
            preempted=queues.ages.preempted + evicted.by_age,
        ),
    )
    return counted(after)
