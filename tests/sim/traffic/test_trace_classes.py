"""Traffic classes and arrival counts of a trace, and what the traces look like."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.sim.traffic import trace_classes
from jaxserve.sim.traffic.request_kinds import number_kinds
from jaxserve.sim.traffic.trace_classes import (
    ONE_CLASS,
    ClassMap,
    class_map,
    prompt_edges,
    split_classes,
    to_class_counts,
)
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.studies.fidelity.measurements import shared_data
from tests.sim.traffic.recorded_arrivals import dispersion, gap_cv

ROOT = Path(__file__).resolve().parents[3]
SMALL = load_trace(ROOT / "tests" / "data" / "azure_small.csv")
SMALL_EDGES = (342, 494, 1039, 1286, 2295)


def make_trace(rows: list[tuple[float, int, int]]) -> Trace:
    """Requests given as time, prompt and output."""
    time, prompt, output = (np.array(column) for column in zip(*sorted(rows), strict=True))
    return Trace(time - time[0], prompt.astype(np.int32), output.astype(np.int32))


traces = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.integers(1, 9000), st.integers(1, 2000)),
    min_size=1,
    max_size=80,
).map(make_trace)


def with_kinds(trace: Trace, names: list[str]) -> Trace:
    """The trace with a kind for each request, the names in turn."""
    of = [names[i % len(names)] for i in range(len(trace))]
    texts = sorted(set(of))
    kinds, kind = number_kinds(texts, np.array([texts.index(name) for name in of]))
    return dataclasses.replace(trace, kinds=kinds, kind=kind)


def by_prompt(*edges: int) -> ClassMap:
    """Classes of a trace without kinds."""
    return ClassMap((edges,))


names = st.lists(st.sampled_from(["chat", "batch", "code", "a_1", "a", "z"]), min_size=1)
kind_traces = st.builds(with_kinds, traces, names)


def mean_rate_rps(trace: Trace) -> float:
    """Requests per second."""
    return (len(trace) - 1) / trace.duration_s


def percentiles(tokens: np.ndarray) -> list[float]:
    """p50, p90 and p99."""
    return np.quantile(tokens, [0.5, 0.9, 0.99]).tolist()


def recorded_trace(name: str) -> Trace:
    """A published trace from an optional folder of recordings, which is not in the project."""
    shared = shared_data()
    path = shared and shared / "traces" / f"AzureLLMInferenceTrace_{name}.csv"
    if not (path and path.exists()):
        pytest.skip(f"the recorded {name} trace is not on this machine")
    return load_trace(path)


@pytest.mark.parametrize(
    ("name", "rate_rps", "gaps", "prompt", "output"),
    [
        ("conv", 5.5, 1.1, (1020, 2734, 4142), (129, 424, 601)),
        ("code", 2.6, 13.2, (1469, 5187, 7436), (13, 55, 251)),
    ],
)
def test_recorded_traces_have_their_published_figures(
    name: str, rate_rps: float, gaps: float, prompt: tuple[int, ...], output: tuple[int, ...]
) -> None:
    """Rate, gap CV and length percentiles of the Azure traces come out as documented."""
    trace = recorded_trace(name)
    assert mean_rate_rps(trace) == pytest.approx(rate_rps, abs=0.05)
    assert gap_cv(trace.arrival_s) == pytest.approx(gaps, abs=0.05)
    assert percentiles(trace.prompt_tokens) == pytest.approx(prompt, abs=1.0)
    assert percentiles(trace.output_tokens) == pytest.approx(output, abs=1.0)


def test_shipped_trace_resembles_the_conversation_trace() -> None:
    """Its rate, burstiness and percentiles are those of the recorded one within its sample size."""
    trace = load_trace(data_dir() / "traces" / "synthetic_conversation.csv")
    assert 895.0 < trace.duration_s < 900.0
    assert mean_rate_rps(trace) == pytest.approx(5.53, rel=0.06)
    assert gap_cv(trace.arrival_s) == pytest.approx(1.1, rel=0.05)
    assert dispersion(trace.arrival_s, 1.0) == pytest.approx(1.39, rel=0.1)
    assert percentiles(trace.prompt_tokens) == pytest.approx((1020, 2734, 4142), rel=0.05)
    assert percentiles(trace.output_tokens) == pytest.approx((129, 424, 601), rel=0.05)


@given(traces, st.integers(1, 8))
def test_edges_cut_into_bins_with_requests(trace: Trace, bins: int) -> None:
    """Edges increase, no bin is empty, and there are at most as many bins as asked for."""
    edges = prompt_edges(trace.prompt_tokens, bins)
    assert len(edges) < bins
    assert list(edges) == sorted(set(edges))
    for low, high in zip((0, *edges), (*edges, 10**9), strict=True):
        assert ((trace.prompt_tokens > low) & (trace.prompt_tokens <= high)).any()


def test_edges_balance_requests_and_tokens() -> None:
    """With many different lengths every bin carries its part of requests plus tokens."""
    prompt = np.random.default_rng(4).lognormal(6.0, 1.0, 5000).astype(int) + 1
    trace = make_trace([(float(i), int(p), 5) for i, p in enumerate(prompt)])
    edges = prompt_edges(trace.prompt_tokens, 6)
    bin = np.searchsorted(edges, trace.prompt_tokens)
    requests = np.bincount(bin) / 5000
    tokens = np.bincount(bin, weights=trace.prompt_tokens) / trace.prompt_tokens.sum()
    np.testing.assert_allclose(0.5 * (requests + tokens), 1 / 6, atol=0.01)


@given(st.one_of(traces, kind_traces), st.integers(1, 8))
def test_classes_share_out_all_requests_and_tokens(trace: Trace, bins: int) -> None:
    """Shares sum to 1, and shares times means give the trace's mean lengths."""
    assume(len(trace.kinds) <= bins)
    classes = split_classes(trace, class_map(trace, bins))
    assert sum(c.share for c in classes) == pytest.approx(1.0)
    prompt = sum(c.share * c.prompt.mean() for c in classes)
    output = sum(c.share * c.output.mean() for c in classes)
    assert prompt == pytest.approx(trace.prompt_tokens.mean(), abs=5.0)
    assert output == pytest.approx(trace.output_tokens.mean(), abs=2.0)


