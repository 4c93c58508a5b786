"""Trace replay: the environment faces the recorded requests, no more and no fewer."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.reference_rollout import ReferenceEpisode, table_timer
from jaxserve.errors import InputError, InputWarning
from jaxserve.seeds import episode_key
from jaxserve.sim.traffic import reuse
from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.traces import Trace
from jaxserve.sim.traffic.workload import draw_arrivals, init_workload
from jaxserve.tasks import replay
from jaxserve.tasks.replay import recorded_reuse, replay_spec, reuse_note, trace_path
from jaxserve.tasks.slos import KindSlo
from jaxserve.tasks.spec import TaskSpec, load_task


def recording(seconds: int, seed: int = 0) -> Trace:
    """About five requests a second, the first at 0 and the last at ``seconds``."""
    generator = np.random.default_rng(seed)
    inside = np.sort(generator.uniform(0.0, seconds, 5 * seconds))
    arrival_s = np.concatenate([[0.0], inside, [float(seconds)]])
    count = len(arrival_s)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=generator.integers(16, 4096, count).astype(np.int32),
        output_tokens=generator.integers(4, 512, count).astype(np.int32),
    )


def with_kinds(trace: Trace, kinds: tuple[str, ...] = ("batch", "chat")) -> Trace:
    """The trace with kinds in turn."""
    kind = (np.arange(len(trace)) % len(kinds)).astype(np.int32)
    return dataclasses.replace(trace, kinds=kinds, kind=kind)


def with_blocks(trace: Trace) -> Trace:
    """All of its prompts are alike as far as they go."""
    ids = [[0] * -(-int(n) // 512) for n in trace.prompt_tokens]
    blocks = from_ids(ids, trace.prompt_tokens.astype(np.int64), 512)
    return dataclasses.replace(trace, blocks=blocks)


@pytest.fixture(scope="module")
def spec() -> TaskSpec:
    """A short replay task."""
    return dataclasses.replace(load_task("trace_replay"), horizon=30)


def test_every_recorded_request_is_in_the_counts(spec: TaskSpec) -> None:
    """Counts add up to the trace, window by window, and classes carry the trace's lengths."""
    trace = recording(40)
    new, recorded = replay_spec(spec, trace)
    counts = recorded.counts
    assert recorded.rejected is None
    assert counts.shape == (41, spec.ticks, 6)
    assert counts.sum() == len(trace)
    by_window = np.bincount(trace.arrival_s.astype(int), minlength=41)
    np.testing.assert_array_equal(counts.sum(axis=(1, 2)), by_window)
    mix = new.regimes[0].mix
    assert sum(mix.values()) == pytest.approx(1.0)
    mean = sum(mix[stream.name] * stream.prompt.mean() for stream in new.streams)
    assert mean == pytest.approx(trace.prompt_tokens.mean(), rel=0.02)


def test_traces_that_are_too_short_or_ambiguous_are_refused(spec: TaskSpec) -> None:
    """An episode never runs past the recording, and one trace cannot feed several streams."""
    with pytest.raises(InputError, match=r"lasts 20 s.*needs 30 s"):
        replay_spec(spec, recording(20))
    with pytest.raises(InputError, match="one stream"):
        replay_spec(load_task("adversarial_multitenant"), recording(300))


