"""One control window of the fast simulator: knobs -> ticks -> metrics.

The knobs are held for the window. Knobs that need a restart (tier, split) start a rolling switch
that takes one GPU at a time; the rest act at once.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, batch_last, staged
from jaxserve.sim.fast.fleet import end_window, set_wanted
from jaxserve.sim.fast.latency import TTFT_EDGES_S, itl_quantile, tpot_met_share
from jaxserve.sim.fast.lines import count_older_than
from jaxserve.sim.fast.plan import plan_window, serving_replicas
from jaxserve.sim.fast.prompt_work import distinct_kv
from jaxserve.sim.fast.state import SimState, Slo
from jaxserve.sim.fast.tick import FirstTokens, run_ticks
from jaxserve.sim.fast.tick_state import TINY, Ages, Conditions, Queues, Tally, WindowPlan
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.table.lookup import LatencyTable
from jaxserve.sim.traffic.workload import Arrivals, TrafficClasses
from jaxserve.types import ServeAction, WindowMetrics


def advance_window(
    state: SimState,
    action: ServeAction,
    arrivals: Arrivals,
    *,
    deployment: Deployment,
    classes: TrafficClasses,
    table: LatencyTable,
    slo: Slo,
    window_s: float,
) -> tuple[SimState, WindowMetrics]:
    """Advances the deployment by one window.

    Args:
      state: the deployment at the start of the window.
      action: scalar knobs, clipped to their bounds; they are held for the window.
      arrivals: counts float32[K, F]; K is the number of ticks.
      deployment: GPUs, memory, delays and prices.
      classes: traffic classes.
      table: iteration times.
      slo: objectives of each class, float32[F].
      window_s: seconds of the window (static).

    Returns:
      the state at the end of the window, and its metrics.
    """
    state = _start_switch(state, action, deployment)
    if deployment.fleet is not None:
        assert state.fleet is not None
        fleet = set_wanted(
            state.fleet,
            action.replicas,
            deployment.fleet,
            state.queues.running,
            state.ticks,
            window_s,
        )
        state = dataclasses.replace(state, fleet=fleet)
    plan = plan_window(state, action, arrivals, deployment, classes, table, window_s)
    # The plan holds what the window needs of the reuse table, and of the fleet.
    conditions = Conditions(plan, deployment, dataclasses.replace(classes, reuse=None))
    fleet, state = state.fleet, dataclasses.replace(state, fleet=None)
    state, metrics = _run_window(conditions, slo, state, action, arrivals)
    if fleet is not None:
        # A window in which nothing decodes, a reload's for one, has an ITL of 0.
        steps = window_s * plan.up_s / plan.tick_s / jnp.maximum(metrics.itl_s, TINY)
        fleet = end_window(fleet, steps / plan.decode_steps, state.queues.running, window_s)
        state = dataclasses.replace(state, fleet=fleet)
        metrics = dataclasses.replace(
            metrics,
            replicas_ready=jnp.sum(fleet.serving).astype(jnp.float32),
            replicas_starting=jnp.sum(fleet.starting).astype(jnp.float32),
            replicas_rented=fleet.rented,
        )
    return _finish_switch(state, window_s), metrics


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Service:
    """Requests in service in a window, admitted before it or in it; float32[F, ...] each."""

    tpot_s: jax.Array
    """mean time per output token after the first, s."""
    met_share: jax.Array
    """share of the finishing requests that met both objectives."""
    ttft_met: jax.Array
    """requests that stay in service and had their first token in time, see ``SimState``."""
    decode_s: jax.Array
    """decode time of the requests that stay, s."""
    decode_tokens: jax.Array
    """tokens decoded of the requests that stay."""


class _Outcome(NamedTuple):
    """A window after its ticks; arrays [F, ...] or [...]."""

    waiting: jax.Array
    """float32[F, A, ...], waiting requests by age at the end."""
    queues: Queues
    """running and preempted sequences at the end, after an out-of-memory restart."""
    tally: Tally
    first: FirstTokens
    service: _Service
    window_s: jax.Array
    """float32, seconds of the window."""
    memory_gib: jax.Array
    """float32, peak memory of one GPU, GiB."""
    oom: jax.Array
    """bool, whether that is more than the device has."""
    lost: jax.Array
    """float32[F], requests dropped by the restart."""
    decoded: jax.Array
    """float32[F], tokens after the first."""
    itl_s: jax.Array
    """float32, mean inter-token latency, s."""


@batch_last
def _run_window(
    conditions: Conditions, slo: Slo, state: SimState, action: ServeAction, arrivals: Arrivals
) -> tuple[SimState, WindowMetrics]:
    """Runs the ticks of a window, restarts a deployment that is out of memory, and measures.

    Args:
      conditions: plan of the window, deployment and traffic classes.
      slo: objectives of each class, float32[F, ...].
      state: the deployment at the start of the window.
      action: knobs of the window, [...] each.
      arrivals: counts float32[K, F, ...]; K is the number of ticks.
    """
    plan, deployment, classes = conditions.plan, conditions.deployment, conditions.classes
    ticks = len(arrivals.counts)
    window_s = plan.tick_s * ticks
    live = jnp.any(arrivals.counts >= 0.0)
    waiting, queues, tally, first = run_ticks(
        live, conditions, slo.ttft_s, state.waiting, state.queues, arrivals.counts
    )

    memory_gib = plan.reserved_gib + tally.peak_activation_gib
    oom = memory_gib > deployment.device_gib
    queues, lost = _restart(plan, queues, oom)

    # Decode time of a request = its steps + a split's transfer of KV + the part of a step that
    # every request loses at its end.
    decoded = tally.completed * plan.decode_tokens if tally.decoded is None else tally.decoded
    itl_s = window_s * plan.up_s / plan.tick_s / jnp.maximum(tally.steps, TINY)
    overhead_s = plan.kv_transfer_s + plan.short_output_steps * jnp.minimum(itl_s, window_s)
    decode_s = tally.decode_s + tally.admitted * overhead_s
    counts = (tally.admitted, tally.completed, first.met, lost)
    stalls_s = tally.stall_s2 / window_s
    spread = (plan.acceptance_spread, stalls_s)
    service = _service(live, classes, slo, state, counts, decoded, decode_s, spread)

    outcome = _Outcome(
        waiting, queues, tally, first, service, window_s, memory_gib, oom, lost, decoded, itl_s
    )
    metrics = _metrics(live, conditions, slo, state, action, arrivals, outcome)
    state = dataclasses.replace(
        state,
        waiting=waiting,
        queues=queues,
        ticks=state.ticks + ticks,
        ttft_met=service.ttft_met,
        decode_s=service.decode_s,
        decode_tokens=service.decode_tokens,
        outage_left_s=jnp.where(
            oom, deployment.oom_restart_s, jnp.maximum(state.outage_left_s - window_s, 0.0)
        ),
    )
    return state, metrics


def _metrics(
    live: jax.Array,
    conditions: Conditions,
    slo: Slo,
    state: SimState,
    action: ServeAction,
    arrivals: Arrivals,
    outcome: _Outcome,
) -> WindowMetrics:
    """Metrics of a window from its ``outcome``; ``state`` is that at its start."""
    plan, deployment = conditions.plan, conditions.deployment
    waiting, queues, tally, first, service, window_s, memory_gib, oom, lost, decoded, itl_s = (
        outcome
    )
    energy_j = deployment.energy_j(window_s, tally.work_j, plan.rented_gpus)
    arrived, rejected = add_up(arrivals.counts), tally.rejected
    if arrivals.rejected is not None:
        arrived, rejected = arrived + arrivals.rejected, rejected + arrivals.rejected
    # Accepted / proposed drafts: (tokens per step - 1) / depth, averaged over running sequences.
    accepted = add_up(queues.running * (plan.tokens_per_step - 1.0)) / (
        jnp.maximum(add_up(queues.running), TINY) * jnp.maximum(action.speculation_depth, 1)
    )
    iterations = (tally, itl_s, plan.prefill_gpus, plan.split)
    held = distinct_kv(plan.work, queues.context, queues.running)
    if plan.work.beside_kv is not None:
        held = held + plan.work.beside_kv * queues.running
    return WindowMetrics(
        arrivals=arrived,
        completed=tally.completed,
        good=tally.completed * service.met_share,
        rejected=rejected,
        lost=lost,
        waiting=waiting[:, 0] + queues.preempted,
        running=queues.running,
        overdue=_overdue(live, waiting, queues, service.ttft_met, slo, plan.tick_s),
        on_track=(queues.running + queues.preempted) * service.met_share,
        first_tokens=tally.admitted,
        ttft_met=first.met,
        ttft_exceeded=first.exceeded,
        tpot_s=service.tpot_s,
        itl_s=itl_s,
        p50_itl_s=itl_quantile(live, *iterations, 0.5),
        p99_itl_s=itl_quantile(live, *iterations, 0.99),
        tokens=add_up(decoded + tally.admitted),
        preemptions=tally.preemptions,
        memory_gib=memory_gib,
        energy_j=energy_j,
        cost_usd=deployment.cost_usd(window_s, energy_j, plan.rented_gpus),
        kv_occupancy=jnp.clip(
            add_up(held) / plan.kv_tokens,
            0.0,
            1.0,
        ),
        acceptance=jnp.where(action.speculation_depth > 0, accepted, 0.0),
        capacity=plan.capacity,
        oom=oom.astype(jnp.float32),
        regime=arrivals.regime,
        tier=state.tier,
        prefill_gpus=state.prefill_gpus,
        replicas_ready=deployment.num_gpus,
        replicas_starting=jnp.zeros_like(deployment.num_gpus),
        replicas_rented=deployment.num_gpus,
    )


def _restart(plan: WindowPlan, queues: Queues, oom: jax.Array) -> tuple[Queues, jax.Array]:
    """Queues after an out-of-memory restart where ``oom`` bool[...], and the requests lost,
    float32[F, ...]."""
    # A split also loses the prefilled requests whose KV waits for a decoding GPU.
    held = jnp.where(plan.split, queues.preempted, 0.0)
    lost = jnp.where(oom, queues.running + held, 0.0)
    queues = dataclasses.replace(
        queues,
        ages=_ages_left(queues, oom, plan.split),
        running=jnp.where(oom, 0.0, queues.running),
        context=jnp.where(oom, 0.0, queues.context),
        preempted=queues.preempted - jnp.where(oom, held, 0.0),
        **{
            name: jnp.where(oom & plan.split, 0.0, getattr(queues, name))
            for name in ("preempted_context", "recompute_context")
        },
    )
    return queues, lost


def _ages_left(queues: Queues, oom: jax.Array, split: jax.Array) -> Ages | None:
    """Ages of the sequences that an out-of-memory restart leaves."""
    if queues.ages is None:
        return None
    return dataclasses.replace(
        queues.ages,
        running=jnp.where(oom, 0.0, queues.ages.running),
        in_prefill=jnp.where(oom, 0.0, queues.ages.in_prefill),
        preempted=jnp.where(oom & split, 0.0, queues.ages.preempted),
    )


@staged
def _service(
    classes: TrafficClasses,
    slo: Slo,
    state: SimState,
    counts: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    decoded: jax.Array,
    decode_s: jax.Array,
    spread: tuple[jax.Array, jax.Array],
) -> _Service:
    """Service of the window's requests.

    Args:
      classes: traffic classes.
      slo: objectives of each class.
      state: the deployment at the start of the window.
      counts: requests admitted, completed, with a first token in time, and lost, float32[F, ...].
      decoded: float32[F, ...], tokens after the first.
      decode_s: float32[F, ...], decode time of all requests in service, s.
      spread: the two spreads of ``tpot_met_share``.
    """
    admitted, completed, first_met, lost = counts
    in_service = jnp.maximum(state.queues.running + state.queues.preempted + admitted, TINY)
    ttft_met = state.ttft_met + first_met
    decode_s = state.decode_s + decode_s
    decode_tokens = state.decode_tokens + decoded
    # Requests of a class are exchangeable: TPOT = decode time / tokens of all in service, and the
    # share that met both objectives = P(TTFT met) x P(TPOT met).
    tpot_s = jnp.where(decode_tokens > 1e-3, decode_s / jnp.maximum(decode_tokens, 1e-3), 0.0)
    met_share = jnp.clip(ttft_met / in_service, 0.0, 1.0) * tpot_met_share(
        tpot_s, slo.tpot_s, classes.output_tokens, *spread
    )
    # Finishing and lost requests take their share of the sums with them.
    stays = jnp.clip((in_service - completed - lost) / in_service, 0.0, 1.0)
    return _Service(
        tpot_s=tpot_s,
        met_share=met_share,
        ttft_met=ttft_met * stays,
        decode_s=decode_s * stays,
        decode_tokens=decode_tokens * stays,
    )


@staged
def _overdue(
    waiting: jax.Array, queues: Queues, ttft_met: jax.Array, slo: Slo, tick_s: jax.Array
) -> jax.Array:
    """float32[F, ...], unfinished requests that waited beyond their TTFT objective, or whose first
    token came after it."""
    older = count_older_than(waiting, (slo.ttft_s / tick_s)[:, None])[:, 0]
    in_service = queues.running + queues.preempted
    return jnp.clip(older, 0.0, waiting[:, 0]) + jnp.clip(in_service - ttft_met, 0.0, in_service)


def idle_metrics(class_count: int) -> WindowMetrics:
    """Metrics of a window in which nothing happened."""
    zero = jnp.float32(0.0)
    idle: dict[str, jax.Array] = {name: zero for name in WindowMetrics.__dataclass_fields__}
    requests = ("arrivals", "completed", "good", "rejected", "lost")
    inside = ("waiting", "running", "overdue", "on_track")
    by_class = (*requests, *inside, "first_tokens", "ttft_met", "tpot_s")
    idle |= dict.fromkeys(by_class, jnp.zeros(class_count))
    idle |= dict.fromkeys(("regime", "tier", "prefill_gpus"), jnp.int32(0))
    idle |= {"ttft_exceeded": jnp.zeros(len(TTFT_EDGES_S)), "capacity": jnp.float32(1.0)}
    return WindowMetrics(**idle)


def _start_switch(state: SimState, action: ServeAction, deployment: Deployment) -> SimState:
    """Begins a rolling switch when the knobs ask for one and none is running."""
    # GPUs go one at a time: a reload takes restart_s of each, a new role rerole_s of each changed.
    idle = state.switch_left_s <= 0.0
    gpus = serving_replicas(state, deployment)
    split = jnp.minimum(action.prefill_decode_split, gpus.astype(jnp.int32) - 1)
    reloads = action.quantization_tier != state.tier
    re_roled = jnp.abs(split - state.prefill_gpus).astype(jnp.float32)
    span = jnp.where(reloads, deployment.restart_s * gpus, 0.0)
    span = jnp.maximum(span, deployment.rerole_s * re_roled)
    starts = idle & (reloads | (re_roled > 0.0))
    state = dataclasses.replace(
        state,
        target_tier=jnp.where(starts, action.quantization_tier, state.target_tier),
        target_prefill_gpus=jnp.where(starts, split, state.target_prefill_gpus),
        switch_left_s=jnp.where(starts, span, state.switch_left_s),
        switch_span_s=jnp.where(starts, span, state.switch_span_s),
        switch_reloads=jnp.where(starts, reloads, state.switch_reloads),
    )
    # A switch that takes no time is over before the window begins.
    return _take_over(state, starts & (span <= 0.0))


def _finish_switch(state: SimState, window_s: float) -> SimState:
    """Puts the new tier and split in force half-way through the switch, when most GPUs have
    changed."""
    left = jnp.maximum(state.switch_left_s - window_s, 0.0)
    state = dataclasses.replace(state, switch_left_s=left)
    return _take_over(state, left <= 0.5 * state.switch_span_s)


def _take_over(state: SimState, now: jax.Array) -> SimState:
    """Puts the tier and split that the switch leads to in force where ``now`` is true."""
    return dataclasses.replace(
        state,
        tier=jnp.where(now, state.target_tier, state.tier),
        prefill_gpus=jnp.where(now, state.target_prefill_gpus, state.prefill_gpus),
    )
