"""Environments spread over devices: the same run as on one, and nothing but sums between them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PREPARE = """
import dataclasses

import jax
import numpy as np
from jax.sharding import AxisType

import jaxserve
from jaxserve.runtime.devices import all_devices
from jaxserve.learning.ppo import Learner
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.errors import InputError

config = PPOConfig(environments=16, minibatches=2, updates=4, traffic_group=2)
env = jaxserve.make("static_workload")
two = all_devices()
assert two.size == 2
one = jax.make_mesh((1,), two.axis_names, (AxisType.Auto,), devices=jax.devices()[:1])
"""

COMPARE = """
def run(mesh):
    learner = Learner.create(env, config, mesh)
    states = jax.jit(jax.vmap(lambda seed: learner.init(jax.random.key(seed))))(np.arange(2))
    update = jax.jit(jax.vmap(learner.update)).lower(states).compile()
    for _ in range(2):
        states, report = jax.block_until_ready(update(states))
    return update.as_text(), states, report


text, spread, report = run(two)
assert spread.env_states.step.addressable_shards[0].data.shape == (2, 8)
assert spread.params["Dense_0"]["kernel"].sharding.is_fully_replicated
assert " all-reduce(" in text
for talk in ("all-gather", "all-to-all", "collective-permute"):
    assert talk not in text, talk

_, alone, expected = run(one)
np.testing.assert_array_equal(
    jax.random.key_data(spread.env_states.workload.key),
    jax.random.key_data(alone.env_states.workload.key),
)
for name in ("params", "normaliser", "observations"):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=name),
        getattr(spread, name),
        getattr(alone, name),
    )
np.testing.assert_allclose(report.reward, expected.reward, rtol=1e-4)
"""

REFUSE = """
def refusal(**sizes):
    try:
        Learner.create(env, dataclasses.replace(config, **sizes))
    except InputError as error:
        return str(error)


assert refusal() is None
assert refusal(environments=17) == "the number of devices is 2; it must divide environments: 17"
per_device = "it must divide the environments per device: 9"
assert refusal(environments=18) == f"minibatches is 2; {per_device}"
assert refusal(environments=18, minibatches=3) == f"traffic_group is 2; {per_device}"
"""

MANY_TASKS = """
tasks = [jaxserve.make(name) for name in ("bursty_workload", "azure_code")]
learner = Learner.create(jaxserve.stack(8 * tasks), config)
state = jax.jit(learner.init)(jax.random.key(0))
state, report = jax.jit(learner.update)(state)
assert all(np.isfinite(value) for value in vars(report).values())
assert state.env_states.step.addressable_shards[0].data.shape == (8,)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(COMPARE, id="compare", marks=pytest.mark.deep),
        pytest.param(REFUSE, id="refuse"),
        pytest.param(MANY_TASKS, id="tasks"),
    ],
)
def test_two_devices(script: str) -> None:
    """Of two devices each has half of the environments. Parameters are on both, they exchange
    nothing but sums, and the run is that of one device up to the order of these sums. Sizes that do
    not fit are named, and a stack of tasks is cut as well."""
    flags = os.environ.get("XLA_FLAGS", "")
    two = {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=2"}
    found = subprocess.run(
        [sys.executable, "-c", PREPARE + script],
        env=os.environ | two,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