@given(
    st.one_of(traces, kind_traces),
    st.integers(1, 8),
    st.sampled_from([0.25, 1.0, 5.0]),
    st.sampled_from([1, 4, 8]),
)
def test_counts_conserve_requests(trace: Trace, bins: int, window_s: float, ticks: int) -> None:
    """Every request is counted once, in the tick it came in and in its own class."""
    assume(len(trace.kinds) <= bins)
    classes = class_map(trace, bins)
    counts = to_class_counts(trace, classes, window_s=window_s, ticks=ticks)
    assert counts.dtype == np.float32 and counts.shape[1:] == (ticks, len(classes))
    assert counts.sum() == len(trace)
    shares = [c.share for c in split_classes(trace, classes)]
    np.testing.assert_allclose(counts.sum((0, 1)) / len(trace), shares, atol=1e-6)
    # Arrivals up to the end of each tick.
    ends = np.arange(1, counts.shape[0] * ticks + 1) * (window_s / ticks)
    # A request on the border of two ticks may count in either.
    low = np.searchsorted(trace.arrival_s, ends - 1e-9)
    high = np.searchsorted(trace.arrival_s, ends + 1e-9, side="right")
    until = np.cumsum(counts.sum(2))
    assert (until[:-1] >= low[:-1]).all() and (until[:-1] <= high[:-1]).all()


def test_classes_are_prompt_bins() -> None:
    """Class b holds the prompts longer than edge b - 1, up to edge b, in the tick they came in."""
    trace = make_trace([(0.0, 100, 1), (0.1, 101, 1), (0.2, 5000, 1), (1.3, 100, 1)])
    counts = to_class_counts(trace, by_prompt(100, 4000), ticks=2)
    assert counts.shape == (2, 2, 3)
    assert counts[0, 0].tolist() == [1, 1, 1]
    assert counts[0, 1].tolist() == [0, 0, 0]
    assert counts[1, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: by_prompt(500, 400), "rising lengths above 0"),
        (lambda: by_prompt(0), r"edges is \[0\]; it must be rising lengths"),
        (lambda: ClassMap((), ()), r"edges is \(\); it must be one row for each kind"),
        (lambda: ClassMap(((),), ("a", "b")), "it must be one row for each kind"),
        (
            lambda: to_class_counts(SMALL, ClassMap(((), ()), ("a", "b"))),
            r"the trace's kinds is \(\); it must be those of its classes, \('a', 'b'\)",
        ),
        (
            lambda: to_class_counts(SMALL, ONE_CLASS, window_s=0.0),
            "window_s is 0.0; it must be a finite number above 0",
        ),
        (
            lambda: to_class_counts(SMALL, ONE_CLASS, ticks=0),
            "ticks is 0; it must be a whole number from 1 on",
        ),
        (
            lambda: to_class_counts(SMALL, ONE_CLASS, window_s=1e-7),
            "more than .* counts: take a part",
        ),
        (lambda: class_map(SMALL, 0), "bins is 0; it must be a whole number from 1 on"),
        (lambda: split_classes(SMALL, by_prompt(10**8)), "leave class bin_1 without requests"),
        (
            lambda: class_map(with_kinds(SMALL, list("abcdefg")), 6),
            "the trace has 7 kinds of requests, a, b, c, d, e, f, g; at most 6 can be told apart",
        ),
    ],
)
def test_bad_arguments_are_named(build, message: str) -> None:
    """Every impossible argument raises one sentence with its name and what is allowed."""
    with pytest.raises(InputError, match=message):
        build()


