"""What is said of knobs and observations is complete."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.fields import Bound, Tier
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOB_FIELDS, KNOBS, OBSERVATION_FIELDS


def test_a_bound_says_what_it_allows() -> None:
    """In words, as a type of arrays and as a number of JSON."""
    whole, share = Bound(1, 512, integer=True), Bound(0.1, 1.0)
    assert (whole.allowed, whole.dtype) == ("a whole number from 1 to 512", np.int32)
    assert (share.allowed, share.dtype) == ("a number from 0.1 to 1", np.float32)
    assert repr(whole.number(3.0)) == "3" and repr(share.number(1.0)) == "1.0"


@pytest.mark.parametrize(("num_gpus", "highest"), [(1, 0), (4, 3), (8, 7), (16, 7)])
def test_at_least_one_gpu_decodes(num_gpus: float, highest: float) -> None:
    """The split stays below the GPUs of the deployment, and as many replicas can be wanted."""
    assert KNOB_FIELDS["prefill_decode_split"].highest(num_gpus) == highest
    assert KNOB_FIELDS["replicas"].highest(num_gpus) == min(num_gpus, 8)
    for name in set(KNOBS) - {"prefill_decode_split", "replicas"}:
        assert KNOB_FIELDS[name].highest(num_gpus) == ACTION_BOUNDS[name].high


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_is_described(name: str) -> None:
    """A default that is allowed, a name for every value or for none, and a line about it."""
    knob = KNOB_FIELDS[name]
    assert knob.bound.low <= knob.default <= knob.bound.high
    assert isinstance(DEFAULT_ACTION[name], int if knob.bound.integer else float)
    assert len(knob.names) in (0, knob.bound.high + 1)
    assert all(part in knob.text for part in (knob.meaning, knob.effect, *knob.names))
    assert "\n" not in knob.text
    assert KNOB_FIELDS["quantization_tier"].names == tuple(tier.name for tier in Tier)


@pytest.mark.parametrize("name", OBSERVATION_FIELDS)
def test_an_entry_is_described(name: str) -> None:
    """A unit, which its name may not contradict but for ``_gb``, and an idle value inside."""
    entry = OBSERVATION_FIELDS[name]
    assert entry.meaning and 0.0 <= entry.idle <= entry.high
    endings = {"_ms": "ms", "_tps": "tokens/s", "_gb": "GiB"}
    for ending, unit in endings.items():
        assert not name.endswith(ending) or unit in entry.unit
