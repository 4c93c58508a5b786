"""Logs of episodes that somebody else played: their actions, and a check of their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.types import RewardParts, ServeObservation, TimeStep

MAX_ENTRIES = 1_000_000
TOLERANCE = 5e-3
"""Relative difference that other machines and other compiled programs may cause (they stay well
below), measured against the larger of the value and its mean over the episode."""
_ZERO = 1e-6  # what counts as 0 where the replay says 0 throughout

FIGURES = frozenset(
    {"reward"}
    | {f.name for kind in (RewardParts, ServeObservation) for f in dataclasses.fields(kind)}
)
"""Names that are compared."""

StatedFigures = dict[str, NDArray[np.float64]]
"""Figures that a log entry states, by name."""


def read_log(log: Any) -> tuple[list[Any], list[StatedFigures]]:
    """The actions of a log, and the figures that it states beside each.

    An entry is a mapping with ``action`` (the six knobs) and, if it likes, ``reward`` and the
    mappings ``observation`` and ``metrics``. A first entry without an action is the reset
    observation, which does not count. Names that the environment does not report are ignored.

    Raises:
      InputError: no list of mappings, an entry without an action, or a figure that is no finite
        number. Actions are returned as they are.
    """
    if not isinstance(log, Sequence) or isinstance(log, str | bytes):
        refuse("episode_log", log, "a list of entries")
    if len(log) > MAX_ENTRIES:
        raise InputError(f"episode_log has {len(log):,} entries; at most {MAX_ENTRIES:,} are read")
    actions, stated = [], []
    for i, item in enumerate(log):
        entry = JsonObject(item, f"episode_log[{i}]")
        if entry.get("action") is None:
            if i > 0:
                raise InputError(f"{entry.where}: action is missing; only the reset entry has none")
            continue
        actions.append(entry["action"])
        stated.append(_stated(entry))
    return actions, stated


def stated_figures(timestep: TimeStep) -> StatedFigures:
    """Figures that a log may state, float64[T, ...] by name, from a replay's stacked TimeStep."""
    figures = {"reward": timestep.reward, **vars(timestep.parts), **vars(timestep.observation)}
    return jax.tree.map(lambda value: np.asarray(value, np.float64), figures)


def verify(stated: Sequence[StatedFigures], truth: StatedFigures) -> bool | None:
    """Whether the stated figures are those of the replay; None if none are stated.

    Args:
      stated: figures of each window, in order.
      truth: from ``stated_figures``, of at least as many windows.

    Raises:
      InputError: a figure has the wrong number of entries.
    """
    scale = {name: np.abs(value).mean(axis=0) for name, value in truth.items()}
    verdict = None
    for i, figures in enumerate(stated):
        for name, figure in figures.items():
            true = truth[name][i]
            if figure.shape != true.shape:
                refuse(f"window {i}: shape of {name}", figure.shape, f"{true.shape}")
            allowed = TOLERANCE * np.maximum(np.abs(true), scale[name]) + _ZERO
            verdict = verdict is not False and bool((np.abs(figure - true) <= allowed).all())
    return verdict


def _stated(entry: JsonObject) -> StatedFigures:
    figures = {}
    for group in ("observation", "metrics"):
        if entry.get(group) is not None:
            figures |= _figures(entry.inside(group))
    return figures | _figures(JsonObject({"reward": entry.get("reward")}, entry.where))


def _figures(stated: JsonObject) -> StatedFigures:
    figures = {}
    for name in FIGURES & stated.keys():
        value = stated[name]
        if value is None and name == "reward":
            continue
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError):
            array = np.array(np.nan)
        if isinstance(value, str) or not np.isfinite(array).all():
            refuse(stated.name(name), value, "a finite number")
        figures[name] = array
    return figures
