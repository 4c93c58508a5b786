"""Control windows: nobody is lost, switches and crashes have their price, knobs do their work."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.env import EnvState, ServeEnv
from jaxserve.fields import Bound
from jaxserve.seeds import episode_key
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.fast.tick_state import Queues
from jaxserve.sim.traffic.output_ages import MEMORYLESS
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, OBSERVATION_BOUNDS
from jaxserve.types import ServeAction, TimeStep, WindowMetrics
from tests.sizes import each_task

WINDOWS = 120  # one length, so that one program serves all tests


@functools.cache
def environment(task: str, load: float = 1.0, output_ages: int = MEMORYLESS) -> ServeEnv:
    """An environment whose knobs all act, with ``load`` times the task's requests."""
    env = jaxserve.make(task, overrides={"output_ages": output_ages})
    workload, regimes = env.workload, env.workload.regimes
    changes = {"regimes": dataclasses.replace(regimes, rate_rps=load * regimes.rate_rps)}
    if workload.replay_counts is not None:
        changes["replay_counts"] = load * workload.replay_counts
    return dataclasses.replace(
        env,
        workload=dataclasses.replace(workload, **changes),
        knob_active=jnp.ones(len(KNOBS), bool),
    )


def deployed(env: ServeEnv, **fields: float) -> ServeEnv:
    """The same task on another deployment."""
    changed = {name: jnp.float32(value) for name, value in fields.items()}
    return dataclasses.replace(env, deployment=dataclasses.replace(env.deployment, **changed))


def interchangeable(env: ServeEnv) -> ServeEnv:
    """The same task with two equal classes in each priority group."""
    kinds = (env.workload.classes, env.slo)
    classes, slo = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[2], leaf.shape), kinds)
    classes = dataclasses.replace(classes, priority=jnp.int32([0, 1, 2, 0, 1, 2]))
    return dataclasses.replace(
        env, workload=dataclasses.replace(env.workload, classes=classes), slo=slo
    )


def random_actions(seed: int, held: int) -> ServeAction:
    """Actions [WINDOWS] over the whole ranges, each held for some windows."""
    rng = np.random.default_rng(seed)

    def draw(bound: Bound) -> np.ndarray:
        values = rng.uniform(bound.low, bound.high + bound.integer, WINDOWS)
        return np.repeat(values, held)[:WINDOWS].astype(bound.dtype)

    return ServeAction(**{knob: draw(bound) for knob, bound in ACTION_BOUNDS.items()})


def constant(**knobs: float) -> ServeAction:
    """One action, held for all windows."""
    action = jaxserve.make_action(**knobs)
    return jax.tree.map(lambda value: np.full(WINDOWS, value), action)


@jax.jit
def play(env: ServeEnv, key: jax.Array, actions: ServeAction) -> TimeStep:
    """TimeSteps [T, ...] of an episode."""
    return jax.lax.scan(env.step, env.reset(key)[0], actions)[1]


def windows(env: ServeEnv, actions: ServeAction, seed: int = 0) -> WindowMetrics:
    """What happened in each window, float64[T, ...]."""
    metrics = play(env, episode_key(seed), actions).metrics
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), metrics)


def assert_conserved(metrics: WindowMetrics) -> None:
    """Arrivals = completed + rejected + lost + change of those inside, to float precision."""
    inside = metrics.waiting + metrics.running
    before = np.concatenate([np.zeros_like(inside[:1]), inside[:-1]])
    out = metrics.completed + metrics.rejected + metrics.lost
    missing = np.abs(before + metrics.arrivals - out - inside)
    size = 1.0 + before.sum(axis=1) + metrics.arrivals.sum(axis=1)
    assert (missing.max(axis=1) / size).max() <= 1e-6


@jax.jit
def queues_of(env: ServeEnv, key: jax.Array, actions: ServeAction) -> tuple[TimeStep, Queues]:
    """TimeSteps and what runs at the end of each window, [T, ...]."""

    def window(state: EnvState, action: ServeAction) -> tuple[EnvState, tuple[TimeStep, Queues]]:
        state, timestep = env.step(state, action)
        return state, (timestep, state.sim.queues)

    return jax.lax.scan(window, env.reset(key)[0], actions)[1]


