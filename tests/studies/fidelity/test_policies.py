"""Policies earn in the fast simulator what they earn in the reference simulator."""

from __future__ import annotations

import pytest

from jaxserve.studies.fidelity.policies import policy_transfer


@pytest.mark.deep
def test_turning_a_knob_earns_the_same_in_both_simulators() -> None:
    """A learner would find what the fast simulator gives away: it once let a request in for each
    that finished above a lowered cap, and caps in turn scored 0.4 more than they earned."""
    (row,) = policy_transfer(("bursty_workload",), ("cap_flapping",), episodes=2)
    assert row.check == "transfer: cap_flapping on bursty_workload"
    assert row.passed, row
