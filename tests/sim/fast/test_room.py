"""The room of a tick: what prefills take from those that decode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast import room
from tests.sim.fast.plans import plan

stolen_share = jax.jit(room.stolen_share)
shares = st.floats(0.0, 1.0, width=32)


@given(shares, shares, st.floats(0.0, 500.0, width=32), shares, st.integers(1, 512))
def test_prefills_hold_up_others_alone(
    prefill: float, line: float, running: float, full: float, batch_cap: int
) -> None:
    """At most the share of the time that they take, all of it from a large batch, and nothing from
    one that has a GPU for itself or other GPUs for its prompts."""
    held_up = [
        float(stolen_share(plan(split, batch_cap=batch_cap), prefill, line, running, full))
        for split in (False, True)
    ]
    assert 0.0 <= held_up[0] <= prefill and held_up[1] == 0.0
    alone = stolen_share(plan(batch_cap=1), prefill, 0.0, 0.5, full)
    assert float(alone) == pytest.approx(0.0, abs=1e-6)
    many = stolen_share(plan(batch_cap=512), prefill, line, 500.0, full)
    assert float(many) == pytest.approx(prefill, rel=0.01)
    if full == 0.0:
        lined_up = stolen_share(plan(batch_cap=512), prefill, 1.0, running, full)
        assert float(lined_up) == pytest.approx(prefill, abs=1e-6)


@given(shares, st.floats(0.0, 100.0, width=32))
def test_a_line_for_prefill(used: float, left: float) -> None:
    """There is none while prefill pauses, or while the tick cut one prefill in two."""
    timing: Any = SimpleNamespace(prefill_room_s=jnp.float32(0.2))
    line = float(room.prefill_line(plan(), timing, jnp.float32(0.2 * used), jnp.float32(left)))
    assert 0.0 <= line <= 1.0
    if used < 0.75 or left <= 1.0:
        assert line == pytest.approx(0.0, abs=1e-5)
    all_used = room.prefill_line(plan(), timing, timing.prefill_room_s, jnp.float32(8.0))
    assert float(all_used) == 1.0
