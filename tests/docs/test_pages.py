"""Every code block of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import LANGUAGES, blocks, run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
ELSEWHERE = {
    "adapters.md": "tests/adapters/test_adapters_page.py",
    "deployment.md": "tests/server/test_documents.py",
    "gateway.md": "tests/gateway/test_page.py",
    "mock_engine.md": "tests/mock_engine/test_page.py",
    "live.md": "tests/live/test_page.py",
    "live_environment.md": "tests/server/test_live_server.py",
    "rollouts.md": "tests/rollouts/test_page.py",
    "rollout_cluster.md": "tests/rollouts/test_page.py",
    "rollout_service.md": "tests/rollouts/test_page.py",
    "train_operator.md": "tests/rollouts/test_page.py",
    "server.md": "tests/server/test_documents.py",
}
"""Pages whose blocks other tests run, with the place."""
LONG = ("agents.md", "plan.md", "quickstart.md")
"""Pages that train and plan for minutes; the commands of the README do both in CI."""
ONE_TASK = "tasks/bursty_workload.md"
"""The page of a task that stands for those of all, which differ in the name of the task alone."""
EXTENDING = ("extend_agent.md", "extend_hardware.md", "extend_task.md")
PAGES = sorted(
    str(page.relative_to(DOCS))
    for page in DOCS.rglob("*.md")
    if page.name not in ELSEWHERE and any(block.language in LANGUAGES for block in blocks(page))
)
MAX_LINES = 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.deep]
            if name in LONG or (name.startswith("tasks/") and name != ONE_TASK)
            else [],
        )
        for name in PAGES
        if name not in EXTENDING
    ],
)
def test_blocks_run(name: str, tmp_path: Path) -> None:
    """From top to bottom in an empty folder."""
    assert run_page(DOCS / name, tmp_path)


@pytest.mark.slow
def test_a_task_from_its_page(tmp_path: Path) -> None:
    """The file on the page is a task that agents play."""
    printed = run_page(DOCS / "extend_task.md", tmp_path)
    assert "night_shift, 4 test episodes" in printed
    means = _rewards(printed, ("random", "default", "batch_512"))
    assert len(set(means.values())) == 3
    assert re.search(r"^reward -?\d\.\d{3}$", printed, re.MULTILINE)
    _check_length("extend_task.md", "night_shift.json")


@pytest.mark.slow
def test_hardware_from_its_page(tmp_path: Path) -> None:
    """The GPU and the load test on the page become tables that are played on."""
    printed = run_page(DOCS / "extend_hardware.md", tmp_path)
    assert "wrote my_gpu.parquet" in printed
    _check_length("extend_hardware.md", "my_gpu.json")
    assert "fit to 8 rows" in printed
    assert (tmp_path / "mine.parquet").is_file()
    assert set(_rewards(printed, ("default", "batch_512"))) == {"default", "batch_512"}


@pytest.mark.slow
def test_an_agent_from_its_page(tmp_path: Path) -> None:
    """The policy on the page plays and is scored beside the baselines, and adapting helps it."""
    printed = run_page(DOCS / "extend_agent.md", tmp_path)
    found = re.findall(r"^(\w+) +score (\d\.\d\d) \(", printed, re.MULTILINE)
    scores = {name: float(score) for name, score in found}
    assert list(scores) == ["default", "best_static", "step_by_step"]
    assert scores["default"] < scores["step_by_step"]
    _check_length("extend_agent.md", "my_agent.py")


def test_every_excuse_is_a_good_one() -> None:
    """Blocks that are not run say that they need a GPU or the network, and pages that are run
    elsewhere exist."""
    for page in DOCS.rglob("*.md"):
        list(blocks(page))
    assert all((DOCS / name).is_file() for name in ELSEWHERE)
    assert all((DOCS.parent / place).exists() for place in ELSEWHERE.values())


def _rewards(printed: str, names: tuple[str, ...]) -> dict[str, float]:
    """The reward in each of the rows that begin with a name, after the changes a minute."""
    return {
        name: float(found[1])
        for name in names
        if (found := re.search(rf"^ ?{name} +\S+ +(-?\d\.\d+)", printed, re.MULTILINE))
    }


def _check_length(page: str, file: str) -> None:
    (block,) = (block for block in blocks(DOCS / page) if block.file == file)
    assert len(block.code.splitlines()) < MAX_LINES
