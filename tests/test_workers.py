"""Tests run in worker processes; one that dies ends the run with a failure and a summary."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_FILES = 9
_QUIET = "import os, time\ndef test_a(): pass\ndef test_b(): pass\n"
_ENDS = """
class End:
    def pytest_sessionfinish(self): os._exit(1)
def test_dies(request): request.config.pluginmanager.register(End())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "body", "summary"),
    [
        (0, "import os\ndef test_dies(): os._exit(1)\n" + _QUIET, r"\d failed"),
        (_FILES // 2, _QUIET + "def test_dies(): os._exit(1)\n", r"\d failed"),
        (_FILES - 1, _QUIET + "def test_dies(): time.sleep(3600)\n", r"\d failed"),
        (_FILES - 1, _QUIET + _ENDS, f"{2 * _FILES + 1} passed"),
    ],
    ids=["the first test", "a test in the middle", "one too long", "after its last test"],
)
def test_a_worker_that_dies(place: int, body: str, summary: str, tmp_path: Path) -> None:
    """Wherever it dies, the others end, and what is left out is not passed over in silence."""
    for number in range(_FILES):
        text = body if number == place else _QUIET
        (tmp_path / f"test_{number}.py").write_text(text)
    shutil.copy(_ROOT / "tests" / "conftest.py", tmp_path)
    recipe = re.search(r"^test:.*\n\t.* -m pytest (.*)$", (_ROOT / "Makefile").read_text(), re.M)
    assert recipe
    options = recipe[1].replace("-n $(WORKERS)", "-n 2").split()
    assert "2" in options
    command = [sys.executable, "-m", "pytest", "-c", str(_ROOT / "pyproject.toml")]
    command += ["-p", "xdist.plugin", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *options, "-o", "faulthandler_timeout=5", str(tmp_path)],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert re.match(summary, done.stdout.splitlines()[-1])
    assert "node down: Not properly terminated" in done.stdout
    if "failed" in summary:
        assert re.search(r"worker 'gw\d' crashed while running '.*::test_dies'", done.stdout)