def mean_itl_s(metrics: WindowMetrics) -> float:
    """Over the requests that complete, s."""
    completed = metrics.completed.sum(axis=1)
    return float(np.average(np.nan_to_num(metrics.itl_s), weights=completed))


@pytest.mark.parametrize("task", ["azure_code", "adversarial_multitenant"])
def test_a_request_that_is_alone_is_not_held_up(task: str) -> None:
    """Its own prefill comes before its tokens: alone it decodes as fast as where other GPUs
    prefill, however long its prompt and short its output."""
    env = deployed(environment(task, load=0.02), num_gpus=2)
    colocated, split = (
        mean_itl_s(windows(env, constant(batch_cap=64, prefill_decode_split=gpus)))
        for gpus in (0, 1)
    )
    assert colocated == pytest.approx(split, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("output_ages", [MEMORYLESS, 8])
def test_a_lowered_cap_admits_nobody_until_the_batch_has_shrunk(output_ages: int) -> None:
    """Sequences that finish above the cap are not replaced; at the cap they are, one by one. With
    ages the prefill that each GPU is at goes on."""
    env = environment("bursty_workload", load=3.0, output_ages=output_ages)
    lowered, cap = WINDOWS // 2, 8
    gpus = int(env.deployment.num_gpus)
    before, after = constant(batch_cap=128), constant(batch_cap=cap // gpus)
    action = jax.tree.map(lambda a, b: np.where(np.arange(WINDOWS) < lowered, a, b), before, after)
    metrics = windows(env, action)
    running, first_tokens = metrics.running.sum(axis=1), metrics.first_tokens.sum(axis=1)
    assert running[lowered - 1] > 100.0
    above = np.flatnonzero(running[lowered:] > cap + 1) + lowered
    assert len(above) >= 1 and first_tokens[above[1:]].max() < 1e-3
    assert first_tokens[above[0]] < (1e-3 if output_ages == MEMORYLESS else gpus)
    assert (np.diff(running[lowered - 1 : above[-1] + 1]) < 0.0).all()
    drained = slice(above[-1] + 2, None)
    assert first_tokens[drained].mean() > 0.5 and running[drained].max() <= cap + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kv_budget", [None, 0.2])
def test_sequences_with_ages_are_conserved(kv_budget: float | None) -> None:
    """Also where a small pool preempts nearly all and then nobody; and numbers by age add up to
    those without, however many ticks have gone by."""
    env = environment("bursty_workload", load=1.5, output_ages=8)
    actions = random_actions(3, 4)
    if kv_budget is not None:
        actions = constant(kv_budget_fraction=kv_budget, speculation_depth=8, quantization_tier=2)
    played = jax.tree.map(np.asarray, queues_of(env, episode_key(3), actions))
    metrics, queues = played[0].metrics, played[1]
    assert_conserved(jax.tree.map(np.float64, metrics))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(played))
    assert metrics.preemptions.max() > 1.0 and metrics.completed.sum() > 100.0
    for name in ("running", "preempted"):
        by_age = getattr(queues.ages, name).sum(axis=2)
        np.testing.assert_allclose(getattr(queues, name), by_age, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("held", [1, 5])
@pytest.mark.parametrize("task", each_task())
def test_requests_are_conserved_in_every_window(task: str, held: int) -> None:
    """With every knob moving at random and switches on the way; and all figures agree."""
    metrics = windows(environment(task), random_actions(held, held), seed=held)
    assert_conserved(metrics)
    assert len(np.unique(metrics.tier)) > 1 and metrics.capacity.min() < 1.0
    assert (metrics.good <= metrics.completed + 1e-5).all()
    assert (metrics.first_tokens.cumsum(0) <= metrics.arrivals.cumsum(0) + 0.1).all()
    assert (metrics.ttft_met <= metrics.first_tokens + 1e-4).all()
    first_tokens = metrics.first_tokens.sum(axis=1, keepdims=True)
    later = np.concatenate([first_tokens, metrics.ttft_exceeded], axis=1)
    assert (np.diff(later, axis=1) <= 1e-3 * (1.0 + first_tokens)).all()


@pytest.mark.parametrize("task", each_task())
def test_requests_are_conserved_under_overload(task: str) -> None:
    """What twenty times the load does not get through is rejected, and shown within the bounds."""
    env, actions = environment(task, load=20.0), random_actions(3, held=5)
    metrics = windows(env, actions)
    assert_conserved(metrics)
    assert metrics.rejected.sum() > 0.3 * metrics.arrivals.sum()
    for name, entry in vars(play(env, episode_key(0), actions).observation).items():
        bound = OBSERVATION_BOUNDS[name]
        assert ((np.asarray(entry) >= bound.low) & (np.asarray(entry) <= bound.high)).all(), name


@pytest.mark.parametrize("load", [1.0, 20.0])
@pytest.mark.parametrize("task", each_task())
def test_overdue_requests_are_some_of_those_inside(task: str, load: float) -> None:
    """Under any knobs, crashes and preemptions included, no more than wait or run, of each class;
    and in a queue that only grows all of the old ones."""
    env = environment(task, load=load)
    metrics = windows(env, random_actions(2, held=3))
    inside = metrics.waiting + metrics.running
    assert (metrics.overdue >= 0.0).all()
    assert (metrics.overdue <= inside * (1.0 + 1e-6) + 1e-6).all()
    stuck = windows(env, constant(batch_cap=1))
    recent = int(np.ceil(np.asarray(env.slo.ttft_s).max() / env.window_s))
    old = stuck.waiting[-1].sum() - stuck.arrivals[-recent:].sum()
    assert stuck.overdue[-1].sum() >= min(old, 0.99 * stuck.waiting[-1].sum())


def test_nobody_is_overdue_where_nobody_waits() -> None:
    """A request is not late for running when a window ends."""
    metrics = windows(environment("static_workload", load=0.5), constant(batch_cap=64))
    assert metrics.running[-1].sum() > 1.0
    assert metrics.overdue.sum(axis=1).max() < 0.01


@pytest.mark.parametrize("task", each_task())
def test_requests_are_conserved_through_memory_crashes(task: str) -> None:
    """What ran when memory ran out is lost and counted, and the rest goes on."""
    env, actions = environment(task), random_actions(4, held=3)
    usual_gib = windows(env, actions).memory_gib
    metrics = windows(deployed(env, device_gib=float(np.quantile(usual_gib, 0.8))), actions)
    assert_conserved(metrics)
    crashed = metrics.oom > 0.0
    assert crashed.any() and not crashed.all()
    assert metrics.lost[crashed].sum() > 0.0 and not metrics.lost[~crashed].any()
    assert not metrics.running[crashed].any()


def test_a_memory_crash_takes_all_gpus_away() -> None:
    """Large verify batches run out of memory; the restart takes as long as the deployment says."""
    env = deployed(environment("static_workload", load=20.0), oom_restart_s=3.5, device_gib=37.0)
    metrics = windows(env, constant(batch_cap=512, speculation_depth=8))
    crashes = np.flatnonzero(metrics.oom)
    assert len(crashes) > 3 and metrics.memory_gib[crashes].min() > 37.0
    for crash in crashes[crashes < WINDOWS - 4]:
        np.testing.assert_allclose(metrics.capacity[crash + 1 : crash + 5], [0, 0, 0, 0.5])
        assert not metrics.completed[crash + 1 : crash + 4].any()


GPUS = {"static_workload": 1, "bursty_workload": 2, "adversarial_multitenant": 4}


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 2), st.floats(0.3, 7.0))
def test_a_new_tier_costs_every_gpu_its_restart(task: str, tier: int, restart_s: float) -> None:
    """One GPU after the other is away; half-way through the new tier is in force and stays."""
    env = deployed(environment(task), restart_s=restart_s)
    metrics = windows(env, constant(batch_cap=64, quantization_tier=tier))
    span = restart_s * GPUS[task]
    last = int(np.ceil(span - 1e-4))
    assert (metrics.capacity[:last] < 1.0).all()
    # A ten-thousandth of a window may be left of a restart that takes a whole number of them.
    assert metrics.capacity[last] >= 1.0 - 1e-4
    assert (metrics.capacity[last + 1 :] == 1.0).all()
    # At most one GPU is away at a time, and each is away for its restart.
    assert metrics.capacity.min() >= 1.0 - 1.0 / GPUS[task] - 1e-6
    assert (1.0 - metrics.capacity).sum() == pytest.approx(restart_s, rel=1e-4)
    in_force = int(np.argmax(metrics.tier == tier))
    assert 0.5 * span - 1e-4 <= in_force <= 0.5 * span + 1.0 + 1e-4
    assert (metrics.tier[:in_force] == 0).all() and (metrics.tier[in_force:] == tier).all()


