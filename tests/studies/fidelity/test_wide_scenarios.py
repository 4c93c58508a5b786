"""Scenarios beyond the built-in tasks cover what they are there for."""

import numpy as np

from jaxserve.studies.fidelity.fast_vs_reference import BARS
from jaxserve.studies.fidelity.wide_scenarios import BARS as WIDE_BARS
from jaxserve.studies.fidelity.wide_scenarios import heavy_outputs, wide_grid, wide_specs


def test_they_are_long_uneven_and_on_several_gpus() -> None:
    """Prompts to 65,536 tokens, equal and heavy-tailed outputs, three GPUs, and no front end."""
    specs = list(wide_specs().values())
    assert max(spec.streams[0].prompt.quantiles[-1] for spec in specs) == 65_536
    assert {spec.deployment.num_gpus for spec in specs} == {1, 3}
    assert not any(spec.deployment.frontend_s + spec.deployment.frontend_tail_s for spec in specs)
    outputs = [np.diff(spec.streams[0].output.quantiles[[0, -1]])[0] for spec in specs]
    assert min(outputs) == 0.0
    heavy = heavy_outputs().quantiles
    assert heavy.std() > 1.5 * heavy.mean()


def test_the_grid_is_every_traffic_at_every_load_and_cap() -> None:
    """And each is judged by the same quantities as those of the tasks."""
    names = {scenario.name for scenario in wide_grid()}
    assert len(names) == len(wide_grid()) == 5 * 2 * 4
    assert all(scenario.traffic.load().name == scenario.traffic.task for scenario in wide_grid())
    judged_alone = {name for name in BARS if "no front end" in name}  # these scenarios have none
    assert set(WIDE_BARS) == set(BARS) - judged_alone
