"""The arrays of a scheduler tick: what it is given, what it advances, what it notes.

Arrays have class (and age) axes first and the batch axis last, see ``jaxserve.sim.batching``.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxserve.sim.table import WindowTable
from jaxserve.sim.waits import PrefillTally, Wait, WaitTally, empty_prefills

TINY = 1e-6
"""Guards divisions by counts and times that may be zero."""


@flax.struct.dataclass
class WindowPlan:
    """What is constant during a window: the knobs in force, resolved against the deployment."""

    table: WindowTable
    """latency table at the window's depth and tier."""
    added_s_per_token: jax.Array
    """float32[B, F], prefill seconds per prompt token that each batch of the table's grid is slowed
    by, at the classes' prompt lengths."""
    alone_s: jax.Array
    """float32[F], prefill of one prompt on an idle GPU, s."""
    tokens_per_step: jax.Array
    """float32[F], expected tokens per decode step."""
    batch_cap: jax.Array
    """float32, sequences per GPU."""
    decode_tokens: jax.Array
    """float32[F], output tokens after the first."""
    decode_steps: jax.Array
    """float32[F], decode steps that they take."""
    verify_tokens: jax.Array
    """float32, positions verified per sequence and step (depth + 1)."""
    group: jax.Array
    """int32[F], effective priority group (all 0 under first come first served)."""
    split: jax.Array
    """bool, prefill and decode run on different GPUs."""
    prefill_gpus: jax.Array
    """float32, GPUs that prefill (all of them when colocated)."""
    decode_gpus: jax.Array
    """float32, GPUs that decode (all of them when colocated)."""
    kv_tokens: jax.Array
    """float32, KV capacity of the decoding GPUs together, tokens."""
    prefill_kv_tokens: jax.Array
    """float32, KV capacity of the prefill GPUs of a split, tokens."""
    preempted_weight: jax.Array
    """float32[F], what a second before decoding weighs in the time between tokens: ``delay_weight``
    in a split, where it comes before the second token, else 1."""
    kv_transfer_s: jax.Array
    """float32[F], the same seconds for the move of a prompt's KV in a split, 0 when colocated."""
    short_output_steps: jax.Array
    """float32[F], steps that outputs take beyond ``decode_tokens / tokens_per_step``, in the mean
    of the requests' times per token, where short outputs weigh as much as long ones."""
    acceptance_spread: jax.Array
    """float32[F], relative variance of the steps that an output takes, times its tokens: drafts are
    accepted by chance."""
    joule_per_token: jax.Array
    """float32, see ``Deployment``, at the tier in force."""
    joule_per_weight_pass: jax.Array
    """float32, the same."""
    restarted: jax.Array
    """float32, share of the running sequences that lose their KV to a restart in the first tick."""
    time_scale: jax.Array
    """float32, slowness of this episode's hardware relative to the table."""
    tick_s: jax.Array
    """float32, seconds per tick."""
    clock: jax.Array
    """int32, ticks since the start of the episode."""
    up_s: jax.Array
    """float32, seconds of a tick in which the deployment is up at all."""
    capacity: jax.Array
    """float32, share of the GPUs that serve, averaged over the window."""
    reserved_gib: jax.Array
    """float32, memory of one GPU without the activations of the window, GiB."""


@flax.struct.dataclass
class Queues:
    """The physical state that ticks advance; all counts in requests."""

    waiting: jax.Array
    """float32[F, A], see ``jaxserve.sim.waiting``."""
    running: jax.Array
    """float32[F], decoding."""
    context: jax.Array
    """float32[F], KV tokens they hold."""
    preempted: jax.Array
    """float32[F], evicted, waiting to be recomputed; in a split those that have been prefilled and
    wait for a decoding GPU."""
    preempted_context: jax.Array
    """float32[F], tokens of theirs."""
    recompute_context: jax.Array
    """float32[F], those of them whose KV is gone and has to be computed again."""


