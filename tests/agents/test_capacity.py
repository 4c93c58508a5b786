"""Capacity planning: forecasts move the way load, hardware and objectives say they must."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.capacity import DEPTHS, Load, decode_speed, value_share
from jaxserve.env import ServeEnv
from jaxserve.sim.machine.acceptance import tokens_per_step

TIER, SPLIT = jnp.int32(0), jnp.int32(0)


@functools.cache
def environment() -> ServeEnv:
    """Four GPUs with all knobs, and objectives that any setting meets when it is quiet."""
    env = jaxserve.make("adversarial_multitenant")
    lenient = dataclasses.replace(
        env.slo,
        ttft_s=jnp.full_like(env.slo.ttft_s, 2.0),
        tpot_s=jnp.full_like(env.slo.tpot_s, 0.1),
    )
    return dataclasses.replace(env, slo=lenient)


def load(
    rate_rps: float, prompt: float = 500.0, output: float = 200.0, drafts: bool = True
) -> Load:
    """Chat traffic; without drafts none of their tokens is accepted."""
    published = tokens_per_step("sharegpt/eagle") if drafts else np.ones(DEPTHS)
    return Load(
        rate_rps=jnp.float32(rate_rps),
        prompt_tokens=jnp.float32(prompt),
        output_tokens=jnp.float32(output),
        group_share=jnp.ones(3) / 3.0,
        tokens_per_step=jnp.asarray(published, jnp.float32),
    )


def share(rate_rps: float, tier: int = 0, split: int = 0, gpus: float = 4.0, **traffic) -> float:
    """Forecast of one configuration."""
    found = value_share(
        environment(),
        load(rate_rps, **traffic),
        jnp.int32(tier),
        jnp.int32(split),
        jnp.float32(gpus),
    )
    return float(found)


def test_share_falls_with_load() -> None:
    """More traffic never raises the share; it is nearly all at first and little in the end."""
    shares = [share(rate) for rate in (0.5, 2.0, 8.0, 32.0, 128.0, 512.0)]
    assert all(0.0 <= value <= 1.0 for value in shares)
    assert all(after <= before + 1e-3 for before, after in itertools.pairwise(shares))
    assert shares[0] > 0.9 and shares[-1] < 0.2


@pytest.mark.parametrize("rate", [8.0, 60.0, 150.0])
def test_share_rises_with_gpus(rate: float) -> None:
    """A GPU less never helps."""
    shares = [share(rate, gpus=gpus) for gpus in (1.0, 2.0, 3.0, 4.0)]
    assert all(after >= before - 1e-3 for before, after in itertools.pairwise(shares))


def test_precision_wins_when_idle_and_speed_when_busy() -> None:
    """Quality decides on a quiet deployment, capacity on a busy one."""
    assert share(0.2) > share(0.2, tier=2)
    assert share(40.0, prompt=2000.0, tier=1) > share(40.0, prompt=2000.0)


def test_everything_to_prefill_starves_decoding() -> None:
    """Three of four GPUs on prefill are a bad plan for short prompts and long answers."""
    assert share(60.0, split=3, prompt=64.0, output=800.0) < share(60.0, prompt=64.0, output=800.0)


def test_speculation_pays_in_small_batches() -> None:
    """The fastest depth falls from several drafts to one as the batch grows."""
    env = environment()
    depths = [
        int(jnp.argmax(decode_speed(env, load(1.0), TIER, jnp.float32(batch))))
        for batch in (1, 16, 64, 256, 512)
    ]
    assert depths[0] >= 3 and depths[-1] <= 1
    assert all(after <= before for before, after in itertools.pairwise(depths))


def test_useless_drafts_are_never_worth_it() -> None:
    """When no draft is accepted, plain decoding is the fastest at every batch."""
    env = environment()
    for batch in (1.0, 8.0, 128.0):
        speed = decode_speed(env, load(1.0, drafts=False), TIER, jnp.float32(batch))
        assert int(jnp.argmax(speed)) == 0
