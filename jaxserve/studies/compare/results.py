"""What a comparison found on a task, and the JSON that it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.studies.compare.intervals import Matrix
from jaxserve.tasks.anchors import Anchors

RESULTS_VERSION = 2


@dataclass(frozen=True)
class PlayedEpisodes:
    """One agent in one setup; float64[R, E], a row for each training seed (one row without).

    All but the first and the last are sums over an episode, see
    ``jaxserve.evaluation.episode_statistics.EpisodeSums``.
    """

    objective: Matrix
    """mean reward per window."""
    good: Matrix
    """requests that met all their SLOs."""
    decided: Matrix
    """requests whose fate is known."""
    first_tokens: Matrix
    """requests that got their first token."""
    ttft_exceeded: NDArray[np.float64]
    """[R, E, S], first tokens later than each edge of the histogram."""
    changes_per_minute: Matrix
    """knobs that were turned from one window to the next."""


@dataclass(frozen=True)
class VariantPlays:
    """What agents did in a variant of the task, see ``jaxserve.studies.compare.variants``."""

    name: str
    plays: Mapping[str, PlayedEpisodes]
    """by agent; empty where the variant was left out."""
    reason: str = ""
    """why it was left out."""


@dataclass(frozen=True)
class TaskComparison:
    """A task: every agent in the task itself, in its variants, in the reference simulator."""

    about: Mapping[str, Any]
    """what was compared: task, version, seeds, windows, episodes, digest of the weights and so on;
    results with equal entries need not be computed again."""
    anchors: Anchors
    plays: Mapping[str, PlayedEpisodes]
    """in the task itself, by agent."""
    variants: tuple[VariantPlays, ...]
    reference: Mapping[str, Matrix]
    """mean rewards in the reference simulator on the first of the episodes, by agent."""

    @property
    def task(self) -> str:
        """Its name."""
        return self.about["task"]


def to_data(result: TaskComparison) -> dict[str, Any]:
    """As plain JSON data, without the anchors, which are in ``data/anchors``."""
    return {
        "about": dict(result.about),
        "plays": _plays_data(result.plays),
        "variants": [
            {"name": variant.name, "reason": variant.reason, "plays": _plays_data(variant.plays)}
            for variant in result.variants
        ],
        "reference": {agent: values.tolist() for agent, values in result.reference.items()},
    }


def from_data(data: Mapping[str, Any], anchors: Anchors) -> TaskComparison:
    """The inverse of ``to_data``.

    Raises:
      InputError: it is not what ``to_data`` returns.
    """
    try:
        return TaskComparison(
            about=data["about"],
            anchors=anchors,
            plays=_plays(data["plays"]),
            variants=tuple(
                VariantPlays(item["name"], _plays(item["plays"]), item["reason"])
                for item in data["variants"]
            ),
            reference={agent: np.array(rows) for agent, rows in data["reference"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("results are not those of this version; remove the file") from None


def to_json(results: Sequence[TaskComparison]) -> bytes:
    """A JSON text with every run's and episode's numbers."""
    data = {"spec_version": RESULTS_VERSION, "tasks": [to_data(result) for result in results]}
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def _plays_data(plays: Mapping[str, PlayedEpisodes]) -> dict[str, Any]:
    return {
        agent: {name: values.tolist() for name, values in vars(play).items()}
        for agent, play in plays.items()
    }


def _plays(data: Mapping[str, Any]) -> dict[str, PlayedEpisodes]:
    return {
        agent: PlayedEpisodes(
            **{name: np.array(values, np.float64) for name, values in item.items()}
        )
        for agent, item in data.items()
    }
