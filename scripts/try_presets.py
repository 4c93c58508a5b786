"""Installs agents and lets each play a short episode through a gateway; prints what was seen.

    python scripts/try_presets.py codex pi=0.73.1          # versions: the one tried last, or given
    python scripts/try_presets.py --write codex            # into data/presets; then: make docs

The engine is scripted and answers with calls of the agent's own shell tool, and in an episode of
its own, where the agent knows MCP, with calls of the server's. Programs are kept in
``build/agents``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxserve.datafiles import write_atomic  # noqa: E402
from jaxserve.rollouts.presets import load_preset  # noqa: E402
from tests.rollouts.installed_agents import install, stage  # noqa: E402


def main() -> int:
    """Plays; exit code 1 where an agent did not play to the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="+", metavar="NAME[=VERSION]")
    parser.add_argument("--write", action="store_true", help="keep what was seen")
    chosen, failed = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as playing:
        for each in chosen.presets:
            name, _, version = each.partition("=")
            preset = load_preset(name)
            version = version or preset.tried[-1].version
            try:
                programs = install(preset, version)
            except pytest.skip.Exception as reason:
                print(f"{name} {version}: {reason}")
                failed = 1
                continue
            seen = {"version": version}
            episodes = {"seen": False}  # field of the file, and whether it is played over MCP
            if preset.mcp is not None:
                episodes["over_mcp"] = True
            for field, over_mcp in episodes.items():
                played = playing.play(preset, programs, over_mcp=over_mcp)
                seen[field] = played.seen()
                print(f"{name} {version}: {played.seen()}", flush=True)
                if not played.whole:
                    print(played.printed)
                    failed = 1
                    break
            else:
                if chosen.write:
                    _write(name, seen)
    return failed


def _write(name: str, seen: dict[str, str]) -> None:
    """Into the preset's file, in the place of what was seen before."""
    path = ROOT / "data" / "presets" / f"{name}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["tried"] = [seen]
    write_atomic(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
