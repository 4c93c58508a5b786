"""Both simulators say nearly the same of a policy that turns the batch cap on the study's tasks."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.agents.open_loop import FlappingPolicy
from jaxserve.agents.reference_rollout import table_timer
from jaxserve.agents.task_setup import load_setup
from jaxserve.spaces import make_action
from jaxserve.studies.live.agents import Prepared
from jaxserve.studies.live.episode import predict
from jaxserve.studies.live.plan import study_path

EPISODES = 3


@pytest.mark.slow
@pytest.mark.parametrize("server", ["h100", pytest.param("a100", marks=pytest.mark.deep)])
@pytest.mark.parametrize(("low", "high", "ttft_bar"), [(6, 48, 0.12), (2, 96, 0.16)])
def test_a_cap_that_is_turned_makes_both_simulators_wait_alike(
    server: str, low: int, high: int, ttft_bar: float
) -> None:
    """Who is in prefill holds a slot of a cap that was just raised, and goes on when it is lowered
    again. Once those in prefill were counted by what ends in the tick, as at a steady rate, and
    requests waited a fifth to a third too long. Once a lowered cap stopped the prefill in progress,
    and they waited a fifth too long between 2 and 96."""
    setup = load_setup(str(study_path().with_name(f"live_{server}.json")))
    flapping = FlappingPolicy(make_action(batch_cap=low), make_action(batch_cap=high))
    policies, cost = {"flapping": flapping}, table_timer(setup.spec)
    prepared = Prepared(setup=setup, cost=cost, policies=policies, static={}, calibration=())
    told = [predict(prepared, "flapping", repeat) for repeat in range(EPISODES)]
    for figure, bar in (("ttft_mean_s", ttft_bar), ("itl_mean_s", 0.12), ("goodput_rps", 0.1)):
        fast, reference = (
            np.mean([getattr(getattr(each, simulator), figure) for each in told])
            for simulator in ("fast", "reference")
        )
        assert fast == pytest.approx(reference, rel=bar), figure
