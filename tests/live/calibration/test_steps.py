"""Steps of an engine."""

from __future__ import annotations

import numpy as np

from jaxserve.live.calibration.steps import COLUMNS, Steps


def of(seconds: list[float], **loads: list[float]) -> Steps:
    """Steps with these loads, the others 0."""
    return Steps(
        **{name: np.array(loads.get(name, [0.0] * len(seconds))) for name in COLUMNS[1:]},
        seconds=np.array(seconds),
    )


def test_one_of_the_steps_that_are_alike_counts() -> None:
    """The one with the median time; a long pause in one of them does not move it."""
    steps = of([1.0, 2.0, 90.0, 5.0, 6.0, 7.0], decode_seqs=[4, 4, 4, 64, 64, 64])
    assert sorted(steps.typical().seconds) == [2.0, 6.0]


def test_a_step_like_no_other_does_not_count() -> None:
    """It may have been a pause of the host."""
    steps = of([1.0, 1.0, 1.0, 50.0], prompt_tokens=[100, 101, 99, 900])
    assert steps.typical().seconds.tolist() == [1.0]


def test_other_depths_are_other_steps() -> None:
    """Also where they verify as many tokens."""
    depth = [0.0] * 3 + [2.0] * 3
    assert of([1.0] * 6, decode_tokens=[8.0] * 6, depth=depth).typical().depth.tolist() == [0, 2]
