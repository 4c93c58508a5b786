"""The per-regime oracle, which knows the regime of the traffic and plays that regime's setting.

It sees neither the future nor how long a regime lasts, so what it gains over the best static
setting is what a perfect detector of regimes would gain. Its settings are tuned together on
training episodes with reload and re-role delays simulated: a regime does without a setting of its
own where the switch costs more than it earns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.oracle import BURST_STATES, oracle_plans
from jaxserve.agents.policy import Memoryless, PrivilegedPolicy
from jaxserve.agents.progress import Progress
from jaxserve.agents.regimes import regimes_alike
from jaxserve.agents.rollout import rollout
from jaxserve.agents.search import regime_settings
from jaxserve.env import EnvState, ServeEnv
from jaxserve.grids import action_at, grid_sizes, nearest_indices
from jaxserve.seeds import episode_keys
from jaxserve.tasks.spec import REGIME_COUNT
from jaxserve.types import ServeAction


@dataclass(frozen=True)
class RegimeSearch:
    """Effort of the search for the settings."""

    episodes: int = 8
    """training episodes that the settings are tuned on."""
    held_episodes: int = 4
    """episodes among these on which a regime is held from start to end."""
    sweeps: int = 1
    """passes of coordinate ascent. In the first one plans do not look ahead, as this agent
    cannot."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RegimeOracle(Memoryless, PrivilegedPolicy):
    """Settings by regime, and within a regime for calm and for a burst."""

    settings: jax.Array
    """int32[G, 2, 6], grid indices by regime and whether a burst is running."""

    def act_on_state(
        self, env: ServeEnv, memory: Any, state: EnvState, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """The setting of the regime that the window is in; a burst shows one window late."""
        del env, key
        traffic = state.workload
        regime = traffic.order[traffic.position % traffic.order.shape[0]]
        bursting = (traffic.burst_level > 1.0).astype(jnp.int32)
        return action_at(self.settings[regime, bursting]), memory


def search_regime_oracle(
    env: ServeEnv,
    static: ServeAction,
    search: RegimeSearch | None = None,
    progress: Progress | None = None,
) -> RegimeOracle:
    """Tunes the settings on training episodes.

    Args:
      static: the best static setting; all regimes get it where nothing better is found.
    """
    search = search or RegimeSearch()
    keys = episode_keys(search.episodes, "train")
    start = np.where(grid_sizes(env) > 1, np.asarray(nearest_indices(static)), 0).astype(np.int32)
    if regimes_alike(env):
        by_regime = np.tile(start, (REGIME_COUNT, 1))
    else:
        by_regime = regime_settings(env, keys[: search.held_episodes], start, progress=progress)
    plans, _ = oracle_plans(
        env, keys, start, by_regime, sweeps=search.sweeps, generations=0, progress=progress
    )
    tuned = np.asarray(plans.settings[0]).reshape(-1, BURST_STATES, len(start))
    # Where the traffic is recorded its bursts are not announced, so one setting must do for both.
    calm = np.repeat(tuned[:, :1], BURST_STATES, axis=1)
    candidates = [RegimeOracle(jnp.asarray(settings)) for settings in (tuned, calm)]
    candidates.append(RegimeOracle(jnp.broadcast_to(jnp.asarray(start), tuned.shape)))
    rewards = [float(jnp.mean(rollout(env, each, keys).timesteps.reward)) for each in candidates]
    return candidates[int(np.argmax(rewards))]
