"""What a study concludes follows from the figures, and from nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.live.figures import Figures
from jaxserve.studies.live.pages import markdown, sentences, server_table
from jaxserve.studies.live.plan import AGENTS
from jaxserve.studies.live.results import AgentResult, ServerResult, orders

GOODPUT: dict[str, float] = {"default": 10.0, "best_static": 11.0, "heuristic": 10.5, "ppo": 13.0}
SPREAD = (-0.2, 0.1, 0.0, 0.15, -0.05)


def figures(goodput: float) -> Figures:
    return Figures(goodput, goodput / 20, 0.25, 0.01)


def result(measured: dict[str, float], predicted: dict[str, float]) -> ServerResult:
    agents = []
    for agent in AGENTS:
        told = tuple(figures(predicted[agent] + each) for each in SPREAD)
        agents.append(
            AgentResult(
                agent=agent,
                measured=tuple(figures(measured[agent] + each) for each in SPREAD),
                predicted={"fast": told, "reference": told},
                steered=1.0,
                errors=0,
                late_s=0.002,
            )
        )
    return ServerResult("h100", "llama on h100", 6.0, 5, tuple(agents), (), ("Engine: one.",))


def test_a_study_that_holds() -> None:
    """Every bar is met, and the page says so with the figures."""
    found = result(GOODPUT, GOODPUT)
    gain = found.gain("ppo", "best_static")
    assert gain.mean == pytest.approx(2.0) and gain.low > 0
    assert orders(found.pairs("fast")) == (6, 6)
    assert found.worst_error("reference")[2] == pytest.approx(0.0)
    first, *others = sentences(found)
    assert first.startswith("Goodput of PPO above best static: +2.00 (2.00 to 2.00)")
    assert first.endswith("Their own intervals over episodes are apart.")
    assert "within 10% of goodput" in others[0] and "tells 6 apart" in others[0]
    page = markdown([found], "jaxserve live-study")
    assert "| ppo | 13.0 (12.9 to 13.1) |" in page
    assert "| - fast simulator | 13.0 [+0.0%] |" in page
    assert len(server_table(found).rows) == 3 * len(AGENTS)


def test_sections_of_other_servers_are_kept() -> None:
    """Each server is played by a command of its own; what is played again replaces its section."""
    first = result(GOODPUT, GOODPUT)
    second = dataclasses.replace(first, server="a100", title="llama on a100")
    page = markdown([second], "jaxserve two", markdown([first], "jaxserve one"))
    assert page.index("## llama on h100") < page.index("## llama on a100")
    assert markdown([first, second], "jaxserve two").count("| ppo |") == page.count("| ppo |") == 2
    for command in ("one", "two"):
        assert page.count(f"Played by `jaxserve {command}`") == 1
    assert markdown([second], "jaxserve two", page) == page
    again = markdown([result(GOODPUT | {"ppo": 14.0}, GOODPUT)], "jaxserve three", page)
    assert again.count("| ppo | 14.0") == 1 and again.count("| ppo | 13.0") == 1
    assert "jaxserve one" not in again and again.count("# Live results") == 1
    assert "Something" not in markdown([first], "jaxserve one", "# Something\n\n## Else\n\ntext\n")


def test_a_study_that_does_not() -> None:
    """A wrong order and a wrong figure are said, with how far off they are."""
    found = result(GOODPUT | {"ppo": 10.8}, GOODPUT | {"default": 12.0})
    assert orders(found.pairs("fast")) == (6, 3)
    said = " ".join(sentences(found))
    assert "PPO not clearly above best static" in said
    assert "Their own intervals over episodes overlap." in said
    assert "beyond 10% of goodput" in said
    assert "farthest off is goodput_rps of ppo, +20.4%" in said


def test_what_says_nothing() -> None:
    """A single episode decides no pair, and a run whose agents were seldom in force says so."""
    found = result(GOODPUT, GOODPUT)
    agents = tuple(
        dataclasses.replace(
            each,
            steered=0.4,
            measured=each.measured[:1],
            predicted={name: told[:1] for name, told in each.predicted.items()},
        )
        for each in found.agents
    )
    once = dataclasses.replace(found, agents=agents, repeats=1)
    assert orders(once.pairs("fast")) == (0, 0)
    first, second, *_ = sentences(once)
    assert first.startswith("This run says nothing of its agents: the worst was in force in 40%")
    assert second.startswith("Goodput of PPO not clearly above")
    assert "intervals" not in second


def test_nothing_measured() -> None:
    """No error of prediction is made up where the engine served nobody well."""
    flat = dict.fromkeys(AGENTS, 0.2) | {"ppo": 1.0}
    measured = {agent: tuple(figures(0.0) for _ in SPREAD) for agent in AGENTS}
    found = result(flat, flat)
    agents = tuple(
        dataclasses.replace(each, measured=measured[each.agent]) for each in found.agents
    )
    none = dataclasses.replace(found, agents=agents)
    assert none.worst_error("fast")[2] == float("inf")
    assert orders(none.pairs("fast"))[0] == 0


@given(st.lists(st.floats(1.0, 20.0), min_size=4, max_size=4))
def test_a_pair_is_judged_by_sign(goodput: list[float]) -> None:
    """A simulator that is right orders all pairs that the engine tells apart, whatever they are."""
    named: dict[str, float] = dict(zip(AGENTS, goodput, strict=True))
    found = result(named, named)
    decided, alike = orders(found.pairs("reference"))
    assert decided == alike
    for pair in found.pairs("reference"):
        assert pair.measured.mean == pytest.approx(named[pair.first] - named[pair.second], abs=1e-9)
