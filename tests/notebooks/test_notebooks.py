"""The notebooks run, what they say of their pictures is so, and they are kept without outputs.

CI runs the notebooks that only play; ``make notebooks`` and ``make test-deep`` run all, briefly.
"""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.quick_compiler import commands_compute

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = {
    "01_play_an_episode": """
        assert int(timestep.observation.step_index) == 10
        assert (np.diff(tokens_per_s) > 0).all() and (np.diff(tpot_at_limit) > 0).all()
        assert ttft[0] > slo_ttft_ms > ttft[-1]
        assert goodput[0] < 0.01 * arrivals[0] and goodput[-1] > 0.9 * arrivals[-1]
        assert np.isclose(goodput[-1], goodput[-2], rtol=0.02)
        assert preemptions[0] > 0 and preemptions[-1] == 0
        assert served[0] < served[-1]
        assert tpot_by_load["light"].argmin() > tpot_by_load["heavy"].argmin() > 0
        assert tpot_by_load["heavy"][-1] > tpot_by_load["heavy"][0]
        assert (np.diff(accepted[1:]) < 0).all()
        assert tpot_by_tier[0].argmin() == 2 and tpot_by_tier[-1].argmin() == 1
        assert (np.diff(room) > 0).all()
        assert split_tpot.argmin() == 1 and split_tpot.argmax() == 3
        assert split_ttft.argmax() == 1 and split_goodput.argmax() == 2
        assert by_group[0, 1] > by_group[0, 0] and by_group[2, 1] < by_group[2, 0]
        assert mean(routing.reward)[1] > mean(routing.reward)[0]
        away = switched.timesteps.observation.reconfiguring[0] > 0.5
        assert away.any() and switched.timesteps.metrics.good[0][away].sum() < 1
        assert 0 < grade.score < 1
    """,
    "02_train_ppo": """
        assert (run / "weights.npz").is_file() and len(reward) == config.updates
        assert all(math.isfinite(each.mean) for each in scores.values()) and len(scores) == 5
        assert scores["random"].mean < scores["best_static"].mean
        assert reward[-1] > reward[0] and windows_per_s > 0
    """,
    "03_bring_your_own": """
        factors = {constant.name: constant.factor for constant in report.constants}
        assert factors["weight streaming"] > 1.1
        assert report.held_out_tpot_error < min(0.05, report.prior_tpot_error)
        means = {name: each.summary() for name, each in evaluated.agents.items()}
        assert means["best_static"]["objective"].mean > means["default"]["objective"].mean
        assert setup.note and means.keys() == set(agents)
        assert middle[-1] > middle[0] and usd[-1] > usd[0]
    """,
    "04_drive_the_server": """
        assert len(history) == horizon and done and 0 < grade["score"] < 1
        assert len(same) == 20 and all(same)
        assert server.process.poll() is not None
        assert random_scores.mean() < 0.3
    """,
}
"""Python that runs after each notebook's last cell: what its text says, of the values in it."""

PRINTED = {
    "02_train_ppo": {"scores": r"PPO score -?\d+\.\d+", "compare": r"\| ppo \|"},
    "03_bring_your_own": {
        "fit": "fit to 21 rows",
        "show": "llama-3.1-8b on 1 x",
        "gpus": r"99 % needs \d GPU",
    },
    "04_drive_the_server": {
        "wrong": r"refused .*batch_cap(.|\n)*windows played: 0",
        "sb3": r"skipped: stable_baselines3|Stable-Baselines3 PPO: score \d",
    },
}
"""What cells print, as regular expressions."""

TRAINING = ("02_train_ppo", "03_bring_your_own")
"""Notebooks that train or search for a minute."""

each_notebook = pytest.mark.parametrize("name", list(CLAIMS))


def cells(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Those of a notebook as it is kept, with the source as one text."""
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    found = [cell | {"source": "".join(cell["source"])} for cell in notebook["cells"]]
    return [cell for cell in found if kind in (None, cell["cell_type"])]


def test_every_notebook_is_tested() -> None:
    """None lies in the folder that no test knows."""
    assert sorted(path.stem for path in (ROOT / "notebooks").iterdir()) == sorted(CLAIMS)


@each_notebook
def test_kept_without_outputs(name: str) -> None:
    """What a run leaves behind is not in the repository."""
    assert cells(name, "code")
    for cell in cells(name, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
        assert cell["metadata"] == {}, cell["id"]


@each_notebook
def test_opens_with_title_and_installation(name: str) -> None:
    """The first cell says what it is about; the first code installs extras that exist."""
    first, *_ = cells(name)
    assert first["cell_type"] == "markdown" and first["source"].startswith("# ")
    install = cells(name, "code")[0]["source"]
    assert 'if importlib.util.find_spec("jaxserve") is None:\n    # What `make wheel`' in install
    wanted = re.search(r'%pip install -q "\{wheel\}\[([a-z,]+)\]"', install)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert wanted and set(wanted[1].split(",")) <= project["optional-dependencies"].keys()


@each_notebook
def test_says_where_to_look(name: str) -> None:
    """Text stands before the first code and after the last, and asks to look at something."""
    assert [cells(name)[index]["cell_type"] for index in (0, -1)] == ["markdown", "markdown"]
    asked = [cell for cell in cells(name, "markdown") if "**Look at**" in cell["source"]]
    assert len(asked) >= 3


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.deep if name in TRAINING else pytest.mark.slow)
        for name in CLAIMS
    ],
)
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom without an error; pictures are drawn, and what the text says is so."""
    import nbformat  # with nbclient's, a second that the quick tests need not wait
    from nbclient import NotebookClient

    monkeypatch.setenv("JAXSERVE_NOTEBOOK_BUDGET", "short")
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    claims = nbformat.v4.new_code_cell(re.sub(r"^ +", "", CLAIMS[name], flags=re.MULTILINE))
    notebook.cells.append(claims)
    where = {"metadata": {"path": str(tmp_path)}}
    waits = {"timeout": 1800, "startup_timeout": 300}
    # To search settings for a trace takes longer than to compile.
    with commands_compute() if "trace.csv" in str(cells(name)) else nullcontext():
        NotebookClient(notebook, kernel_name="python3", resources=where, **waits).execute()

    pictures = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        data = [output.get("data", {}) for output in cell.outputs]
        if re.search(r"^(plt\.show|draw_\w+)\(", cell.source, re.MULTILINE):
            assert any("image/png" in each for each in data), cell.id
            pictures += 1
        said = "".join(output.get("text", "") for output in cell.outputs)
        said += "".join(each.get("text/markdown", each.get("text/plain", "")) for each in data)
        wanted = PRINTED.get(name, {}).get(cell.id)
        assert wanted is None or re.search(wanted, said), f"{cell.id}: {said}"
    assert pictures >= 2
    assert not list(tmp_path.iterdir())  # files go to folders of their own
