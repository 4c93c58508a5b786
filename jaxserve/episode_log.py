"""Logs of episodes that somebody else played: their actions, and whether their figures are true."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.tasks import checks
from jaxserve.types import RewardParts, ServeObservation, TimeStep

MAX_ENTRIES = 1_000_000
TOLERANCE = 1e-3
"""Relative difference that other machines and other compiled programs may cause (they stay well
below), measured against the larger of the value and its mean over the episode."""
_ZERO = 1e-6  # what counts as 0 where the replay says 0 throughout

FIGURES = frozenset(
    {"reward"}
    | {f.name for kind in (RewardParts, ServeObservation) for f in dataclasses.fields(kind)}
)
"""Names that are compared."""

Report = dict[str, NDArray[np.float64]]
"""Figures that a log entry states, by name."""


def read_log(log: Any) -> tuple[list[Any], list[Report]]:
    """The actions of a log, and the figures that it states beside each.

    An entry is a mapping with ``action`` (the six knobs) and, if it likes, ``reward`` and the
    mappings ``observation`` and ``metrics``. A first entry without an action is the reset
    observation, which does not count. Names that the environment does not report are ignored.

    Raises:
      InputError: no list of mappings, an entry without an action, or a figure that is no finite
        number. Actions are returned as they are.
    """
    if not isinstance(log, Sequence) or isinstance(log, str | bytes):
        raise InputError(f"episode_log is a {type(log).__name__}; it must be a list of entries")
    if len(log) > MAX_ENTRIES:
        raise InputError(f"episode_log has {len(log):,} entries; at most {MAX_ENTRIES:,} are read")
    actions, reports = [], []
    for i, item in enumerate(log):
        where = f"episode_log[{i}]"
        entry = checks.mapping(item, where)
        if entry.get("action") is None:
            if i > 0:
                raise InputError(f"{where}: action is missing; only the reset entry has none")
            continue
        actions.append(entry["action"])
        reports.append(_report(entry, where))
    return actions, reports


def stated_figures(timestep: TimeStep) -> Report:
    """What a log may state, float64[T, ...] by name, from a replay's stacked TimeStep."""
    figures = {"reward": timestep.reward, **vars(timestep.parts), **vars(timestep.observation)}
    return jax.tree.map(lambda value: np.asarray(value, np.float64), figures)


def verify(reports: Sequence[Report], truth: Report) -> bool | None:
    """Whether the stated figures are those of the replay; None if none are stated.

    Args:
      reports: one for each window, in order.
      truth: from `stated_figures`, of at least as many windows.

    Raises:
      InputError: a figure has the wrong number of entries.
    """
    scale = {name: np.abs(value).mean(axis=0) for name, value in truth.items()}
    verdict = None
    for i, report in enumerate(reports):
        for name, stated in report.items():
            true = truth[name][i]
            if stated.shape != true.shape:
                raise InputError(
                    f"window {i}: {name} has shape {stated.shape}; it must be {true.shape}"
                )
            allowed = TOLERANCE * np.maximum(np.abs(true), scale[name]) + _ZERO
            verdict = verdict is not False and bool((np.abs(stated - true) <= allowed).all())
    return verdict


def _report(entry: Mapping[str, Any], where: str) -> Report:
    report = {}
    for group in ("observation", "metrics"):
        if entry.get(group) is not None:
            report |= _figures(checks.mapping(entry[group], f"{where}: {group}"), where)
    return report | _figures({"reward": entry.get("reward")}, where)


def _figures(stated: Mapping[str, Any], where: str) -> Report:
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
            raise InputError(f"{where}: {name} is {value!r:.60}; it must be a finite number")
        figures[name] = array
    return figures
