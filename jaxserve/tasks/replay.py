"""Recorded traffic as a task: the trace's own lengths and arrival times, the task's objectives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os.path import isfile  # unlike Path.is_file, it answers to any name
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_classes import prompt_edges, split_classes, to_class_counts
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.spec import CLASS_COUNT, Regime, TaskSpec


def trace_path(name: str | Path) -> Path:
    """A packaged trace by its bare file name, or any path as it is."""
    packaged = data_dir() / "traces" / name
    return packaged if isfile(packaged) and not isfile(name) else Path(name)


def replay_spec(spec: TaskSpec, trace: Trace) -> tuple[TaskSpec, NDArray[np.float32]]:
    """The task with its one stream split into the trace's length classes.

    Returns:
      the task, and the arrivals per window, tick and class, float32[W, K, CLASS_COUNT].

    Raises:
      InputError: the task has several streams (a trace does not say which request belongs to
        which), or the trace is shorter than an episode.
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
    edges = prompt_edges(trace, CLASS_COUNT)
    classes = split_classes(trace, edges)
    counts = recorded_counts(trace, edges, spec.window_s, spec.ticks)
    streams = tuple(
        dataclasses.replace(
            spec.streams[0], name=f"bin_{i}", prompt=item.prompt, output=item.output, bins=1
        )
        for i, item in enumerate(classes)
    )
    regime = Regime(
        name="recorded",
        rate_rps=float(counts.sum() / (len(counts) * spec.window_s)),
        mix={stream.name: item.share for stream, item in zip(streams, classes, strict=True)},
    )
    return dataclasses.replace(spec, streams=streams, regimes=(regime,)), counts


def recorded_counts(
    trace: Trace, edges: Sequence[int], window_s: float, ticks: int
) -> NDArray[np.float32]:
    """Arrivals per window, tick and class, float32[W, K, CLASS_COUNT]; unused classes are empty.

    Raises:
      InputError: see ``jaxserve.sim.traffic.trace_classes.to_class_counts``.
    """
    counts = to_class_counts(trace, edges, window_s=window_s, ticks=ticks)
    return np.pad(counts, ((0, 0), (0, 0), (0, CLASS_COUNT - counts.shape[2])))
