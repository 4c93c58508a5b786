"""The log of a live episode: a line of JSON for its beginning and for every window.

It is appended to and never rewritten, so that a controller that is killed leaves what it had; the
last line may then be torn, and is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
_WHOLE = ("regime", "tier", "prefill_gpus")


class EpisodeWriter:
    """``with EpisodeWriter(path, header) as log: log.window(...)``."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Begins a file, or goes on with one by a further header.

        Raises:
          InputError: the file cannot be written.
        """
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._file = os.open(path, flags, 0o600)
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
        """Adds a window: what was seen, what was measured, the knobs in force, and notes."""
        self._line(
            {
                "kind": "window",
                **notes,
                "observation": plain(observation),
                "metrics": plain(metrics),
                "action": plain(action),
            }
        )

    def event(self, what: str, reason: str) -> None:
        """Adds a line of something that happened outside of a measured window."""
        self._line({"kind": "event", "what": what, "reason": reason})

    def _line(self, content: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(content, allow_nan=False) + "\n").encode())


def plain(values: Any) -> dict[str, Any]:
    """A flat pytree as JSON has it."""
    return {name: np.asarray(value).tolist() for name, value in vars(values).items()}


@dataclass(frozen=True)
class LiveEpisode:
    """A log that was read."""

    header: Mapping[str, Any]
    rollout: Rollout
    """leaves [1, T, ...], as a simulated one; rewards are computed from what was measured."""
    notes: tuple[Mapping[str, Any], ...]
    """of each window: mode, reason, expectations and echo."""


def read_episode(path: Path, env: ServeEnv) -> LiveEpisode:
    """Replays a log.

    Args:
      env: of the task that it was written for; its reward is computed anew.

    Raises:
      InputError: no such file, no log, no window in it, or a number that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"the log {path} cannot be read: {reason}") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(JsonObject(json.loads(line), f"{path} line {number}"))
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path} line {number} is no JSON") from None
    if not entries or entries[0].get("kind") != "header":
        raise InputError(f"{path} is no log of a live episode: its first line is no header")
    entries[0].whole("spec_version", SPEC_VERSION, SPEC_VERSION)
    windows = [entry for entry in entries if entry.get("kind") == "window"]
    if not windows:
        raise InputError(f"the log {path} has no window")
    classes = len(np.asarray(env.slo.ttft_s))
    rows = [_row(entry, classes) for entry in windows]
    metrics, observations, actions = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    parts = jax.vmap(compute_reward, (None, 0))(env.reward, metrics)
    over = jnp.zeros(len(rows), bool)
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


def _row(entry: JsonObject, classes: int) -> tuple[WindowMetrics, ServeObservation, ServeAction]:
    metrics = WindowMetrics(**_arrays(entry.inside("metrics"), WindowMetrics))
    if metrics.arrivals.shape != (classes,):
        raise InputError(
            f"{entry.where} is of another task: it has {metrics.arrivals.shape[0]} classes"
        )
    observation = ServeObservation(**_arrays(entry.inside("observation"), ServeObservation))
    return metrics, observation, make_action(**entry.inside("action"))


def _arrays(data: JsonObject, kind: type) -> dict[str, jax.Array]:
    found = {}
    for name in (field.name for field in fields(kind)):
        try:
            value = np.asarray(data[name], np.float64)
        except (KeyError, TypeError, ValueError):
            value = np.asarray(np.nan)
        if not np.isfinite(value).all():
            raise InputError(f"{data.where}: {name} is missing or no finite number")
        found[name] = jnp.asarray(value, jnp.int32 if name in _WHOLE else jnp.float32)
    return found
