"""Tables are readable: every agent, every number, nothing cut off."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from jaxserve.agents.open_loop import StaticPolicy, noop_policy
from jaxserve.agents.search import Contender, StaticSearch
from jaxserve.agents.task_setup import load_setup
from jaxserve.evaluation.episode_statistics import EpisodeSums, Interval, statistics_of
from jaxserve.evaluation.held_out import Evaluation, Evaluations
from jaxserve.learning.training import TrainingResult
from jaxserve.show.report import (
    adapting_texts,
    evaluation_markdown,
    evaluation_table,
    fit_report_table,
    kernel_report_table,
    search_table,
    tail_table,
    task_table,
    training_table,
)
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.fit.extrapolation import Extrapolation
from jaxserve.sim.fit.kernel_table import IterationErrors, KernelFit, KernelReport
from jaxserve.sim.fit.load_test import FitReport, FittedConstant
from jaxserve.sim.table.file import read_table_file
from jaxserve.spaces import make_action
from jaxserve.tasks.spec import load_task, task_names
from tests.search_results import anchors_of

ANCHORS = anchors_of("static_workload", 0.0, 1.0, 2.0)


def printed(table: Table, width: int) -> str:
    """What the terminal shows."""
    output = io.StringIO()
    Console(file=output, width=width).print(table)
    return output.getvalue()


def sums(**columns: float) -> EpisodeSums:
    """Two episodes with 0.5 and 1.5 times the sums given (1 by default), but as many windows,
    seconds and requests with a known fate; half of the first tokens come within 100 ms and 99 % in
    10 s."""
    spread = np.array([0.5, 1.5])
    values = {name: spread * columns.get(name, 1.0) for name in EpisodeSums.__dataclass_fields__}
    values |= {name: np.ones(2) for name in ("episodes", "windows", "seconds")}
    values |= {"good": values["good"][:, None]}
    values |= {name: np.full((2, 1), columns.get(name, 1.0)) for name in ("arrivals", "decided")}
    values["first_tokens"] = np.full(2, columns.get("first_tokens", 100.0))
    later = np.interp(TTFT_EDGES_S, [0.09, 0.1, 9.9, 10.0, 10.1], [1.0, 0.5, 0.5, 0.01, 0.0])
    values["ttft_exceeded"] = np.outer(values["first_tokens"], later)
    return EpisodeSums(**values)


def compared(score: bool = False, **columns: float) -> Evaluations:
    """Two episodes of one agent with the sums given."""
    setup = dataclasses.replace(load_setup("static_workload"), note=None, anchors=None)
    statistics = statistics_of(sums(**columns))
    evaluation = Evaluation(noop_policy(), statistics, ANCHORS if score else None)
    return Evaluations(setup, "test", 2, {"default": evaluation})


def several(agents: Evaluations) -> Evaluations:
    """The same on a task with two streams, the first of which has the six classes that fare
    better."""
    kinds = {"chat": slice(0, 6), "voice": slice(6, 7)}
    setup = dataclasses.replace(agents.setup, kinds=kinds)
    found = agents.agents["default"]
    by_class = dataclasses.replace(
        found.statistics.sums,
        good=np.tile([1.0] * 6 + [0.25], (2, 1)),
        decided=np.ones((2, 7)),
        arrivals=np.ones((2, 7)),
    )
    found = dataclasses.replace(found, statistics=statistics_of(by_class))
    return dataclasses.replace(agents, setup=setup, agents={"default": found})


def test_units() -> None:
    """Shares are percent, latencies ms or s by their size, prices per million tokens, an hour and a
    month of 730 hours."""
    found = compared(
        reward=0.8, good=0.6, arrivals=1.25, token_s=0.02, cost_usd=4e-4, good_tokens=1e3
    )
    text = printed(evaluation_table(found).rich(), 100)
    for cell in ("0.80", "60.0", "100 ms", "static_workload, 2 test episodes", "0.40..1.20"):
        assert cell in text
    assert "…" not in text and "score" not in text
    text = printed(tail_table(found).rich(), 100)
    for cell in ("10.0 s", "20.0 ms", "0.40", "1.4", "1051", "static_workload, tail and cost"):
        assert cell in text
    assert "…" not in text


def test_the_tail() -> None:
    """The worst episode is named as what it is, hours where there are two of them; what is
    undecided stands beside what was met."""
    found = compared(good=0.6, arrivals=1.25)
    table = tail_table(found)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["TTFT p99"] == row["TTFT p99, worst episode"] == "10.0 s"
    assert (row["SLO met %, worst episode"], row["undecided %"]) == ("30.0", "20.0")
    long = dataclasses.replace(found.agents["default"].statistics.sums, seconds=np.full(2, 3600.0))
    evaluation = dataclasses.replace(found.agents["default"], statistics=statistics_of(long))
    hours = tail_table(dataclasses.replace(found, agents={"default": evaluation}))
    assert "TTFT p99, worst hour" in hours.header
    free = tail_table(compared(good_tokens=0.0))
    assert free.rows[0][free.header.index("USD / 1M good tok.")] == "-"


def test_waits_that_are_not_resolved() -> None:
    """A TTFT beyond the oldest age of a waiting line is said to be longer, without a figure; the
    caption names what has no such limit."""
    found = compared()
    assert found.longest_ttft_s == 64.0
    assert "longer and no more" not in tail_table(found).caption
    slow = dataclasses.replace(
        found.agents["default"].statistics.sums, ttft_exceeded=np.full((2, len(TTFT_EDGES_S)), 90.0)
    )
    evaluation = dataclasses.replace(found.agents["default"], statistics=statistics_of(slow))
    over = dataclasses.replace(found, agents={"default": evaluation})
    table, tail = evaluation_table(over), tail_table(over)
    assert table.rows[0][table.header.index("TTFT p50")] == "> 64 s"
    assert tail.rows[0][tail.header.index("TTFT p99")] == "> 64 s"
    assert tail.rows[0][tail.header.index("TTFT p99, worst episode")] == "> 64 s"
    assert "TTFT beyond 64 s is known to be longer and no more" in tail.caption


def test_the_worst_class() -> None:
    """By its name, where there is more than one kind of requests."""
    found = compared(score=True)
    assert not any("worst class" in heading for heading in evaluation_table(found).header)
    table = evaluation_table(several(found))
    assert table.header[-1] == "SLO met %, worst class" and table.rows[0][-1] == "25.0 (voice)"


def test_changes_stand_beside_the_score() -> None:
    """In knobs a minute, with two digits."""
    table = evaluation_table(compared(score=True, changes=0.7))
    assert table.header[1:3] == ("score", "changes / min")
    assert table.rows[0][2] == "42 (21 to 63)"


def test_full_tables_fit_a_hundred_characters() -> None:
    """No number and no interval of theirs is cut or broken."""
    found = several(compared(score=True, reward=0.8, token_s=0.02, cost_usd=4e-4, changes=4.5))
    static = dataclasses.replace(
        found.agents["default"], policy=StaticPolicy(make_action(batch_cap=96))
    )
    both = dataclasses.replace(found, agents={**found.agents, "best_static": static})
    for table in (evaluation_table(both), tail_table(both)):
        text = printed(table.rich(), 100)
        for row in table.rows:
            for cell in row:
                for part in cell.removesuffix(")").replace(" to ", "..").split(" ("):
                    assert part in text


def test_scores() -> None:
    """With anchors the score comes first."""
    text = printed(evaluation_table(compared(score=True)).rich(), 100)
    assert "score" in text and "0.50" in text and "0.25..0.75" in text


def test_gain() -> None:
    """Beside the reward, with the setting that it is above, in 120 characters."""
    found = compared(score=True, reward=0.8, good=0.6)
    other = compared(score=True, good=0.6).agents["default"]
    static = dataclasses.replace(other, policy=StaticPolicy(make_action(batch_cap=96)))
    both = dataclasses.replace(found, agents={**found.agents, "best_static": static})
    text = printed(evaluation_table(both).rich(), 120)
    assert "gain" in text and "-0.20" in text and "-0.30..-0.10" in text
    assert "best_static is batch_cap 96, kv_budget_fraction 1, by the search above" in text
    assert "gain" not in printed(evaluation_table(found).rich(), 120)


def test_adapting_that_gains_nothing_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller whose gain may be nothing gets a sentence, one that gains gets none."""
    found = compared(reward=0.8)
    level, better = found.agents["default"], compared(reward=0.9).agents["default"]
    agents = {"best_static": level, "heuristic": level, "ppo": better}
    (text,) = adapting_texts(dataclasses.replace(found, agents=agents))
    assert text.startswith("adapting gains nothing here: heuristic +0.0000")
    # Two episodes of which one speaks for adapting: nobody knows.
    doubtful = (Interval(0.01, -0.02, 0.04), Interval(0.001, 0.0, 0.0015))
    for gain, said in zip(doubtful, ("is not known: ppo", "gains nothing here: ppo"), strict=True):
        of_ppo = {"ppo": gain}
        monkeypatch.setattr("jaxserve.evaluation.held_out.gains", lambda _, of_ppo=of_ppo: of_ppo)
        assert said in adapting_texts(found)[0]


