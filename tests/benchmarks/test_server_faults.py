"""The command of the fault benchmark: its exit code says whether anything failed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import pytest

from benchmarks import server_faults
from benchmarks.server_faults import Trial

FINE = Trial("harm", tried=3, survived=3, failed=0, lost=0, seen="")


@pytest.mark.parametrize(
    ("trial", "code"),
    [
        (FINE, 0),
        (replace(FINE, survived=2), 1),
        (replace(FINE, failed=1), 1),
        (replace(FINE, lost=1), 1),
    ],
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, trial: Trial, code: int) -> None:
    """1 where an answer, a step or a session did not survive."""

    def page(chosen: argparse.Namespace, trials: list[Trial]) -> str:
        del chosen
        trials.extend([FINE, trial])
        return ""

    monkeypatch.setattr(server_faults, "faults_page", page)
    monkeypatch.setattr(sys, "argv", ["server_faults"])
    assert server_faults.main() == code
