"""The benchmarks' command lines: one sentence and exit code 2 before anything is measured."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A benchmark in a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            "benchmarks.__main__",
            ("--markdown", "missing/x.md"),
            "the folder missing does not exist",
        ),
        ("benchmarks.rollout_builders", ("--markdown", "missing/x.md"), "the folder missing does"),
        (
            "benchmarks.server_load",
            ("--rounds", "0"),
            "--rounds is 0; it must be a whole number from 1 to 1000",
        ),
        (
            "benchmarks.server_load",
            ("--seconds", "nan"),
            "--seconds is nan; it must be a number from 0.1",
        ),
        ("benchmarks.server_load", ("--soak-seconds", "inf"), "--soak-seconds is inf; it must be"),
        ("benchmarks.rollout_load", ("--sessions", "0"), "--sessions is 0; it must be a whole"),
        (
            "benchmarks.rollout_load",
            ("--completions", "9"),
            "--completions is 9; it must be a whole number from 640",
        ),
        ("benchmarks.rollout_sandboxes", ("--sandboxes", "9"), "--sandboxes is 9; it must be a"),
        ("benchmarks.rollout_sandboxes", ("--rounds", "9"), "--rounds is 9; it must be a whole"),
        ("benchmarks.rollout_faults", ("--tasks", "0"), "--tasks is 0; it must be a whole number"),
        ("benchmarks.rollout_faults", ("--harms", "-1"), "--harms is -1; it must be a whole"),
        ("benchmarks.live_fleet", ("--hours", "25"), "--hours is 25.0; it must be a number"),
        ("benchmarks.live_fleet", ("--speed", "0"), "--speed is 0.0; it must be a number from 1"),
        ("benchmarks.paired", ("HEAD", "--pairs", "9"), "--pairs is 9; it must be a whole number"),
        ("benchmarks.paired", ("HEAD", "--environments", "0"), "--environments is 0; it must be"),
        ("benchmarks.paired", ("no-such",), "git has no tree of 'no-such'"),
        ("benchmarks.server_faults", ("--kills", "-1"), "--kills is -1; it must be a whole number"),
        ("benchmarks.server_faults", ("--connections", "-1"), "--connections is -1; it must be"),
    ],
)
def test_bad_arguments(
    module: str,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Value and range are named, and nothing is printed."""
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    assert importlib.import_module(module).main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("benchmarks: ") and message in printed.err
    assert printed.err.count("\n") == 1


def test_a_real_process_reports_bad_input() -> None:
    """What ``main`` returns is the exit code."""
    found = run("benchmarks.server_load", "--rounds", "0")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("benchmarks: --rounds is 0") and found.stderr.count("\n") == 1


@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is not None, reason="the extra is installed"
)
def test_the_missing_extra_is_named() -> None:
    """Without the peer there is the command that installs it."""
    found = run("benchmarks.peers", "--help")
    assert found.returncode == 2
    assert found.stderr.endswith("pip install 'jaxserve[peers]'\n")
    assert found.stderr.count("\n") == 1