@given(st.integers(1, 7), st.floats(0.3, 5.0))
def test_a_new_split_costs_the_gpus_that_change(split: int, rerole_s: float) -> None:
    """Re-roling takes its time for each GPU that changes; one GPU always decodes."""
    env = deployed(environment("adversarial_multitenant"), rerole_s=rerole_s)
    metrics = windows(env, constant(batch_cap=64, prefill_decode_split=split))
    changed = min(split, 3)
    assert (1.0 - metrics.capacity).sum() == pytest.approx(rerole_s * changed / 4.0, rel=1e-4)
    assert metrics.prefill_gpus[-1] == changed


def test_a_switch_that_takes_no_time() -> None:
    """Where nothing has to restart, tier and split are in force at once and cost nothing."""
    env = deployed(environment("adversarial_multitenant"), restart_s=0.0, rerole_s=0.0)
    metrics = windows(env, constant(batch_cap=64, quantization_tier=1, prefill_decode_split=2))
    assert (metrics.tier == 1).all() and (metrics.prefill_gpus == 2).all()
    assert (metrics.capacity == 1.0).all()


def test_a_long_change_of_roles_is_not_a_reload() -> None:
    """One GPU that changes its role loses its own share of what runs, however long it takes."""
    env = deployed(environment("adversarial_multitenant"), restart_s=5.0, rerole_s=40.0)
    split = (np.arange(WINDOWS) >= 40).astype(np.int32)
    actions = constant(batch_cap=256)
    metrics = windows(env, dataclasses.replace(actions, prefill_decode_split=split))
    before = metrics.running[39].sum()
    assert metrics.preemptions[40] == pytest.approx(0.25 * before, rel=0.3)
    assert metrics.preemptions.sum() == pytest.approx(metrics.preemptions[40], rel=0.01)


