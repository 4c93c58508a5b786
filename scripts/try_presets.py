"""Installs agents and lets each play a short episode through a gateway; prints the outcome.

    python scripts/try_presets.py codex pi=0.73.1          # versions: the last trial's, or given
    python scripts/try_presets.py --write codex            # into data/presets; then: make docs

The agents are played by ``tests/rollouts/test_installed_agents.py``: the engine is scripted and
answers with calls of the agent's own shell tool and, in a second episode, for an agent with MCP,
with calls of the server's tool. Programs are kept in ``build/agents``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxserve.datafiles import write_atomic  # noqa: E402

TEST = "tests/rollouts/test_installed_agents.py"


def main() -> int:
    """Runs the trials; exit code 1 where an agent did not play to the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="+", metavar="NAME[=VERSION]")
    parser.add_argument("--write", action="store_true", help="keep the outcome")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trials = {"JAXSERVE_TRIALS": " ".join(chosen.presets), "JAXSERVE_TRIALS_FOLDER": folder}
        command = [sys.executable, "-m", "pytest", "-s", "-m", "", "-k", "test_a_trial", TEST]
        subprocess.run(command, cwd=ROOT, env=os.environ | trials)
        outcomes = sorted(Path(folder).glob("*.json"))
        if chosen.write:
            for outcome in outcomes:
                _write(outcome.stem, json.loads(outcome.read_text(encoding="utf-8")))
        return int(len(outcomes) < len(chosen.presets))


def _write(name: str, seen: dict[str, str]) -> None:
    """Replaces the trial in a preset's file."""
    path = ROOT / "data" / "presets" / f"{name}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["tried"] = [seen]
    write_atomic(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
