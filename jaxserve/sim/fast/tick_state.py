"""Arrays of a scheduler tick: its conditions, the state that it advances, and its tally.

Arrays have class (and age) axes first and the batch axis last, see ``jaxserve.arrays.batching``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.waiting_times import PrefillTally, Wait, WaitTally, empty_prefills
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.table.lookup import WindowTable
from jaxserve.sim.traffic.workload import TrafficClasses

TINY = 1e-6
"""Guards divisions by counts and times that may be zero."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PromptParts:
    """Prompts of a class in two parts: those of which more than half is found in a prefix cache,
    and the others. One distribution of both would have prompts longer than any."""

    shares: jax.Array
    """float32[2, F], of the prompts."""
    seconds: jax.Array
    """float32[2, F], mean prefill seconds of each part, over the mean of all prompts."""
    spread: jax.Array
    """float32[F], standard deviation of the tokens within a part as a share of its mean."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PromptWork:
    """Prefill work of a prompt: the tokens that are not found in a prefix cache, or all without
    one."""

    tokens: jax.Array
    """float32[F], mean."""
    floor: jax.Array
    """float32[F], the least as a share of the mean."""
    spread: jax.Array
    """float32[F], standard deviation as a share of the mean."""
    behind_tokens: jax.Array | None = None
    """float32[F], tokens found before a token that is left, mean over those tokens; None without a
    prefix cache."""
    shared_kv: jax.Array | None = None
    """float32[F], KV tokens of a running request that another one holds as well, without which it
    would take that much more room; None without a prefix cache."""
    seconds: jax.Array | None = None
    """float32[3, F], prefill seconds of a short, a middle and a long prompt as shares of the mean,
    see ``jaxserve.sim.fast.prompt_work.second_shares``; None without output ages."""
    parts: PromptParts | None = None
    """prompts of which most is found, and the others; None without a prefix cache."""
    beside_kv: jax.Array | None = None
    """float32[F], KV of a running sequence beside that of its tokens, at its mean context; None for
    a model whose layers are of one kind."""

    @property
    def slack_tokens(self) -> jax.Array | float:
        """KV that a sequence holds more than that of its tokens: what its last block leaves empty,
        and ``beside_kv``."""
        if self.beside_kv is None:
            return BLOCK_SLACK_TOKENS
        return BLOCK_SLACK_TOKENS + self.beside_kv


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindowPlan:
    """Constants of a window: the knobs in force, resolved against the deployment."""

    table: WindowTable
    """latency table at the window's depth and tier."""
    added_s_per_token: jax.Array
    """float32[B, F], seconds that a prompt token adds to the iterations of a decode batch, for each
    batch size of the table's grid and the prompt length of each class."""
    alone_s: jax.Array
    """float32[F], prefill of one prompt on an idle GPU, s."""
    work: PromptWork
    """prefill work of prompts, by class."""
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
    """float32[F], weight of a preempted request's waiting time in its decode time. In a split a
    request waits once, before its second token, so the weight is ``TrafficClasses.delay_weight``;
    otherwise it is 1."""
    kv_transfer_s: jax.Array
    """float32[F], time that a split needs to move a prompt's KV, s, times ``delay_weight``; 0 when
    colocated."""
    short_output_steps: jax.Array
    """float32[F], decode steps to add to each request so that the mean of the requests' times per
    token is right. Every request loses a part of a step at its end, and in a split one at its
    start; short outputs, which count as much in that mean as long ones, suffer most."""
    acceptance_spread: jax.Array
    """float32[F], relative variance of the number of steps that an output takes, times its tokens.
    Steps vary because drafts are accepted by chance."""
    joule_per_token: jax.Array
    """float32, energy of a token at the tier in force, J, see ``Deployment``."""
    joule_per_weight_pass: jax.Array
    """float32, energy of a pass over the weights at the tier in force, J."""
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
    rented_gpus: jax.Array | None = None
    """float32, GPUs that are paid for; None for all of the deployment."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Conditions:
    """Plan, deployment and traffic classes, which are the same in every tick of a window."""

    plan: WindowPlan
    deployment: Deployment
    classes: TrafficClasses


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lines:
    """Requests by age, see ``jaxserve.sim.fast.lines``.

    The large arrays of a tick: they stay out of its stages, which copy what they are given.
    """

    waiting: jax.Array
    """float32[F, A], those that wait for admission."""
    admitted: jax.Array
    """float32[F, A], those admitted in the window, by the age that they had then."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ages:
    """Sequences by age, see ``jaxserve.sim.fast.ages``; counts in requests."""

    running: jax.Array
    """float32[F, K], running sequences in each bin of age."""
    preempted: jax.Array
    """float32[F, K], preempted ones, whose age stands still."""
    phase: jax.Array
    """float32[F], how far the bins are on their way to the next one's place, 0..1."""
    in_prefill: jax.Array
    """float32[F], sequences that hold a slot for their prefill, beside those that run."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Queues:
    """The requests that have been admitted once, as ticks advance them; counts in requests."""

    running: jax.Array
    """float32[F], decoding."""
    context: jax.Array
    """float32[F], KV tokens that running requests hold."""
    preempted: jax.Array
    """float32[F], admitted before but not running: evicted requests and, in a split, prefilled
    requests that wait for a decoding GPU."""
    preempted_context: jax.Array
    """float32[F], context tokens of preempted requests."""
    recompute_context: jax.Array
    """float32[F], the part of ``preempted_context`` whose KV is lost and must be recomputed."""
    ages: Ages | None = None
    """None where output lengths are memoryless."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tally:
    """Sums over the ticks of a window."""

    rejected: jax.Array
    """float32[F]"""
    admitted: jax.Array
    """float32[F], requests prefilled."""
    completed: jax.Array
    """float32[F]"""
    prefill_s: jax.Array
    """float32[F], sum over admitted of the time from the first chunk to the first token, s."""
    streamed_s: jax.Array
    """float32[F], the part of ``prefill_s`` that has passed when requests count as admitted, s."""
    residual_s: jax.Array
    """float32, sum over admitted of the decode step that may be running when they arrive, s."""
    prefills: PrefillTally
    """prefills in progress that arriving requests find on their GPU."""
    blocked: WaitTally
    """waits for a slot or for KV that mean counts do not show."""
    decode_s: jax.Array
    """float32[F], time spent between first and last token by requests in service, s."""
    stall_s2: jax.Array
    """float32, sum of squared prefill stalls of one GPU, s^2."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    decode_only_s: jax.Array
    """float32, the time that these steps would have taken without any prefill, s."""
    preemptions: jax.Array
    """float32"""
    peak_activation_gib: jax.Array
    """float32, activations and logits at their peak, GiB."""
    work_j: jax.Array
    """float32, energy above idle, J."""
    decoded: jax.Array | None
    """float32[F], tokens after the first; None where output lengths are memoryless, as they are
    then a mean output for each completed request."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
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
    """float32, what ``chunk_room`` prompt tokens add to an iteration, s."""
    packed: jax.Array
    """float32, prompt tokens that wait for the next iteration, at most ``chunk_room``."""
    prefill_room_s: jax.Array
    """float32, GPU seconds of prefill that fit into the tick."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Admission:
    """Sequences that enter the batch in a tick, and room that they leave to new requests."""

    own_s: jax.Array
    """float32[F], GPU seconds of one prefill."""
    returning: jax.Array
    """float32[F], preempted requests that run again."""
    returning_context: jax.Array
    """float32[F], context tokens of returning requests."""
    recomputed: jax.Array
    """float32[F], the part of ``returning_context`` that is recomputed."""
    recompute_s: jax.Array
    """float32, GPU seconds of recomputing it."""
    usage: jax.Array
    """float32[3, F], share of free slots, KV blocks and prefill seconds that a request takes in the
    tick."""
    tick_share: jax.Array
    """float32[F], share of a request that a tick can admit, however much is free."""
    join_room: jax.Array
    """float32[2], slots and KV tokens of the decoding GPUs that returning requests leave."""
    kv_starved: jax.Array
    """float32, share of the time in which requests wait for KV."""
    blocked: Wait
    """a new request's wait for a slot or for KV that mean counts do not show."""
    full: jax.Array
    """float32, probability that all batch slots are taken."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """Progress of decoding in a tick."""

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
    ages: Ages | None = None
    """ages of the running sequences at the end of the tick; None without ages."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Room:
    """Slots and KV for new requests in a tick."""

    slots: jax.Array
    """float32, batch slots."""
    kv: jax.Array
    """float32, KV tokens."""
    kv_starved: jax.Array
    """float32, see ``Admission``."""
    blocked: Wait
    """chance wait of a new request, see ``Admission``."""
    full: jax.Array
    """probability that all slots are taken, see ``Admission``."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Eviction:
    """Sequences that lose their KV at the end of a tick."""

    count: jax.Array
    """float32[F]"""
    context: jax.Array
    """float32[F], KV tokens that they lose."""
    by_age: jax.Array | None = None
    """float32[F, K], ``count`` in bins of age."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TickEvents:
    """Events of a tick, as the tally records them."""

    timing: Timing
    admission: Admission
    admitted: jax.Array
    """float32[F], requests prefilled."""
    rejected: jax.Array
    """float32[F], arrivals turned away."""
    decoding: Decoding
    evicted: Eviction


def empty_tally(queues: Queues) -> Tally:
    """A tally of zeros in the shape of ``queues``."""
    vector = jnp.zeros_like(queues.running)
    zero = vector[0]
    return Tally(
        rejected=vector,
        admitted=vector,
        completed=vector,
        prefill_s=vector,
        streamed_s=vector,
        residual_s=zero,
        prefills=empty_prefills(zero),
        blocked=WaitTally(count=zero, wait_s=zero, wait_s2=zero),
        decode_s=vector,
        stall_s2=zero,
        steps=zero,
        decode_only_s=zero,
        preemptions=zero,
        peak_activation_gib=zero,
        work_j=zero,
        decoded=None if queues.ages is None else vector,
    )


def counted(queues: Queues) -> Queues:
    """Numbers by age are the only ones there are, where there are ages: two counts of the same
    sequences would drift apart, and one be divided by what is left of the other."""
    if queues.ages is None:
        return queues
    running, preempted = (
        add_up(count, axis=1) for count in (queues.ages.running, queues.ages.preempted)
    )
    return dataclasses.replace(queues, running=running, preempted=preempted)
