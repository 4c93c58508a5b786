"""Traces in verl's layout of a batch are what the model sampled, and a step goes uphill on them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.environments import ROOT
from tests.integrations.examples import run
from tests.integrations.trainer_environment import trainer_python

pytestmark = pytest.mark.deep


def sampled(folder: Path) -> None:
    """Writes the tiny model's own words to ``traces.jsonl``."""
    script = ROOT / "tests" / "integrations" / "sampled_traces.py"
    done = subprocess.run(
        [trainer_python(), script, "tiny", "traces.jsonl"],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "PATH": str(Path(sys.executable).parent),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]


def test_a_step(tmp_path: Path) -> None:
    """Ratios are 1 before it, which proves ids, masks, padding and log-probabilities; after it what
    was better than the group is likelier."""
    run("tiny_model", "tiny", folder=tmp_path)
    sampled(tmp_path)
    printed = run("verl_step", "--model", "tiny", "--traces", "traces.jsonl", folder=tmp_path)
    found = re.search(
        r"^4 traces, (\d+) tokens, ratios within (\S+)\n"
        r"the step moved ratios by up to (\S+), gain (\S+)$",
        printed,
        re.MULTILINE,
    )
    assert found is not None, printed
    tokens, before, after, gain = int(found[1]), *map(float, found.groups()[1:])
    assert tokens == 4 * 18
    assert before < 1e-3 < after
    assert gain > 0
