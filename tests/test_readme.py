"""The README shows what was printed, and its Python runs."""

import importlib.util
import re
from pathlib import Path

import pytest

from server.local import LocalServer

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_the_printed_ones() -> None:
    """`python scripts/fill_readme.py` would change nothing."""
    spec = importlib.util.spec_from_file_location("fill", ROOT / "scripts" / "fill_readme.py")
    assert spec is not None and spec.loader is not None
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    assert "<!-- table docs/fidelity_results.md" in README
    assert fill.filled(README) == README


def test_python_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every Python block runs from top to bottom, those of the client against a real server."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    served = [block for block in blocks if "ServeClient" in block]
    assert served and len(served) < len(blocks)
    server = LocalServer(tmp_path).wait()
    try:
        for block in blocks:
            code = block.replace("http://localhost:7860", server.url)
            exec(compile(code, "README.md", "exec"), {})
    finally:
        server.stop()
    assert capsys.readouterr().out.count("\n") >= 2
