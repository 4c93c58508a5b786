"""Admission of requests to the batch in a tick, and their rejection by a full queue.

Arrays have class axes first and the batch axis last; the functions are stages of
``jaxserve.sim.fast.tick``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, staged
from jaxserve.sim.fast.prompt_work import prompt_kv
from jaxserve.sim.fast.tick_state import TINY, Admission, Queues, Room, Timing, WindowPlan
from jaxserve.sim.fast.timing import gpu_share
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.traffic.workload import TrafficClasses


@staged
def readmit(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    room: Room,
    candidates: jax.Array,
) -> Admission:
    """Readmits preempted sequences before new requests, and shares out what they leave.

    A lost context is recomputed like a prompt, as vLLM's preemption by recomputation does. In a
    split, slots and KV of the decoding GPUs do not limit new requests: they need prefill time, and
    KV that is not taken by prefilled requests which wait for a decoding GPU.

    A GPU prefills one long prompt, and the others those behind it: a tick admits at most tick / s
    of a request of s seconds. Where slots or KV are short, the head of the line holds up those
    behind it.

    Args:
      plan: knobs of the window, resolved against the deployment.
      classes: traffic classes.
      queues: running and preempted sequences, float32[F, ...] each.
      timing: iteration times of the tick.
      own_s: float32[F, ...], GPU seconds of one prefill of each class.
      room: slots and KV of the tick.
      candidates: float32[F, ...], waiting requests and the tick's arrivals.
    """
    # All classes come back at one share: the least of 1, slots / sequences, KV / their KV and
    # prefill seconds / seconds of recomputing it.
    recompute_s = queues.recompute_context * (own_s / classes.prompt_tokens)
    blocks = queues.preempted_context + plan.work.slack_tokens * queues.preempted
    share = jnp.minimum(
        jnp.minimum(1.0, room.slots / jnp.maximum(add_up(queues.preempted), TINY)),
        jnp.minimum(
            room.kv / jnp.maximum(add_up(blocks), TINY),
            timing.prefill_room_s / jnp.maximum(add_up(recompute_s), TINY),
        ),
    )
    # What is left for new requests, and the share of it that one request of each class takes.
    used_s = share * add_up(recompute_s)
    slots = room.slots - share * add_up(queues.preempted)
    kv_room = room.kv - share * add_up(blocks)
    room_s = timing.prefill_room_s - used_s
    prefill_kv_room = plan.prefill_kv_tokens - (1.0 - share) * add_up(blocks)
    usage = [
        jnp.where(plan.split, 0.0, 1.0 / jnp.maximum(slots, TINY)),
        prompt_kv(plan.work, classes)
        / jnp.maximum(jnp.where(plan.split, prefill_kv_room, kv_room), TINY),
        own_s / jnp.maximum(room_s, TINY),
    ]
    # From 0 where three quarters of the slots and the KV suffice for all to 1 where all are needed.
    taken = jnp.maximum(add_up(candidates) * usage[0], add_up(candidates * usage[1]))
    short = jnp.clip(4.0 * taken - 3.0, 0.0, 1.0)
    # What is left of one request is on one GPU as all of it was.
    whole = jnp.maximum(candidates, 1.0) / jnp.maximum(candidates, TINY)
    tick_share = jnp.minimum(whole * jnp.maximum(gpu_share(plan, own_s), short), 1.0)
    return Admission(
        own_s=own_s,
        returning=share * queues.preempted,
        returning_context=share * queues.preempted_context,
        recomputed=share * queues.recompute_context,
        recompute_s=used_s,
        usage=tick_share * jnp.stack(jnp.broadcast_arrays(*usage)),
        tick_share=tick_share,
        join_room=jnp.stack([slots, kv_room]),
        kv_starved=jnp.where(plan.split, 0.0, room.kv_starved),
        blocked=dataclasses.replace(
            room.blocked, share=jnp.where(plan.split, 0.0, room.blocked.share)
        ),
        full=room.full,
    )


@staged
def joining_share(
    plan: WindowPlan, classes: TrafficClasses, admission: Admission, admitted: jax.Array
) -> jax.Array:
    """float32[...]: share of the prefilled requests that decode at once.

    Colocated requests all do; in a split the others wait for room on a decoding GPU.
    """
    blocks = add_up(admitted * (classes.prompt_tokens + plan.work.slack_tokens))
    need = jnp.stack([add_up(admitted), blocks])
    fits = jnp.clip(admission.join_room / jnp.maximum(need, TINY), 0.0, 1.0)
    return jnp.where(plan.split, jnp.minimum(fits[0], fits[1]), 1.0)


@staged
def reject(
    plan: WindowPlan,
    deployment: Deployment,
    waiting: jax.Array,
    arrivals: jax.Array,
    preempted: jax.Array,
) -> jax.Array:
    """float32[F, ...]: arrivals of the tick that a full queue turns away.

    Args:
      plan: knobs of the window, resolved against the deployment.
      deployment: its ``queue_capacity`` bounds the waiting requests of all GPUs.
      waiting: float32[F, ...], requests that wait after admission.
      arrivals: float32[F, ...], requests that arrived in the tick.
      preempted: float32[F, ...], preempted sequences; they wait in the queue unless in a split.
    """
    # Of the arrivals that are still waiting, the overflow is spread over classes in proportion.
    newest = jnp.minimum(waiting, arrivals)
    queued = add_up(waiting) + jnp.where(plan.split, 0.0, add_up(preempted))
    overflow = queued - deployment.queue_capacity
    return newest * jnp.clip(overflow / jnp.maximum(add_up(newest), TINY), 0.0, 1.0)
