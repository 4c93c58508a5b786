"""The README shows what was printed, and its Python runs."""

import importlib.util
import re
from pathlib import Path

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


def test_python_runs(capsys) -> None:
    """Every Python block runs from top to bottom."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
