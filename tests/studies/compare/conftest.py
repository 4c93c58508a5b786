"""Comparisons that take seconds."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.agents import panel
from jaxserve.agents.planner import PlannerConfig, planner_for
from jaxserve.agents.regime_oracle import RegimeOracle
from jaxserve.grids import nearest_indices
from jaxserve.learning import training
from jaxserve.spaces import make_action
from jaxserve.studies.compare import protocol
from jaxserve.tasks.spec import REGIME_COUNT
from tests.search_results import static_search


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches and plans that take no time, and a reference simulator that is only asked."""
    plan = PlannerConfig(horizon_windows=4, hold_windows=3, candidates=4, elites=2, iterations=1)
    settings = jnp.tile(nearest_indices(make_action(batch_cap=64)), (REGIME_COUNT, 2, 1))
    monkeypatch.setattr(training, "VALIDATION_EPISODES", 2)
    monkeypatch.setattr("jaxserve.studies.compare.trained.ENVIRONMENTS", 16)
    monkeypatch.setitem(panel._PRIVILEGED, "planner", lambda s, _: planner_for(s.env, plan))
    monkeypatch.setitem(panel._PRIVILEGED, "regime_oracle", lambda *_: RegimeOracle(settings))
    monkeypatch.setattr(
        "jaxserve.agents.panel.search_static",
        lambda *_, **__: static_search(np.array([13, 10, 0, 0, 0, 0, 0])),
    )

    def reference(spec, policies, episodes, progress):
        if progress is not None:
            progress(1, 1)
        return np.arange(len(policies) * episodes, dtype=float).reshape(-1, episodes)

    monkeypatch.setattr(protocol, "reference_objectives", reference)