def test_a_search_shows_how_far_settings_are_apart() -> None:
    """The best setting first, differences with intervals, slower and faster hardware, and which
    settings are equal in words."""
    setup = load_setup("static_workload")
    best, near, far = (np.array([cap, 10, 0, 0, 0, 0, 0], np.int32) for cap in (15, 14, 3))
    found = StaticSearch(
        best,
        (
            Contender(best, 0.5, (0.0, 0.0, 0.0), slower=0.0, faster=0.0, equal=True),
            Contender(near, 0.501, (0.001, -0.001, 0.003), slower=-0.002, faster=0.0, equal=True),
            Contender(far, 0.2, (-0.3, -0.4, -0.2), slower=-0.45, faster=-0.15, equal=False),
        ),
        episodes=64,
        doubt=0.1,
        resolved=False,
        exhausted=True,
    )
    table = search_table(setup, found)
    assert table.header[:3] == ("", "batch cap", "KV budget")
    assert table.header[5:] == ("10 % slower", "10 % faster")
    rows = [("best", "512", "1"), ("equal", "384", "1"), ("worse", "8", "1")]
    assert [row[:3] for row in table.rows] == rows
    text = printed(table.rich(), 120)
    for part in ("64 training episodes", "-0.4500", "+0.0010", "equal", "worse"):
        assert part in text
    assert "batch_cap 384 to 512 are equal here" in text
    assert "not further apart" in text
    exact = dataclasses.replace(found, doubt=0.0, resolved=True)
    table = search_table(setup, exact)
    assert len(table.header) == 5 and "further apart" not in str(table.caption)


