"""Recorded traffic as a task: the trace's own lengths and arrival times, the task's objectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isfile  # unlike Path.is_file, it answers to any name
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.traffic.reuse import MAX_MEASURED, cached_tokens
from jaxserve.sim.traffic.reuse_table import ReuseTable, reuse_table
from jaxserve.sim.traffic.trace_classes import ClassMap, class_map, split_classes, to_class_counts
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.slos import KindSlo, check_slos
from jaxserve.tasks.spec import CLASS_COUNT, Regime, Stream, TaskSpec

TRACE_AGES = 8
"""Bins of age in which the fast simulator counts running sequences of a user's own trace."""


def trace_path(name: str | Path) -> Path:
    """A packaged trace by its bare file name, or any path as it is."""
    packaged = data_dir() / "traces" / name
    return packaged if isfile(packaged) and not isfile(name) else Path(name)


@dataclass(frozen=True, eq=False)
class Replay:
    """Arrivals of a recording in a task."""

    counts: NDArray[np.float32]
    """float32[W, K, CLASS_COUNT], requests per window, tick and class."""
    rejected: NDArray[np.float32] | None = None
    """float32[W, CLASS_COUNT], further requests, which are too long to be served; None for none."""


def replay_spec(
    spec: TaskSpec,
    trace: Trace,
    slos: Mapping[str, KindSlo] | None = None,
    longest_tokens: float = math.inf,
) -> tuple[TaskSpec, Replay]:
    """The task with its one stream split into the trace's classes, by kind and prompt length.

    Requests that are too long for a latency table are shortened, see ``Trace.within_table``.

    Args:
      slos: objectives of each of the trace's kinds; without any all kinds have the task's.
      longest_tokens: of a request that is served, prompt and output together; longer ones are
        rejected when they arrive.

    Raises:
      InputError: the task has several streams (a trace does not say which request belongs to
        which), the trace is shorter than an episode or has more kinds than there are classes,
        ``slos`` are not those of its kinds, or all requests are rejected.
    """
    if len(spec.streams) != 1:
        raise InputError(
            f"task {spec.name} has {len(spec.streams)} streams; only a task with one stream can "
            "replay a trace, for example trace_replay"
        )
    needed_s = spec.horizon * spec.window_s
    if trace.duration_s < needed_s - spec.window_s:
        raise InputError(
            f"the trace lasts {trace.duration_s:.0f} s; an episode of {spec.name} needs "
            f"{needed_s:.0f} s, or a smaller horizon in a task file of your own, which `jaxserve "
            f"tasks {spec.name} > my_task.json` begins (in Python: in overrides)"
        )
    served = trace.total_tokens <= longest_tokens
    if not served.any():
        raise InputError(
            f"all {len(trace):,} requests of the trace are too long to be served: the shortest has "
            f"{trace.total_tokens.min():,} tokens, prompt and output together, and KV pool and "
            f"context length allow {longest_tokens:,.0f}; name another GPU or model"
        )
    trace = trace.within_table()
    classes = class_map(trace, CLASS_COUNT)
    by_kind = [spec.streams[0]] * len(classes.edges)
    if slos:
        check_slos(slos, trace)
        by_kind = [_with_slo(spec.streams[0], slos[kind]) for kind in classes.kinds]
    found = split_classes(trace, classes, served)
    counts = recorded_counts(trace, classes, spec.window_s, spec.ticks, served)
    rejected, arrived = None, counts.sum()
    if not served.all():
        rejected = recorded_counts(trace, classes, spec.window_s, spec.ticks, ~served).sum(axis=1)
        arrived += rejected.sum()
    streams = tuple(
        dataclasses.replace(
            by_kind[kind], name=name, prompt=item.prompt, output=item.output, bins=1
        )
        for kind, name, item in zip(classes.kind, classes.names, found, strict=True)
    )
    regime = Regime(
        name="recorded",
        rate_rps=float(arrived / (len(counts) * spec.window_s)),
        mix={stream.name: item.share for stream, item in zip(streams, found, strict=True)},
    )
    return dataclasses.replace(spec, streams=streams, regimes=(regime,)), Replay(counts, rejected)


def _with_slo(stream: Stream, slo: KindSlo) -> Stream:
    return dataclasses.replace(
        stream,
        ttft_slo_s=slo.ttft_s,
        tpot_slo_s=slo.tpot_s,
        priority=stream.priority if slo.priority is None else slo.priority,
    )


def shared_slo_note(spec: TaskSpec, trace: Trace) -> str | None:
    """Note that all kinds of a trace have the task's own objectives; None where the trace does not
    tell several kinds apart."""
    if len(trace.kinds) < 2:
        return None
    stream = spec.streams[0]
    return (
        f"all {len(trace.kinds)} kinds of the trace's requests ({', '.join(trace.kinds)}) share "
        f"the objectives of task {spec.name}, TTFT {stream.ttft_slo_s:g} s and TPOT "
        f"{stream.tpot_slo_s:g} s; --slo or slos gives each kind its own"
    )


def recorded_reuse(trace: Trace, num_gpus: int) -> ReuseTable | None:
    """Reuse table of the classes of ``replay_spec``; None where the trace does not tell its
    prompts' blocks apart."""
    if trace.blocks is None:
        return None
    trace = trace.within_table()
    return reuse_table(trace, class_map(trace, CLASS_COUNT), num_gpus, CLASS_COUNT)


def repeated_note(trace: Trace) -> str | None:
    """Note that prompts which begin alike are prefilled whole where a deployment caches no
    prefixes; None where the file has no such prompts."""
    if not trace.repeated_share:
        return None
    return (
        f"{_repeated(trace)}; they are prefilled again, because the deployment's prefix_caching is "
        "off"
    )


def reuse_note(trace: Trace, deployment: Deployment) -> str | None:
    """Note on the share of the trace's prompts that a prefix cache spares or, where it is off,
    would spare; None where the file does not tell."""
    if trace.repeated_share is None:
        return None
    pool = float(np.asarray(deployment.kv_pool_tokens)[0, 0])
    gpus = round(float(deployment.num_gpus))
    found = cached_tokens(trace, np.array([pool], np.float32), gpus)
    share = found.sum() / trace.prompt_tokens[: len(found)].sum(dtype=np.int64)
    where = f"{gpus} x {pool:,.0f}" if gpus > 1 else f"{pool:,.0f}"
    of = f" of those of its first {MAX_MEASURED:,} requests" if len(trace) > len(found) else ""
    if not deployment.prefix_caching:
        of = of or " of the trace's prompt tokens"
        return f"a prefix cache of {where} tokens would find {share:.1%}{of}"
    return f"{_repeated(trace)}; the prefix cache of {where} tokens finds {share:.1%}{of}"


def _repeated(trace: Trace) -> str:
    return (
        f"{trace.repeated_share:.0%} of the trace's prompt tokens are in blocks (hash_ids) that it "
        "had before"
    )


def recorded_counts(
    trace: Trace,
    classes: ClassMap,
    window_s: float,
    ticks: int,
    counted: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Arrivals per window, tick and class, float32[W, K, CLASS_COUNT]; unused classes are empty.

    Args:
      counted: bool[n], the requests that count; all by default.

    Raises:
      InputError: see ``jaxserve.sim.traffic.trace_classes.to_class_counts``.
    """
    counts = to_class_counts(trace, classes, window_s=window_s, ticks=ticks, counted=counted)
    return np.pad(counts, ((0, 0), (0, 0), (0, CLASS_COUNT - counts.shape[2])))
