"""The README shows what was printed, and what it tells to run runs."""

import importlib.util
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from jaxserve.spaces import OBSERVATION_BOUNDS
from server.local import LocalServer
from tests.docs.snippets import blocks, run_code

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGE = "http://localhost:7860"


def code(language: str, word: str) -> str:
    """The one block with this word in it, in the form in which it is tried."""
    (found,) = (b.code for b in blocks(README) if b.language == language and word in b.code)
    return found


def test_tables_are_the_printed_ones() -> None:
    """``python scripts/fill_readme.py`` would change nothing."""
    spec = importlib.util.spec_from_file_location("fill", ROOT / "scripts" / "fill_readme.py")
    assert spec is not None and spec.loader is not None
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    text = README.read_text(encoding="utf-8")
    assert "<!-- table docs/fidelity_results.md" in text
    assert "<!-- table docs/results.md" in text
    assert fill.filled(text) == text


@pytest.mark.parametrize("word", ["jaxserve.make(", "gymnasium.make("])
def test_python_runs(word: str, tmp_path: Path) -> None:
    """Each block by itself prints a reward."""
    assert re.search(r"\d", run_code("python", code("python", word), tmp_path))


def test_python_of_the_client_runs(server: LocalServer, tmp_path: Path) -> None:
    """Against a real server; it prints a grade."""
    printed = run_code("python", code("python", "ServeClient").replace(PAGE, server.url), tmp_path)
    assert re.fullmatch(r"[01]\.\d+", printed.strip())


def test_curl_runs(server: LocalServer, tmp_path: Path) -> None:
    """Both answers are whole observations, the second with a reward; what clients of earlier
    projects read in ``info`` (docs/compatibility.md) is the same."""
    address = PAGE.removeprefix("http://")
    asked = code("sh", "curl").replace(address, server.url.removeprefix("http://"))
    printed = run_code("sh", asked, tmp_path)
    begun, end = json.JSONDecoder().raw_decode(printed)
    stepped = json.loads(printed[end:])
    for windows, answer in enumerate((begun, stepped)):
        seen = answer["observation"]
        assert seen.keys() >= OBSERVATION_BOUNDS.keys()
        assert seen["step_index"] == answer["info"]["timestep"] == windows
        assert answer["info"]["workload"]["queue_depth"] == seen["queue_depth"]
    assert begun["reward"] == 0.0
    assert stepped["reward"] != 0.0


@pytest.mark.slow
def test_commands_run(tmp_path: Path) -> None:
    """On a load test and a trace of a user."""
    files = {block.file: block.code for block in blocks(ROOT / "docs" / "extend_hardware.md")}
    (tmp_path / "my_load_test.csv").write_text(files["load_test.csv"], encoding="utf-8")
    rows = [
        f"2026-01-01 00:{s // 60:02}:{s % 60:02},{100 + 7 * (s % 300)},{20 + s % 300}"
        for s in range(1_300)
    ]
    trace = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""])
    (tmp_path / "my_trace.csv").write_text(trace, encoding="utf-8")
    printed = run_code("sh", code("sh", "train --task trace_replay"), tmp_path)
    assert printed.count("trace_replay, 3 test episodes") == 2
    assert "best_static is batch_cap" in printed
    assert {path.name for path in tmp_path.iterdir()} >= {"my.parquet", "my_run"}
    printed = run_code("sh", code("sh", "jaxserve autoscale"), tmp_path)
    assert "A replica bears" in printed
    assert (tmp_path / "scaled" / "autoscale.json").is_file()


@pytest.mark.slow
def test_the_demo_runs(tmp_path: Path) -> None:
    """What ``make demo`` runs, shorter, leaves everything that it speaks of afterwards."""
    assert code("sh", "make demo") == "make demo\nmake test\n"
    listed = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/.synced", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", "")
    steps = [line for line in listed.splitlines() if "jaxserve" in line or line.startswith("rm")]
    assert len(steps) == 3
    short = "--steps 1600 --environments 64"
    commands = "\n".join(steps).replace("--steps 5_000_000", short)
    commands = commands.replace(".venv/bin/", "").replace("--episodes 20", "--episodes 4")
    assert short in commands and shlex.split(commands)
    printed = run_code("sh", commands, tmp_path)
    assert "ppo" in printed and "best_static" in printed
    told = (ROOT / "scripts" / "after_demo.txt").read_text(encoding="utf-8")
    spoken_of = re.findall(r"demo/[\w./]+", told)
    assert len(spoken_of) >= 4
    assert all((tmp_path / name).exists() for name in spoken_of)