def test_markdown() -> None:
    """Every task has its title, its table with intervals in one line, and its note."""
    table = evaluation_table(compared(score=True))
    text = evaluation_markdown([table, table])
    assert text.count("## static_workload, 2 test episodes\n\n| agent | score |") == 2
    assert "| 0.50 (0.25 to 0.75) |" in text
    assert text.count("95 % interval") == 2


def test_missing_values() -> None:
    """A statistic that no episode has is a dash."""
    found = compared(first_tokens=0.0, decided=0.0, good=0.0)
    table, tail = evaluation_table(found), tail_table(found)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["TTFT p50"] == row["SLO met %"] == "-"
    row = dict(zip(tail.header, tail.rows[0], strict=True))
    assert row["TTFT p99"] == row["TTFT p99, worst episode"] == "-"
    assert row["SLO met %, worst episode"] == "-"


def test_note_is_printed() -> None:
    """Why there are no scores is said below the table."""
    found = compared()
    noted = dataclasses.replace(found.setup, note="no scores, because of this")
    text = printed(evaluation_table(dataclasses.replace(found, setup=noted)).rich(), 110)
    assert "no scores, because of this" in text


def test_tasks_fit_the_terminal() -> None:
    """Every task, with its knobs, at 80 characters."""
    text = printed(task_table([load_task(name) for name in task_names()]), 80)
    assert "…" not in text
    for name in task_names():
        assert name in text
        for knob in load_task(name).knobs:
            assert knob in text