def test_a_switch_that_runs_is_finished_first() -> None:
    """Whoever asks for another tier in every window gets no more switches than fit."""
    env = deployed(environment("bursty_workload"), restart_s=5.0)
    tiers = np.arange(WINDOWS, dtype=np.int32) % 3
    metrics = windows(env, dataclasses.replace(constant(batch_cap=64), quantization_tier=tiers))
    changes = np.flatnonzero(np.diff(metrics.tier))
    assert len(changes) > 3 and np.diff(changes).min() >= 10  # two GPUs of five seconds


QUEUEING = pytest.mark.parametrize(
    ("task", "load", "knobs"),
    [
        ("bursty_workload", 1.0, {"batch_cap": 14}),
        ("static_workload", 1.3, {"batch_cap": 36}),
        ("static_workload", 2.0, {"batch_cap": 64, "kv_budget_fraction": 0.1}),
        ("adversarial_multitenant", 1.0, {"batch_cap": 14}),
    ],
)
"""Lines for slots and for KV that have been served at the end."""


@QUEUEING
def test_priority_moves_waits(task: str, load: float, knobs: dict[str, float]) -> None:
    """Among equal requests, what the first group gains the last one loses."""
    env = interchangeable(environment(task, load))
    in_turn, routed = (windows(env, constant(priority_routing=p, **knobs), 2) for p in (0, 1))
    # Little's law: those who wait, summed over time, are the waits summed over requests.
    assert in_turn.waiting.sum() > 100.0
    assert routed.waiting.sum() == pytest.approx(in_turn.waiting.sum(), rel=0.05)
    assert routed.completed.sum() == pytest.approx(in_turn.completed.sum(), rel=0.01)
    first, last = [0, 3], [2, 5]
    assert routed.waiting[:, first].sum() < 0.3 * in_turn.waiting[:, first].sum()
    assert routed.waiting[:, last].sum() > 1.5 * in_turn.waiting[:, last].sum()
    assert routed.ttft_met[:, first].sum() > in_turn.ttft_met[:, first].sum()


