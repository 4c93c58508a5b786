"""Results of a comparison on a task, and their JSON form."""

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
    """Episodes of one agent in one setup; float64[R, E], with a row for each training seed.

    All fields but the first and the last are sums over an episode, see
    ``jaxserve.evaluation.episode_statistics.EpisodeSums``.
    """

    objective: Matrix
    """mean reward of a window."""
    good: Matrix
    """requests that met all their SLOs."""
    decided: Matrix
    """requests that met or missed an SLO."""
    first_tokens: Matrix
    """requests that got their first token."""
    ttft_exceeded: NDArray[np.float64]
    """float64[R, E, S], first tokens later than each edge of the histogram."""
    changes_per_minute: Matrix
    """number of knob changes in a minute."""


@dataclass(frozen=True)
class VariantPlays:
    """Episodes in a variant of the task, see ``jaxserve.studies.compare.variants``."""

    name: str
    """name of the variant."""
    plays: Mapping[str, PlayedEpisodes]
    """episodes by agent; empty if the variant is left out."""
    reason: str = ""
    """reason to leave the variant out."""


@dataclass(frozen=True)
class TaskComparison:
    """All agents in a task, in its variants and in the reference simulator."""

    about: Mapping[str, Any]
    """inputs: task, version, seeds, windows, episodes, digest of the weights and others; equal
    inputs have equal results."""
    anchors: Anchors
    """mean rewards that scores are measured by."""
    plays: Mapping[str, PlayedEpisodes]
    """episodes in the task itself, by agent."""
    variants: tuple[VariantPlays, ...]
    """episodes in the variants."""
    reference: Mapping[str, Matrix]
    """mean rewards in the reference simulator on the first of the episodes, by agent."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.about["task"]


def to_data(result: TaskComparison) -> dict[str, Any]:
    """JSON data of a comparison, without its anchors, which are in ``data/anchors``."""
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
      InputError: ``data`` is no result of ``to_data``.
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
    """JSON text with the numbers of every run and episode."""
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
