"""The grid of loads."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from jaxserve.live.calibration.plan import CalibrationPlan


def test_every_point_is_planned() -> None:
    """Once, those with few requests in flight first."""
    points = CalibrationPlan((1, 4), (64, 128), (16,)).points
    assert points == [(1, 64, 16), (1, 128, 16), (4, 64, 16), (4, 128, 16)]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (CalibrationPlan(concurrency=()), "--concurrency is []"),
        (
            CalibrationPlan(concurrency=(1, 1)),
            r"is \[1, 1\]; it must be one number or more, each",
        ),
        (CalibrationPlan(concurrency=(0,)), "--concurrency is 0; it must be a whole number from 1"),
        (CalibrationPlan(prompt_tokens=(7,)), "--prompt-tokens is 7"),
        (CalibrationPlan(output_tokens=(9999,)), "--output-tokens is 9999"),
        (CalibrationPlan(minutes=0.0), "--minutes is 0"),
        (CalibrationPlan(minutes=float("nan")), "--minutes is nan"),
    ],
)
def test_bad_numbers(plan: CalibrationPlan, said: str) -> None:
    """Are refused by the name of their option."""
    with pytest.raises(InputError, match=said.replace("[]", r"\[\]")):
        plan.check()


def test_the_longest_request() -> None:
    """Must fit into the engine's longest sequence, where that is known."""
    plan = CalibrationPlan(prompt_tokens=(100,), output_tokens=(20,))
    plan.check_fits(130)
    plan.check_fits(None)
    with pytest.raises(InputError, match="sequences of 130 tokens; the engine takes 129"):
        plan.check_fits(129)