def test_an_environment_faces_the_recorded_requests(spec: TaskSpec) -> None:
    """Every window's arrivals are a run of consecutive windows of the recording."""
    trace = recording(90)
    env = jaxserve.make(spec, trace=trace)
    counts = replay_spec(spec, trace)[1].counts

    @jax.jit
    def traffic(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = init_workload(env.workload, key)

        def step(state, window):
            state, arrivals = draw_arrivals(env.workload, state, window, env.ticks, env.window_s)
            return state, arrivals.counts

        _, windows = jax.lax.scan(step, state, np.arange(spec.horizon))
        return state.replay_start, windows

    starts = set()
    for seed in range(6):
        start, windows = traffic(episode_key(seed))
        starts.add(int(start))
        assert 0 <= start <= len(counts) - spec.horizon
        np.testing.assert_array_equal(windows, counts[int(start) : int(start) + spec.horizon])
    assert len(starts) > 1


def test_what_a_prefix_cache_spares_is_said(spec: TaskSpec) -> None:
    """Of a trace with blocks, whether the deployment has a cache or not."""
    trace = recording(40)
    named = with_blocks(trace)
    with pytest.warns(InputWarning, match="prefix_caching is off"):
        off = jaxserve.make(spec, trace=named)
    on = jaxserve.make(spec, trace=named, overrides={"deployment": {"prefix_caching": True}})
    assert off.workload.classes.reuse is None and on.workload.classes.reuse is not None
    assert reuse_note(trace, off.deployment) is None
    assert (reuse_note(named, off.deployment) or "").startswith("a prefix cache of")
    note = reuse_note(named, on.deployment) or ""
    assert "are in blocks (hash_ids)" in note and "finds 98" in note


def test_packaged_traces_go_by_their_bare_name(tmp_path: Path) -> None:
    """A task file names its trace without a folder; a user's path stays as it is."""
    packaged = trace_path("synthetic_conversation.csv")
    assert packaged.is_file()
    assert trace_path(tmp_path / "mine.csv") == tmp_path / "mine.csv"


def test_a_path_object_is_a_trace(spec: TaskSpec) -> None:
    """``make`` takes paths as well as texts."""
    path = trace_path("synthetic_conversation.csv")
    by_path, by_text = jaxserve.make(spec, trace=path), jaxserve.make(spec, trace=str(path))
    assert by_path.workload.replay_counts is not None
    np.testing.assert_array_equal(by_path.workload.replay_counts, by_text.workload.replay_counts)


def test_a_trace_that_is_no_file_is_refused(spec: TaskSpec) -> None:
    """A missing file ends in a sentence."""
    with pytest.raises(InputError, match=r"warp\.csv"):
        jaxserve.make(spec, trace="warp.csv")


def test_what_is_not_replayed_as_recorded_is_warned_of(spec: TaskSpec) -> None:
    """A coarse clock and requests that are too long; others give no warning."""
    trace = recording(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxserve.make(spec, trace=trace)
    prompts = trace.prompt_tokens.copy()
    prompts[3] = 200_000
    changed = dataclasses.replace(trace, prompt_tokens=prompts, tick_s=3.0)
    with pytest.warns(InputWarning, match=r"recorded every 3 s.*; 1 of 202 requests \(0.5%\)"):
        jaxserve.make(spec, trace=changed)


@given(st.data())
def test_requests_too_long_to_be_served_are_rejected_and_counted(
    spec: TaskSpec, data: st.DataObject
) -> None:
    """Every request is served or rejected, in its window and class; lengths are of those served."""
    trace = recording(40, seed=data.draw(st.integers(0, 99)))
    total = trace.total_tokens
    longest = data.draw(st.integers(int(total.min()), int(total.max()) - 1))
    new, recorded = replay_spec(spec, trace, longest_tokens=longest)
    assert recorded.rejected is not None
    assert recorded.rejected.sum() == (total > longest).sum()
    whole = replay_spec(spec, trace)[1].counts.sum(axis=1)
    np.testing.assert_array_equal(recorded.counts.sum(axis=1) + recorded.rejected, whole)
    assert sum(new.regimes[0].mix.values()) == pytest.approx(1.0)
    assert all(stream.prompt.quantiles[-1] < longest for stream in new.streams)
    assert str((total > longest).sum()) in (trace.note(longest) or "")


def test_a_trace_of_which_nothing_fits_is_refused(spec: TaskSpec) -> None:
    """The sentence has the shortest request and the limit."""
    trace = recording(40)
    with pytest.raises(InputError, match="all 202 requests of the trace are too long"):
        replay_spec(spec, trace, longest_tokens=int(trace.total_tokens.min()) - 1)


@pytest.mark.slow
def test_both_simulators_reject_the_same_requests(spec: TaskSpec) -> None:
    """The fast one does not serve them; its rejected requests are the reference's, whose engines
    look at each request by itself, and the others are about as fast in both."""
    trace = recording(90)
    prompts = np.where(np.arange(len(trace)) % 5 == 0, 120_000, trace.prompt_tokens)
    long = dataclasses.replace(trace, prompt_tokens=prompts.astype(np.int32))
    small = {"deployment": {"kv_pool_tokens": 110_000}, "knobs": ["batch_cap"]}
    with pytest.warns(InputWarning, match="they are rejected, and count as missed"):
        env = jaxserve.make(spec, trace=long, overrides=small)
    action = jaxserve.make_action()
    key = episode_key(0)
    state, _ = env.reset(key)
    episode = ReferenceEpisode(env, key, table_timer(spec), 10, long)
    step = jax.jit(env.step)
    ours, theirs = [], []
    for _ in range(10):
        state, timestep = step(state, action)
        ours.append(timestep.metrics)
        theirs.append(episode.step(action))
        np.testing.assert_array_equal(ours[-1].arrivals, theirs[-1].arrivals)
    rejected = [sum(float(np.sum(each.rejected)) for each in found) for found in (ours, theirs)]
    # An engine looks at a request at the end of its iteration, perhaps in the next window.
    assert rejected[0] > 5.0 and abs(rejected[0] - rejected[1]) <= 1.0
    itl_s = [np.mean([float(each.itl_s) for each in found[2:]]) for found in (ours, theirs)]
    assert itl_s[0] == pytest.approx(itl_s[1], rel=0.3)


def test_a_drawn_task_with_requests_that_no_engine_serves_is_refused() -> None:
    """By ``make``, with the stream: a pool or a context that is too short."""
    with pytest.raises(InputError, match=r"stream copilot has .* allow 5,009"):
        jaxserve.make("bursty_workload", overrides={"deployment": {"kv_pool_tokens": 5008}})


def test_knobs_that_lower_the_pool_are_told(spec: TaskSpec) -> None:
    """Prompts beyond a lowered KV budget are served all the same, and a warning says so."""
    overrides = {"deployment": {"kv_pool_tokens": 20_000}, "knobs": ["kv_budget_fraction"]}
    with pytest.warns(InputWarning, match="knobs may leave a GPU 2,000 KV tokens"):
        jaxserve.make(spec, trace=recording(40), overrides=overrides)


def test_a_long_trace_is_measured_by_its_beginning(
    spec: TaskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note says so."""
    trace = recording(40)
    named = with_blocks(trace)
    deployment = jaxserve.make(spec, trace=trace).deployment
    note = reuse_note(named, deployment) or ""
    assert "would find 98" in note and "first" not in note
    for module in (replay, reuse):
        monkeypatch.setattr(module, "MAX_MEASURED", 100)
    assert "of those of its first 100 requests" in (reuse_note(named, deployment) or "")


SLOS = {"batch": KindSlo(20.0, 0.2, priority=2), "chat": KindSlo(0.3, 0.03, priority=0)}


def test_objectives_of_each_kind_reach_the_environment(spec: TaskSpec) -> None:
    """Every class has the objectives and the priority of its kind, in both simulators."""
    trace = with_kinds(recording(40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = jaxserve.make(spec, trace=trace, slos=SLOS)
    new, recorded = replay_spec(spec, trace, SLOS)
    counts = recorded.counts
    kinds = [stream.name.rsplit("_", 1)[0] for stream in new.streams]
    assert len(kinds) == 6 and kinds == sorted(kinds) and set(kinds) == {"batch", "chat"}
    slos = [SLOS[kind] for kind in kinds]
    np.testing.assert_allclose(env.slo.ttft_s, [slo.ttft_s for slo in slos])
    np.testing.assert_allclose(env.slo.tpot_s, [slo.tpot_s for slo in slos])
    assert env.workload.classes.priority.tolist() == [slo.priority for slo in slos]
    by_class = counts.sum(axis=(0, 1))
    chat = np.array(kinds) == "chat"
    assert by_class[chat].sum() == (trace.kind == 1).sum()
    assert by_class.sum() == len(trace)

    episode = ReferenceEpisode(env, episode_key(0), table_timer(spec), 30, trace)
    priorities = {(kinds[each.traffic_class], each.priority) for each in episode.requests}
    assert priorities == {("batch", 2), ("chat", 0)}
    faced = np.bincount([each.traffic_class for each in episode.requests], minlength=6)
    np.testing.assert_array_equal(faced, episode.traffic.counts.sum(axis=(0, 1)))


def test_a_slo_without_priority_leaves_the_tasks(spec: TaskSpec) -> None:
    """All else of the stream is the task's, too."""
    trace = with_kinds(recording(40), ("only",))
    new, _ = replay_spec(spec, trace, {"only": KindSlo(0.3, 0.03)})
    stream = spec.streams[0]
    for found in new.streams:
        assert (found.ttft_slo_s, found.tpot_slo_s) == (0.3, 0.03)
        assert (found.priority, found.value) == (stream.priority, stream.value)


def test_kinds_without_objectives_share_the_tasks(spec: TaskSpec) -> None:
    """A warning says so, where there are several kinds."""
    trace = with_kinds(recording(40))
    with pytest.warns(InputWarning) as warned:
        env = jaxserve.make(spec, trace=trace)
    assert [str(each.message) for each in warned] == [
        "all 2 kinds of the trace's requests (batch, chat) share the objectives of task "
        "trace_replay, TTFT 0.5 s and TPOT 0.05 s; --slo or slos gives each kind its own"
    ]
    np.testing.assert_allclose(env.slo.ttft_s, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxserve.make(spec, trace=with_kinds(trace, ("chat",)))


def test_a_trace_of_one_kind_is_replayed_as_one_without(spec: TaskSpec) -> None:
    """Every number of the task but the names of its streams."""
    trace = recording(40)
    (plain, recorded), (named, named_replay) = (
        replay_spec(spec, each) for each in (trace, with_kinds(trace, ("chat",)))
    )
    np.testing.assert_array_equal(recorded.counts, named_replay.counts)
    assert [stream.name for stream in plain.streams] == [f"bin_{i}" for i in range(6)]
    assert [stream.name for stream in named.streams] == [f"chat_{i}" for i in range(6)]
    for one, other in zip(plain.streams, named.streams, strict=True):
        np.testing.assert_array_equal(one.prompt.quantiles, other.prompt.quantiles)
        np.testing.assert_array_equal(one.output.quantiles, other.output.quantiles)
        same = {"name": other.name, "prompt": other.prompt, "output": other.output}
        assert dataclasses.replace(one, **same) == other


@pytest.mark.parametrize(
    ("slos", "message"),
    [
        ({"chat": KindSlo(0.5, 0.05)}, "no objectives of 'batch'"),
        (SLOS | {"code": KindSlo(0.5, 0.05)}, "objectives of 'code'; the kinds of the trace are"),
    ],
)
def test_objectives_of_other_kinds_are_refused(
    spec: TaskSpec, slos: dict[str, KindSlo], message: str
) -> None:
    """By ``make``, in a sentence that names the kind."""
    with pytest.raises(InputError, match=message):
        jaxserve.make(spec, trace=with_kinds(recording(40)), slos=slos)


def test_objectives_need_kinds(spec: TaskSpec) -> None:
    """A trace without kinds, and a task without a trace, have nothing that takes them."""
    with pytest.raises(InputError, match="the trace does not say of which kind"):
        jaxserve.make(spec, trace=recording(40), slos=SLOS)
    with pytest.raises(InputError, match="task bursty_workload replays none; name one as trace"):
        jaxserve.make("bursty_workload", slos=SLOS)


def test_more_kinds_than_classes_are_refused(spec: TaskSpec) -> None:
    """A task has six classes."""
    with pytest.raises(InputError, match=r"has 7 kinds of requests, a, b, .*; at most 6 can be"):
        replay_spec(spec, with_kinds(recording(40), tuple("abcdefg")))
    six, _ = replay_spec(spec, with_kinds(recording(40), tuple("abcdef")))
    assert [stream.name for stream in six.streams] == [f"{kind}_0" for kind in "abcdef"]


def test_kinds_find_their_own_in_a_prefix_cache(spec: TaskSpec) -> None:
    """Classes of a kind whose prompts are all alike find more than those of a kind whose prompts
    are not."""
    trace = with_kinds(recording(40))
    rows = [
        [0 if trace.kind is not None and trace.kind[i] else f"{i}-{block}" for block in range(8)]
        for i in range(len(trace))
    ]
    blocks = from_ids(rows, trace.prompt_tokens.astype(np.int64), 512)
    reuse = recorded_reuse(dataclasses.replace(trace, blocks=blocks), 1)
    assert reuse is not None
    new, _ = replay_spec(spec, trace)
    for stream, found in zip(new.streams, np.asarray(reuse.cached_tokens)[0, :, -1], strict=True):
        assert (found > 0.0) == stream.name.startswith("chat")
