"""The log of a live episode: lines of JSON, a header and one line per window.

The log is only appended to, so that a killed controller loses nothing but its last line; readers
skip a torn line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.rollout import Rollout
from jaxserve.checks import JsonObject
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.spaces import make_action
from jaxserve.tasks.reward import compute_reward
from jaxserve.types import ServeAction, ServeObservation, TimeStep, WindowMetrics

SPEC_VERSION = 1


class EpisodeWriter:
    """``with EpisodeWriter(path, header) as log: log.window(...)``."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Creates a file, or continues one with a further header.

        Raises:
          InputError: the file cannot be written.
        """
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            self._file = os.open(path, flags, 0o600)
            self._path = path
            size = os.lseek(self._file, 0, os.SEEK_END)
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                self._write(b"\n")  # after the torn line of a killed controller
        except OSError as error:
            raise InputError(f"--log is {path}: {error.strerror}") from None
        self._line({"kind": "header", "spec_version": SPEC_VERSION, **header})

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def window(
        self,
        observation: ServeObservation,
        metrics: WindowMetrics,
        action: ServeAction,
        notes: Mapping[str, Any],
    ) -> None:
        """Adds a window: its observation, its metrics, the knobs in force, and notes.

        Raises:
          InputError: the file cannot be written.
        """
        self._line(
            {
                "kind": "window",
                **notes,
                "observation": plain(observation),
                "metrics": plain(metrics),
                "action": plain(action),
            }
        )

    def event(self, window: int, what: str, reason: str) -> None:
        """Adds an event, a fault at the end of a window.

        Raises:
          InputError: the file cannot be written.
        """
        event = {"kind": "event", "window": window, "unix_s": time.time()}
        self._line(event | {"what": what, "reason": reason})

    def _line(self, content: Mapping[str, Any]) -> None:
        try:
            self._write((json.dumps(content, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise InputError(f"--log is {self._path}: {error.strerror}") from None

    def _write(self, text: bytes) -> None:
        while text:
            text = text[os.write(self._file, text) :]


def plain(values: Any) -> dict[str, Any]:
    """A flat pytree as a JSON object."""
    return {name: np.asarray(value).tolist() for name, value in vars(values).items()}


@dataclass(frozen=True)
class LiveEpisode:
    """The content of a log."""

    header: Mapping[str, Any]
    rollout: Rollout
    """leaves [1, T, ...], as of a simulated episode; rewards are computed from the metrics."""
    notes: tuple[Mapping[str, Any], ...]
    """notes of each window: mode, reason, expectations and echo."""


def read_episode(path: Path, env: ServeEnv) -> LiveEpisode:
    """Reads a log and computes its rewards.

    Args:
      env: environment of the log's task.

    Raises:
      InputError: the file cannot be read, is no log, has no window, or has a wrong number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"the log {path} cannot be read: {reason}") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
        except ValueError:
            torn = number == len(lines) or lines[number].startswith('{"kind": "header"')
            if torn:
                continue
            raise InputError(f"{path} line {number} is no JSON") from None
        entries.append(JsonObject(content, f"{path} line {number}"))
    if not entries or entries[0].get("kind") != "header":
        raise InputError(f"{path} is no log of a live episode: its first line is no header")
    for entry in entries:
        if entry.get("kind") == "header":
            entry.whole("spec_version", SPEC_VERSION, SPEC_VERSION)
            if entry.get("task") != entries[0].get("task"):
                raise InputError(f"{entry.where}: another task goes on in the same log")
    windows = [entry for entry in entries if entry.get("kind") == "window"]
    if not windows:
        raise InputError(f"the log {path} has no window")
    _, idle = env.reset(jax.random.key(0))
    rows = [_row(entry, idle) for entry in windows]
    metrics, observations, actions = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    over = jnp.zeros(len(rows), bool)
    parts = jax.vmap(compute_reward, (None, 0, 0))(env.reward, metrics, over)
    timesteps = TimeStep(
        observation=observations,
        reward=parts.total,
        terminated=over,
        truncated=over,
        metrics=metrics,
        parts=parts,
    )
    episodes = jax.tree.map(lambda leaf: leaf[None], Rollout(timesteps, actions))
    known = {"kind", "observation", "metrics", "action"}
    notes = tuple({k: v for k, v in entry.items() if k not in known} for entry in windows)
    return LiveEpisode(dict(entries[0]), episodes, notes)


def _row(entry: JsonObject, like: TimeStep) -> tuple[WindowMetrics, ServeObservation, ServeAction]:
    entry.positive("seconds")
    for name in ("in_force", "policy", "static"):
        entry.inside("expected").inside(name).number("good")
    measured = entry.inside("metrics")
    # Logs of earlier versions lack these, and all their replicas served.
    nobody = np.zeros_like(like.metrics.overdue).tolist()
    count = float(like.observation.replicas_ready)
    fleet = {"replicas_ready": count, "replicas_starting": 0.0}
    known = {"overdue": nobody, "on_track": nobody, "replicas_rented": count, **fleet, **measured}
    metrics = WindowMetrics(**_arrays(JsonObject(known, measured.where), like.metrics))
    seen = entry.inside("observation")
    seen = JsonObject(fleet | dict(seen), seen.where)
    observation = ServeObservation(**_arrays(seen, like.observation))
    try:
        return metrics, observation, make_action(**entry.inside("action"))
    except InputError as error:
        raise InputError(f"{entry.where}: {error}") from None


def _arrays(data: JsonObject, like: WindowMetrics | ServeObservation) -> dict[str, jax.Array]:
    """The fields of ``like`` from JSON, with its shapes and dtypes."""
    found = {}
    for name, leaf in vars(like).items():
        try:
            value = np.asarray(data[name], np.float64)
        except (KeyError, TypeError, ValueError):
            value = np.asarray(np.nan)
        if not np.isfinite(value).all():
            raise InputError(f"{data.where}: {name} is missing or no finite number")
        if value.shape != leaf.shape:
            raise InputError(f"{data.where}: {name} is of another task; it must be {leaf.shape}")
        found[name] = jnp.asarray(value, leaf.dtype)
    return found
