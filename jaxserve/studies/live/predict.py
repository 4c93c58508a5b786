"""What both simulators say of the very requests that were sent, under the same agents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxserve import checks
from jaxserve.agents.reference_rollout import ReferenceEpisode, reference_rollout
from jaxserve.agents.rollout import rollout
from jaxserve.datafiles import read_json
from jaxserve.live.figures import (
    NAMES,
    Figures,
    of_reference,
    of_windows,
    undecided_at_end,
)
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.studies.live.agents import Prepared


@dataclass(frozen=True)
class Predicted:
    """An episode in both simulators, on the deployment's clock."""

    fast: Figures
    reference: Figures

    @classmethod
    def from_json(cls, path: Path) -> Predicted:
        """A file of an earlier call.

        Raises:
          InputError: it is damaged.
        """
        fields = [field.name for field in dataclasses.fields(cls)]
        item = checks.JsonObject(read_json(path, str(path)), str(path), fields)
        return cls(**{name: _figures(item.inside(name, NAMES)) for name in fields})


def predict(prepared: Prepared, agent: str, repeat: int) -> Predicted:
    """Plays the test episode of a repeat in both simulators."""
    env, policy, key = prepared.setup.env, prepared.policies[agent], episode_key(repeat, "test")
    played = rollout(env, policy, episode_keys(1, "test", first=repeat))
    metrics = jax.tree.map(lambda leaf: np.asarray(leaf[0]), played.timesteps.metrics)
    referenced = reference_rollout(env, policy, key, prepared.cost)
    log, undecided = referenced.log, undecided_at_end(referenced.metrics)
    good = ReferenceEpisode(env, key, prepared.cost).meets_slo(log)
    seconds = int(env.horizon) * float(env.window_s)
    return Predicted(of_windows(env, metrics), of_reference(log, good, undecided, seconds))


def _figures(item: checks.JsonObject) -> Figures:
    values = {n: float("nan") if item.get(n) is None else item.number(n, 0) for n in NAMES}
    return Figures(**values)