def test_routing_without_priorities_changes_nothing() -> None:
    """Where all requests have one priority, which need not be the first, there is one line."""
    env = environment("static_workload", 1.3)
    priority = jnp.ones_like(env.workload.classes.priority)
    classes = dataclasses.replace(env.workload.classes, priority=priority)
    env = env.replace(workload=dataclasses.replace(env.workload, classes=classes))
    in_turn, routed = (windows(env, constant(priority_routing=p, batch_cap=36), 2) for p in (0, 1))
    assert in_turn.waiting.sum() > 100.0
    for one, other in zip(*map(jax.tree.leaves, (in_turn, routed)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def mean_ttft_s(metrics: WindowMetrics) -> float:
    """Mean over an episode's first tokens: the integral of those that are still to come."""
    later = np.concatenate([metrics.first_tokens.sum()[None], metrics.ttft_exceeded.sum(axis=0)])
    return np.trapezoid(later, np.concatenate([[0.0], TTFT_EDGES_S])) / later[0]


@QUEUEING
def test_waits_are_those_of_littles_law(task: str, load: float, knobs: dict[str, float]) -> None:
    """Mean TTFT beyond that of an ample deployment is the time in line that queue lengths give."""
    env = interchangeable(environment(task, load))
    scarce, ample = (windows(env, constant(**k), 2) for k in (knobs, {"batch_cap": 256}))
    in_line_s = scarce.waiting.sum() / scarce.first_tokens.sum()
    assert in_line_s > 0.1
    assert mean_ttft_s(scarce) - mean_ttft_s(ample) == pytest.approx(in_line_s, rel=0.12)


@pytest.mark.parametrize("task", [*GPUS, "trace_replay"])
def test_memory_that_nobody_needs_changes_nothing(task: str) -> None:
    """Above twice the KV in use the budget changes nothing; far below it requests wait for it. It
    never frees memory."""
    env = environment(task)
    found = {}
    for fraction in (1.0, 0.8, 0.6, 0.4, 0.2, 0.1):
        steps = play(env, episode_key(0), constant(batch_cap=64, kv_budget_fraction=fraction))
        found[fraction] = jax.tree.map(np.float64, steps)
    whole = found[1.0]
    for fraction, steps in found.items():
        held_up = (steps.metrics.waiting - whole.metrics.waiting).sum()
        held_up += (steps.metrics.preemptions - whole.metrics.preemptions).sum()
        peak = whole.metrics.kv_occupancy.max() / fraction
        if peak < 0.5:
            np.testing.assert_allclose(steps.reward, whole.reward, atol=1e-5)
            np.testing.assert_allclose(held_up, 0.0, atol=1e-2)
            np.testing.assert_allclose(
                steps.metrics.memory_gib, whole.metrics.memory_gib, rtol=1e-5
            )
        if peak > 1.2:
            assert held_up > 10.0
    idle = [steps.metrics.memory_gib.min() for steps in found.values()]
    np.testing.assert_allclose(idle, idle[0], atol=0.1)
