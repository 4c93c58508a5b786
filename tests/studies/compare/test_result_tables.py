"""Results as tables and files: every number where it belongs, nothing lost on the way."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from jaxserve.errors import InputError
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.studies.compare.result_tables import gain, markdown, scores, summary, task_tables
from jaxserve.studies.compare.results import (
    PlayedEpisodes,
    TaskComparison,
    VariantPlays,
    from_data,
    to_data,
    to_json,
)
from tests.search_results import anchors_of

AGENTS = ("random", "default", "best_static", "heuristic", "planner", "regime_oracle", "ppo")
MEANS = dict(zip(AGENTS, (0.0, 0.3, 0.5, 0.55, 0.6, 0.75, 0.7), strict=True))
RUNS, EPISODES = 4, 6


def play(mean: float, runs: int = 1) -> PlayedEpisodes:
    """Episodes around a mean that differ, the same way for everybody; runs that do not."""
    episodes = np.linspace(-0.05, 0.05, EPISODES)
    objective = np.tile(mean + episodes, (runs, 1))
    requests = np.tile(np.linspace(10.0, 90.0, EPISODES), (runs, 1))
    # Half of the first tokens come within 100 ms and 99 % in 10 s.
    later = np.interp(TTFT_EDGES_S, [0.09, 0.1, 9.9, 10.0, 10.1], [1.0, 0.5, 0.5, 0.01, 0.0])
    return PlayedEpisodes(
        objective=objective,
        good=np.minimum(requests, 50.0),
        decided=requests,
        first_tokens=requests,
        ttft_exceeded=requests[..., None] * later,
        changes_per_minute=np.full((runs, EPISODES), 3.0),
    )


def result(task: str = "bursty_workload", ppo: float = 0.7) -> TaskComparison:
    """A comparison with numbers that are easy to follow: scores are 0, 0.5 and 1 at 0, 0.5, 0.9."""
    means = MEANS | {"ppo": ppo}
    plays = {name: play(mean, RUNS if name == "ppo" else 1) for name, mean in means.items()}
    elsewhere = {name: play(0.8 * means[name]) for name in ("default", "best_static", "heuristic")}
    elsewhere |= {"retuned_static": play(0.5), "ppo": play(0.45, RUNS)}
    return TaskComparison(
        about={"task": task, "seeds": list(range(RUNS)), "windows": 1_000_000, "episodes": 6},
        anchors=anchors_of(task, 0.0, 0.5, 0.9),
        plays=plays,
        variants=(
            VariantPlays("bursts x1.5", elsewhere),
            VariantPlays("recorded trace", {}, "no trace was named with --trace"),
        ),
        reference={"best_static": np.full((1, 3), 0.48), "ppo": np.full((RUNS, 3), 0.66)},
    )


def cells(text: str, title: str) -> dict[str, list[str]]:
    """Rows of the Markdown table behind a line, by their first cell."""
    lines = text[text.index(title) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *rest = [cell.strip() for cell in line.strip("|").split(" | ")]
        rows[first] = rest
    return rows


def test_scores_and_gains() -> None:
    """A mean reward half-way between best static and oracle scores 0.75."""
    assert scores([result()], "ppo").value == pytest.approx(0.75)
    assert scores([result()], "best_static").value == pytest.approx(0.5)
    found = gain(result().plays, "ppo")
    np.testing.assert_allclose(found, np.full((RUNS, EPISODES), 0.2))


def test_the_summary_comes_first() -> None:
    """A row for each task and one for all, the learnt policy's probability of winning last."""
    text = markdown([result(), result("static_workload", ppo=0.5)], "jaxserve compare all")
    rows = cells(text, "# Results")
    assert list(rows) == ["bursty_workload", "static_workload", "all tasks"]
    by_name = dict(zip(summary([result()]).header[1:], rows["bursty_workload"], strict=True))
    assert by_name["default"].startswith("0.30 (")
    assert by_name["regime oracle*"].startswith("0.81 (")
    assert by_name["ppo"].startswith("0.75 (")
    assert by_name["ppo beats best static"] == "1.00 (1.00 to 1.00)"
    assert rows["static_workload"][-1] == "0.50 (0.50 to 0.50)"
    # Of eight runs, four at 0.75 and four at 0.5, two go at each end.
    assert rows["all tasks"][-2].startswith("0.62 (")
    assert "`jaxserve compare all`" in text and "planner\\*" in text


