"""A measured window in the simulator's terms."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.live.measured import MEASURED, Streams, arrivals_by_tick, measure, observe
from jaxserve.live.readings import (
    EngineState,
    LiveWindow,
    parse_engine_state,
    parse_knobs,
    parse_window,
)
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.spaces import OBSERVATION_BOUNDS, OBSERVATION_FIELDS
from jaxserve.tasks.spec import load_task
from tests.live.deployment import RATE, engines_answer, knobs_answer, window_answer

KNOBS = parse_knobs(knobs_answer())


def engines(**fields: Any) -> EngineState:
    return parse_engine_state(engines_answer(**fields), KNOBS)


def seen(setup: TaskSetup, window: LiveWindow, before: Any = None, after: Any = None) -> Any:
    """Metrics and observation of a window."""
    env = setup.env
    metrics = measure(
        env,
        Streams.of(setup.spec),
        window,
        before or engines(),
        after or engines(output_tokens=320.0, prompt_tokens=700.0),
        jaxserve.make_action(batch_cap=8),
    )
    _, first = env.reset(jaxserve.seeds.episode_key(0))
    return metrics, observe(env, first.observation, metrics, window, 1)


@pytest.mark.slow
def test_operating_never_leaves_the_range_of_episodes(setup: TaskSetup) -> None:
    """Three episodes one after the other, seen as one: every feature is where an episode has it."""
    env = dataclasses.replace(setup.env, horizon=jnp.int32(5))
    live = env.reset(jaxserve.seeds.episode_key(0))[1].observation
    simulated, operated, count = [], [], 0
    for seed in range(3):
        state, _ = env.reset(jaxserve.seeds.episode_key(seed))
        for _ in range(5):
            count += 1
            state, step = env.step(state, jaxserve.make_action(batch_cap=8))
            live = observe(env, live, step.metrics, None, count)
            simulated.append(np.asarray(env.observe(step.observation)))
            operated.append(np.asarray(env.observe(live)))
    low, high = np.min(simulated, axis=0), np.max(simulated, axis=0)
    assert (np.asarray(operated) >= low - 1e-6).all()
    assert (np.asarray(operated) <= high + 1e-6).all()


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_memory_of_the_simulator(setup: TaskSetup, fraction: float, depth: int) -> None:
    """Without requests, which take some for their activations, both say the same."""
    env = setup.env
    action = jaxserve.make_action(kv_budget_fraction=fraction, speculation_depth=depth)
    state, _ = env.reset(jaxserve.seeds.episode_key(0))
    one = jnp.float32(1.0)
    calm = Arrivals(jnp.zeros((env.ticks, 1)), one, jnp.int32(0), one)
    _, simulated = env.simulate(state.sim, action, calm)
    window = parse_window(window_answer())
    live = measure(env, Streams.of(setup.spec), window, engines(), engines(), action)
    assert float(live.memory_gib) == pytest.approx(float(simulated.memory_gib), rel=1e-6)


def test_every_entry_has_a_source() -> None:
    """Of a known kind, with how it is made and how far off it may be."""
    assert MEASURED.keys() == OBSERVATION_FIELDS.keys()
    for source in MEASURED.values():
        assert source.kind in ("measured", "scraped", "derived", "configured")
        assert source.how and source.error


def test_a_window(setup: TaskSetup) -> None:
    """As the gateway measured it, in the units of the observation."""
    metrics, found = seen(setup, parse_window(window_answer(good=0.5)))
    assert (float(found.queue_depth), float(found.active_requests)) == (0.0, 4.0)
    assert float(found.request_arrival_rate) == pytest.approx(RATE)
    assert float(found.slo_compliance_rate) == pytest.approx(0.5)
    assert float(found.p50_ttft_ms) == float(found.p99_ttft_ms) == pytest.approx(50.0)
    assert float(found.mean_itl_ms) == pytest.approx(10.0)
    assert float(metrics.p99_itl_s) == pytest.approx(0.03)
    assert float(found.throughput_tps) == pytest.approx(320.0)
    assert float(found.kv_cache_occupancy) == pytest.approx(0.25)
    assert float(found.reconfiguring) == 0.0 and float(found.step_index) == 1.0
    assert float(found.priority_distribution.sum()) == pytest.approx(1.0)
    assert float(metrics.cost_usd) > 0.0 and float(metrics.memory_gib) > 0.0
    assert float(metrics.ttft_met.sum()) == RATE


@pytest.mark.parametrize(
    ("in_gateway", "in_engine", "queue"), [(0, 0.0, 0), (2, 3.0, 5), (4, 9.0, 8), (2, None, 8)]
)
def test_who_waits(setup: TaskSetup, in_gateway: int, in_engine: float | None, queue: int) -> None:
    """Requests that no engine has admitted, as in the simulator, and not those in prefill; what
    an engine holds of others is not ours."""
    answer = window_answer(
        in_flight={"chat": {"waiting": 8, "running": 3}},
        pools={"a": {"waiting": in_gateway}, "b": {"waiting": 0}},
    )
    _, found = seen(setup, parse_window(answer), None, engines(waiting=in_engine))
    assert float(found.queue_depth) == queue
    assert float(found.active_requests) == 11 - queue


@pytest.mark.parametrize(
    ("waiting", "slo_s", "overdue"),
    [(1, 0.5, 0), (9, 0.5, 5), (9, 0.45, 5), (9, 1.0, 1), (9, 2.0, 0)],
)
def test_who_is_overdue(setup: TaskSetup, waiting: int, slo_s: float, overdue: int) -> None:
    """Those that wait and cannot have come within the objective, of which the last slices of the
    window tell; none where it is longer than the window."""
    strict = dataclasses.replace(setup.env.slo, ttft_s=jnp.full_like(setup.env.slo.ttft_s, slo_s))
    answer = window_answer(in_flight={"chat": {"waiting": waiting, "running": 3}})
    env = dataclasses.replace(setup.env, slo=strict)
    metrics, _ = seen(dataclasses.replace(setup, env=env), parse_window(answer))
    assert float(metrics.overdue.sum()) == overdue


def test_tokens_without_the_engines_counter(setup: TaskSetup) -> None:
    """Those of the requests that ended."""
    silent = engines(output_tokens=None)
    metrics, _ = seen(setup, parse_window(window_answer()), silent, silent)
    assert float(metrics.tokens) == 40 * RATE


def test_drafts_and_preemptions(setup: TaskSetup) -> None:
    """Rises of counters, not the counters."""
    before = engines(drafted=100.0, accepted=50.0, preemptions=4.0)
    after = engines(drafted=200.0, accepted=120.0, preemptions=9.0)
    metrics, found = seen(setup, parse_window(window_answer()), before, after)
    assert float(metrics.acceptance) == pytest.approx(0.7)
    assert float(found.eviction_events) == 5.0


def test_half_of_the_engines(setup: TaskSetup) -> None:
    """One that cannot be read counts as being reconfigured."""
    after = dataclasses.replace(engines(), up=1, count=2)
    _, found = seen(setup, parse_window(window_answer()), None, after)
    assert float(found.reconfiguring) == 0.5


def test_without_requests_latencies_are_repeated(setup: TaskSetup) -> None:
    """As in the simulator."""
    _, before = seen(setup, parse_window(window_answer()))
    quiet = window_answer(0.0, ttft_p50_s=None, ttft_p99_s=None, itl_mean_s=None, itl_p50_s=None)
    metrics = measure(
        setup.env,
        Streams.of(setup.spec),
        parse_window(quiet | {"until_s": 1.0}),
        engines(),
        engines(),
        jaxserve.make_action(),
    )
    found = observe(setup.env, before, metrics, parse_window(quiet), 2)
    assert float(found.p50_ttft_ms) == pytest.approx(50.0, rel=0.1)
    assert float(found.slo_compliance_rate) == 1.0 and float(found.mean_itl_ms) == 0.0


def classes_of(*names: str) -> dict[str, Any]:
    return {name: window_answer()["classes"]["chat"] for name in names}


def test_streams_by_their_names() -> None:
    """A stream of several traffic classes shares its requests among them; a class that is no
    stream of the task counts as the first one, and is named."""
    setup_spec = load_task("adversarial_multitenant")
    env = jaxserve.make(setup_spec)
    streams = Streams.of(setup_spec)
    first, second = streams.names[:2]
    window = parse_window(window_answer(classes=classes_of(first, second, "default")))
    assert streams.strangers(window) == ("default",)
    window = dataclasses.replace(
        window,
        classes={
            name: dataclasses.replace(one, arrivals=(1,) * env.ticks)
            for name, one in window.classes.items()
        },
    )
    counts = arrivals_by_tick(env, streams, window)
    assert counts.sum() == pytest.approx(3 * env.ticks)
    by_stream = [counts[:, list(places)].sum() / env.ticks for places in streams.places]
    assert by_stream[:2] == pytest.approx([2.0, 1.0])
    metrics = measure(env, streams, window, engines(), engines(), jaxserve.make_action())
    assert float(metrics.completed.sum()) == pytest.approx(3 * RATE)
    assert float(metrics.arrivals.sum()) == pytest.approx(3 * env.ticks)


def test_means_over_classes_that_are_one_stream(setup: TaskSetup) -> None:
    """Only requests that have a TPOT are counted in it."""
    classes = classes_of("chat", "default", "other")
    classes["default"] |= {"tpot_mean_s": None, "completed": 24}
    classes["other"] |= {"tpot_mean_s": 0.04, "completed": 4}
    metrics, _ = seen(setup, parse_window(window_answer(classes=classes)))
    assert float(metrics.tpot_s.max()) == pytest.approx((0.01 * 8 + 0.04 * 4) / 12)


@given(
    good=st.floats(0.0, 1.0),
    itl_s=st.none() | st.floats(0.0, 1e9),
    ttft_s=st.none() | st.floats(0.0, 1e9),
    kv_use=st.none() | st.floats(0.0, 50.0),
    tokens=st.floats(0.0, 1e15),
    requests=st.integers(0, 10**7),
)
def test_always_inside_its_bounds(setup: TaskSetup, requests: int, **values: Any) -> None:
    """Whatever finite figures a gateway shows, the observation is finite and inside its bounds."""
    answer = window_answer(1.0, values["good"], itl_mean_s=values["itl_s"])
    answer |= {"ttft_p50_s": values["ttft_s"], "ttft_p99_s": values["ttft_s"]}
    answer["classes"]["chat"] |= {"completed": requests, "good": requests}
    after = engines(kv_use=values["kv_use"], output_tokens=values["tokens"])
    metrics, found = seen(setup, parse_window(answer), None, after)
    for name, bound in OBSERVATION_BOUNDS.items():
        value = np.asarray(getattr(found, name))
        assert np.isfinite(value).all() and (value >= bound.low).all()
        assert (value <= bound.high).all(), name
    for name, leaf in vars(metrics).items():
        assert np.isfinite(np.asarray(leaf)).all(), name


def test_the_same_shapes_as_the_simulators(setup: TaskSetup) -> None:
    """So that everything that reads simulated windows reads these."""
    metrics, _ = seen(setup, parse_window(window_answer()))
    like = idle_metrics(len(np.asarray(setup.env.slo.ttft_s)))
    for name, leaf in vars(like).items():
        found = getattr(metrics, name)
        assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype), name
