"""What an operator reads of a window: one line, with what is limited only where something is."""

import pytest

from jaxserve.live.show import Report, WindowComparison, print_report
from jaxserve.live.twins import Expectation


def line(capsys: pytest.CaptureFixture[str], unjudged: int = 0, **fields: dict[str, int]) -> str:
    """The line of a window in guarded mode."""
    found = Expectation(8.0, 8.0, 0.01, 0.0)
    comparison = WindowComparison(found, found, found, found, 50, unjudged)
    print_report(Report(3, "guarded", None, comparison, {"batch_cap": 40.0}, **fields))
    return capsys.readouterr().out


def test_limited_changes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of the last minute, of each knob that is limited, and nothing of others."""
    plain = line(capsys)
    assert plain.endswith("set batch_cap 40\n") and plain.count("\n") == 1
    changes = {"batch_cap": 2, "kv_budget_fraction": 0}
    told = "; changes in a minute: batch_cap 2, kv_budget_fraction 0\n"
    assert line(capsys, changes=changes) == plain.rstrip("\n") + told


def test_the_share_that_nobody_can_judge_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the expectations, which count all requests."""
    assert "static 8.0); 18% not judged; set batch_cap" in line(capsys, 9)