def test_count_limit_is_named() -> None:
    """A trace of months is refused with advice rather than filling the memory."""
    months = make_trace([(0.0, 1, 1), (1e7, 1, 1)])
    with pytest.raises(InputError, match=f"{trace_classes.MAX_COUNTS:,} counts"):
        to_class_counts(months, ONE_CLASS)


def test_without_kinds_classes_are_as_they_always_were() -> None:
    """Six bins of prompt lengths by the edges that results of earlier versions had."""
    classes = class_map(SMALL, 6)
    assert classes == by_prompt(*SMALL_EDGES)
    assert classes.names == tuple(f"bin_{i}" for i in range(6)) and set(classes.kind) == {0}
    index = np.searchsorted(SMALL_EDGES, SMALL.prompt_tokens)
    np.testing.assert_array_equal(classes.of(SMALL), index)


@given(traces, st.integers(1, 6))
def test_a_single_kind_changes_names_alone(trace: Trace, bins: int) -> None:
    """Requests are in the same classes as without it, where their lengths fill all of them."""
    assume(len(np.unique(trace.prompt_tokens)) > bins)
    plain, named = class_map(trace, bins), class_map(with_kinds(trace, ["chat"]), bins)
    assert named.edges == plain.edges
    assert named.names == tuple(name.replace("bin", "chat") for name in plain.names)
    np.testing.assert_array_equal(named.of(with_kinds(trace, ["chat"])), plain.of(trace))


@given(kind_traces, st.integers(1, 9))
def test_every_request_is_in_one_class_of_its_kind(trace: Trace, count: int) -> None:
    """Within the bounds of its bin; each class has requests and a name of its own, and all kinds
    have classes."""
    assume(len(trace.kinds) <= count)
    classes = class_map(trace, count)
    index = classes.of(trace)
    assert len(trace.kinds) <= len(classes) <= count
    assert len(set(classes.names)) == len(classes.names) == len(classes)
    assert set(index) == set(range(len(classes)))
    np.testing.assert_array_equal(np.array(classes.kind)[index], trace.kind)
    bounds = [pair for row in classes.edges for pair in zip((0, *row), (*row, 10**9), strict=True)]
    low, high = np.array(bounds)[index].T
    assert (trace.prompt_tokens > low).all() and (trace.prompt_tokens <= high).all()


def test_heavy_kinds_have_more_classes() -> None:
    """A kind's weight is half by its requests and half by its tokens; a kind of one length is not
    cut at all."""
    rows = [(float(i), 900 + i, 5) for i in range(60)] + [(float(i), 50 + i, 5) for i in range(30)]
    heavy = dataclasses.replace(
        make_trace(rows), kinds=("long", "short"), kind=(make_trace(rows).prompt_tokens < 900) + 0
    )
    assert class_map(heavy, 2).names == ("long_0", "short_0")
    assert class_map(heavy, 6).names == (*(f"long_{i}" for i in range(5)), "short_0")
    one_length = dataclasses.replace(
        heavy, prompt_tokens=np.where(heavy.kind == 0, 900, heavy.prompt_tokens).astype(np.int32)
    )
    assert class_map(one_length, 6).names == ("long_0", *(f"short_{i}" for i in range(5)))


def test_kinds_that_a_map_does_not_know_are_no_matter() -> None:
    """A map without kinds puts requests of all kinds together."""
    trace = with_kinds(SMALL, ["a", "b"])
    np.testing.assert_array_equal(ONE_CLASS.of(trace), np.zeros(len(trace)))
    with pytest.raises(InputError, match="those of its classes"):
        class_map(trace, 6).of(with_kinds(SMALL, ["a", "c"]))