@flax.struct.dataclass
class Tally:
    """Sums over the ticks of a window."""

    rejected: jax.Array
    """float32[F]"""
    admitted: jax.Array
    """float32[F], requests prefilled."""
    admitted_by_age: jax.Array
    """float32[F, A], those that had waited at least each age."""
    completed: jax.Array
    """float32[F]"""
    prefill_s: jax.Array
    """float32[F], sum over admitted of the time from the first chunk to the first token, s."""
    streamed_s: jax.Array
    """float32[F], the part of it that has passed when the fluid has served half a request, s."""
    residual_s: jax.Array
    """float32, sum over admitted of the decode step that may be running when they arrive, s."""
    prefills: PrefillTally
    """what requests that arrive meet on their GPU."""
    blocked: WaitTally
    """their waits for slots and KV."""
    decode_s: jax.Array
    """float32[F], time spent between first and last token by requests in service, s."""
    stall_s2: jax.Array
    """float32, sum of squared prefill stalls of one GPU, s^2."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    preemptions: jax.Array
    """float32"""
    peak_activation_gib: jax.Array
    """float32, activations and logits at their peak, GiB."""
    work_j: jax.Array
    """float32, energy above idle, J."""


@flax.struct.dataclass
class Timing:
    """Iteration times as a tick finds them."""

    batch: jax.Array
    """float32, decoding sequences per GPU."""
    step_s: jax.Array
    """float32, one decode iteration, s."""
    beside_batch: jax.Array
    """float32, probability that a prefill shares its GPU with a decode batch."""
    chunk_room: jax.Array
    """float32, prompt tokens that fit into an iteration beside the batch."""
    full_chunk_s: jax.Array
    """float32, what they add to it, s."""
    packed: jax.Array
    """float32, prompt tokens that wait for the next iteration, at most ``chunk_room``."""
    prefill_room_s: jax.Array
    """float32, GPU seconds of prefill that fit into the tick."""


@flax.struct.dataclass
class Admission:
    """Who enters the batch in a tick."""

    own_s: jax.Array
    """float32[F], GPU seconds of one prefill."""
    returning: jax.Array
    """float32[F], preempted requests that come back."""
    returning_context: jax.Array
    """float32[F], tokens of theirs."""
    recomputed: jax.Array
    """float32[F], tokens that are recomputed for them."""
    recompute_s: jax.Array
    """float32, GPU seconds of that."""
    usage: jax.Array
    """float32[3, F], share of free slots, KV blocks and prefill seconds that a request takes."""
    join_room: jax.Array
    """float32[2], slots and KV tokens that are left on the decoding GPUs of a split."""
    kv_starved: jax.Array
    """float32, share of the time in which requests wait for KV."""
    blocked: Wait
    """chance and duration of a wait for a slot or for KV that the mean does not show."""


@flax.struct.dataclass
class Progress:
    """What decoding does in a tick."""

    prefill_s: jax.Array
    """float32, GPU seconds spent on prefill."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    completed: jax.Array
    """float32[F]"""
    tokens: jax.Array
    """float32[F]"""
    alive_s: jax.Array
    """float32[F], seconds spent decoding, summed over requests."""


@flax.struct.dataclass
class Room:
    """What becomes free in a tick."""

    slots: jax.Array
    """float32, batch slots."""
    kv: jax.Array
    """float32, KV tokens."""
    kv_starved: jax.Array
    """float32, see ``Admission``."""
    blocked: Wait
    """see ``Admission``."""


@flax.struct.dataclass
class Eviction:
    """Who loses its KV at the end of a tick."""

    count: jax.Array
    """float32[F]"""
    context: jax.Array
    """float32[F], tokens of theirs."""


def empty_tally(queues: Queues) -> Tally:
    """A tally of zeros in the shape of ``queues``."""
    vector = jnp.zeros_like(queues.running)
    zero = vector[0]
    return Tally(
        rejected=vector,
        admitted=vector,
        admitted_by_age=jnp.zeros_like(queues.waiting),
        completed=vector,
        prefill_s=vector,
        streamed_s=vector,
        residual_s=zero,
        prefills=empty_prefills(zero),
        blocked=WaitTally(count=zero, wait_s=zero, wait_s2=zero),
        decode_s=vector,
        stall_s2=zero,
        steps=zero,
        preemptions=zero,
        peak_activation_gib=zero,
        work_j=zero,
    )
