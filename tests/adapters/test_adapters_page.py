"""docs/adapters.md: its Python runs, and its table names what there is."""

import re
from pathlib import Path

import pytest

from jaxserve.adapters.gymnasium_env import ServeGymEnv

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_python_runs(capsys) -> None:
    """Every block runs, one after the other as a reader would, and prints what the page says."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/adapters.md", "exec"), names)
    assert "batch_cap is 16; it must be an index from 0 to 15" in capsys.readouterr().out


def test_the_table_names_every_figure() -> None:
    """The names of ``info`` are those of the table, no more and no fewer."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    _, info = ServeGymEnv("static_workload").reset(seed=0)
    assert sorted(listed) == sorted(info)