def test_tables_do_not_wait_for_the_trainer() -> None:
    """Printing one imports neither optimisers nor checkpoints nor statistics."""
    code = "import jaxserve.show.report, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"orbax.checkpoint", "optax", "scipy.stats"} & set(loaded)


def test_training() -> None:
    """A run shows each seed's reward, on how many episodes, and its score where there is one."""
    setup = load_setup("static_workload")
    assert setup.anchors is not None
    static = setup.anchors.best_static
    result = TrainingResult(Path(), (3, 4), (static, 0.25), 17, 0, compile_s=1.0, train_s=1.0)
    text = " ".join(printed(training_table(result, setup), 80).split())
    assert "17 validation episodes" in text and "0.2500" in text and "0.500" in text
    alone = printed(training_table(result, dataclasses.replace(setup, anchors=None)), 80)
    assert "0.2500" in alone and "score" not in alone


def test_fit() -> None:
    """A fit shows each factor, what is known of it, and the errors."""
    report = FitReport(
        rows=30,
        constants=(
            FittedConstant("weight streaming", 1.234, 0.97, False),
            FittedConstant("host time", 0.5, 0.1, True),
        ),
        tpot_error=0.0123,
        ttft_error=None,
        held_out_tpot_error=0.021,
        held_out_ttft_error=None,
        extrapolations=(Extrapolation("requests in flight", 16.0, 64.0, 0.08, -0.18),),
        single_lengths={"prompts": 512.0},
        prior_tpot_error=0.2,
        worst_row=(7, -0.055),
        table=read_table_file("llama-3.1-8b__h100-sxm-80gb"),
    )
    text = " ".join(printed(fit_report_table(report), 80).split())
    for part in ("fit to 30 rows", "1.23", "97 %", "(at its limit)", "1.2 %", "not measured"):
        assert part in text
    assert "worst is row 7, TPOT -5.5 %" in text
    assert "from 16 to 64 requests in flight 8.0 % (worst -18.0 %)" in text
    assert "all prompts have 512 tokens, beyond which nothing is known" in text


def test_fit_to_kernels() -> None:
    """Errors by kind of kernel, of whole iterations, and what was not measured."""
    edge = Extrapolation("sequences", 64.0, 512.0, 0.161, -0.289)
    report = KernelReport(
        fits=(KernelFit("decode", 137, 0.074, 0.078, 0.347, (edge,)),),
        kept=("elementwise", "head"),
        iterations=IterationErrors(200, 0.055, 0.063, -0.171),
        table=read_table_file("llama-3.1-8b__h100-sxm-80gb"),
        left_out={"fp8": 1200, "int8_wo": 34},
    )
    text = " ".join(printed(kernel_report_table(report), 110).split())
    assert (
        "decode attention 137 7.4 % 7.8 % from 64 to 512 sequences 16.1 % (worst -28.9 %)" in text
    )
    assert "200 whole iterations are 5.5 % off (worst -17.1 %), of prompts and decodes" in text
    assert "together 6.3 %" in text
    assert "host time (0.5 ms an iteration), elementwise kernels, output head" in text
    assert "1,234 rows in other formats were left out (fp8 1,200, int8_wo 34): INT8" in text
    without = dataclasses.replace(report, iterations=None, kept=(), left_out={})
    text = " ".join(printed(kernel_report_table(without), 110).split())
    assert "whole iterations" not in text and "output head" not in text
    assert "other formats" not in text