def test_every_agent_has_a_row() -> None:
    """Score, reward, gain, wins, gap, SLO attainment, TTFT and changes in the task itself. SLO met
    and TTFT are over all requests, of which some episodes have more than others."""
    text = markdown([result()], "x")
    rows = cells(text, "test episodes:")
    assert len(rows) == len(AGENTS)
    score, reward, gained, won, gap, met, p50, p99, turned = rows["ppo"]
    assert score.startswith("0.75") and reward.startswith("0.700")
    assert gained == "+0.200 (+0.200 to +0.200)"
    assert won.startswith("1.00") and gap.startswith("0.25")
    # Of 10, 26, 42, 58, 74 and 90 requests at most 50 each.
    assert met.startswith(f"{100 * 228 / 300:.1f} (") and "76.0 to 76.0" not in met
    assert p50 == "100 (100 to 100)" and p99 == "10.00 (10.00 to 10.00)"
    assert turned == "3.0 (3.0 to 3.0)"
    assert rows["best static"][3] == "-"
    assert "4 training seeds of PPO with 1,000,000 windows each; 6 test episodes" in text


def test_transfer_is_a_gain_on_the_replayed_setting() -> None:
    """Against the best static setting of the task, in the same episodes; and who was left out."""
    text = markdown([result()], "x")
    rows = cells(text, "replayed there")
    assert rows["ppo"] == ["+0.200 (+0.200 to +0.200)", "+0.050 (+0.050 to +0.050)"]
    assert rows["retuned static"] == ["-", "+0.100 (+0.100 to +0.100)"]
    assert rows["mean reward of best static"][1].startswith("0.400")
    assert "Without recorded trace: no trace was named with --trace." in text


def test_the_reference_is_compared_on_its_own_episodes() -> None:
    """Its three episodes against the first three of the fast simulator."""
    rows = cells(markdown([result()], "x"), "both simulators, the first 3 test episodes")
    fast = 0.5 + 0.5 * (np.mean(result().plays["ppo"].objective[:, :3]) - 0.5) / 0.4
    assert rows["ppo"][0].startswith(f"{fast:.3f}")
    assert rows["ppo"][1] == "0.700 (0.700 to 0.700)"
    assert rows["ppo"][2].startswith(f"{0.7 - fast:+.3f}")
    less = 0.66 - np.mean(result().plays["ppo"].objective[:, :3])
    assert rows["ppo"][3].startswith(f"{less:+.3f}")


def test_nothing_to_transfer_to() -> None:
    """A task without such setups has no empty table."""
    alone = dataclasses.replace(result(), variants=(VariantPlays("bursts x2", {}, "it has none"),))
    assert [table.title.count("replayed") for table in task_tables(alone)] == [0, 0]


def test_the_terminal_shows_the_same() -> None:
    """No cell is cut off in 120 characters."""
    output = io.StringIO()
    console = Console(file=output, width=120)
    for table in (*task_tables(result()), summary([result("adversarial_multitenant")] * 2)):
        console.print(table.rich())
    text = output.getvalue()
    assert "…" not in text and "+0.200..+0.200" in text and "adversarial_multitenant" in text
    own = io.StringIO()
    Console(file=own, width=120).print(task_tables(result())[0].rich())
    for interval in ("0.72..0.78", "+0.200..+0.200", "-0.027..0.027", "64.5..95.7", "10.00..10.00"):
        assert interval in own.getvalue()


def test_results_survive_their_file() -> None:
    """All matrices and reasons come back as they were."""
    first = result()
    again = from_data(json.loads(json.dumps(to_data(first))), first.anchors)
    assert to_data(again) == to_data(first)
    np.testing.assert_array_equal(again.plays["ppo"].objective, first.plays["ppo"].objective)
    data = json.loads(to_json([first, first]))
    assert data["spec_version"] == 2 and len(data["tasks"]) == 2
    assert data["tasks"][0]["variants"][1]["reason"] == "no trace was named with --trace"


@pytest.mark.parametrize(
    "data", [{}, {"about": {}, "plays": {"ppo": [1]}}, {"about": {}, "plays": {"ppo": {"x": []}}}]
)
def test_other_files_are_refused(data: dict) -> None:
    """One sentence instead of a traceback."""
    with pytest.raises(InputError, match="results are not those of this version"):
        from_data(data, result().anchors)
