"""Spaces that stand in for gymnax's: samples are inside, what is outside is outside."""

from __future__ import annotations

import sys
import types

import jax
import numpy as np
import pytest

from jaxserve.adapters.gymnax_spaces import Box, Discrete, MultiDiscrete, box, discrete

KEYS = jax.random.split(jax.random.key(0), 64)
SPACES = [
    (Discrete(5), -1, 5),
    (Box(np.array([-1.0, 0.0]), np.array([1.0, 0.5]), (2,)), [0.0, 0.6], [-1.1, 0.0]),
    (MultiDiscrete(np.array([3, 1, 4])), [0, 1, 0], [-1, 0, 0]),
]


@pytest.mark.parametrize(("space", "above", "below"), SPACES, ids=lambda s: type(s).__name__)
def test_samples_are_inside(space: Discrete | Box | MultiDiscrete, above: object, below: object):
    """Under jit and vmap, of the declared shape and type; and neighbours outside are not in it."""
    samples = jax.jit(jax.vmap(space.sample))(KEYS)
    assert samples.shape == (64, *space.shape) and samples.dtype == space.dtype
    assert np.asarray(jax.vmap(space.contains)(samples)).all()
    assert not space.contains(np.asarray(above)) and not space.contains(np.asarray(below))


def test_every_value_is_drawn() -> None:
    """The last value of each entry as well as the first."""
    samples = np.asarray(jax.vmap(MultiDiscrete(np.array([3, 1, 4])).sample)(KEYS))
    assert samples.min(axis=0).tolist() == [0, 0, 0] and samples.max(axis=0).tolist() == [2, 0, 3]


def test_gymnax_spaces_are_used_where_gymnax_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """gymnax's wrappers ask for its own classes, so those are given out when there are any."""
    assert type(discrete(3)).__name__ == "Discrete" and discrete(3).n == 3
    theirs = types.ModuleType("gymnax.environments.spaces")
    theirs.Discrete = lambda count: ("gymnax", count)  # type: ignore[attr-defined]
    theirs.Box = lambda low, high, shape: ("gymnax", shape)  # type: ignore[attr-defined]
    for name in ("gymnax", "gymnax.environments"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    assert discrete(3) == ("gymnax", 3) and box(0.0, 1.0, (2,)) == ("gymnax", (2,))
