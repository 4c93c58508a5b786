"""Tables of a study, for the terminal and for docs/live_results.md."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from jaxserve.evaluation.episode_statistics import Interval
from jaxserve.show.text_table import TextTable
from jaxserve.studies.live.plan import AGENTS
from jaxserve.studies.live.results import (
    BAR,
    FEWEST_STEERED,
    SIMULATORS,
    AgentResult,
    ServerResult,
    orders,
)

_COLUMNS = (
    ("goodput req/s", "goodput_rps", 1.0),
    ("SLO met %", "slo_attainment", 100.0),
    ("mean TTFT ms", "ttft_mean_s", 1000.0),
    ("mean ITL ms", "itl_mean_s", 1000.0),
)
"""Title, figure and factor."""
_TITLE = "# Live results\n"
_HEAD = f"""{_TITLE}
Written by `jaxserve live-study`; nothing here is typed in. The comparison and its method:
[live](live.md#study). Rows of the simulators are predictions for the very same requests, with the
error of their mean.
"""
_SECTION = "\n## "


def server_table(result: ServerResult) -> TextTable:
    """Measured figures of every agent, each followed by the simulators' predictions."""
    rows = []
    for each in result.agents:
        cells = [_measured(each.interval(name), factor) for _, name, factor in _COLUMNS]
        rows.append((each.agent, *cells))
        for simulator in SIMULATORS:
            told = [_predicted(each, name, factor, simulator) for _, name, factor in _COLUMNS]
            rows.append((f"- {simulator} simulator", *told))
    return TextTable(
        title=result.title,
        header=("agent", *(title for title, _, _ in _COLUMNS)),
        rows=tuple(rows),
        caption=f"mean over {result.repeats} episodes and its 95 % interval, in the GPU's time",
    )


def sentences(result: ServerResult) -> list[str]:
    """Sentences on the findings, each with its figure."""
    gain = result.gain("ppo", "best_static")
    verdict = "above" if result.repeats > 1 and gain.low > 0 else "not clearly above"
    found = []
    if result.least_steered < FEWEST_STEERED:
        found.append(
            f"This run says nothing of its agents: the worst was in force in "
            f"{result.least_steered:.0%} of its windows, and best static in the others, after a "
            f"fault; {FEWEST_STEERED:.0%} are needed. The machine was too busy, or time must be "
            "dilated more."
        )
    found += [
        f"Goodput of PPO {verdict} best static: {_measured(gain, 1.0, '+')} requests/s, paired by "
        f"episode.{_own_intervals(result)}"
    ]
    for simulator in SIMULATORS:
        agent, figure, error = result.worst_error(simulator)
        bar = "within" if abs(error) <= BAR else "beyond"
        pairs = result.pairs(simulator)
        told_apart, alike = orders(pairs)
        found.append(
            f"The {simulator} simulator is {bar} {BAR:.0%} of goodput, mean TTFT and mean ITL: "
            f"farthest off is {figure} of {agent}, {error:+.1%}. Of the {len(pairs)} pairs of the "
            f"{len(AGENTS)} agents the real engine tells {told_apart} apart, and the simulator "
            f"orders {alike} of these alike."
        )
    played = result.agents
    found.append(
        f"Agents were in force in {result.least_steered:.0%} of the windows or "
        f"more; {sum(each.errors for each in played)} requests ended with an error; requests were "
        f"sent at most {1000 * max(each.late_s for each in played):.0f} ms late (99th percentile, "
        "the host's time)."
    )
    return [*found, *result.notes, *result.calibration]


def _own_intervals(result: ServerResult) -> str:
    """Sentence on the agents' own intervals, which may overlap although paired episodes differ."""
    if result.repeats < 2:
        return ""
    ppo, static = (result.of(agent).interval("goodput_rps") for agent in ("ppo", "best_static"))
    overlap = ppo.low <= static.high and static.low <= ppo.high
    return f" Their own intervals over episodes {'overlap' if overlap else 'are apart'}."


def markdown(results: Sequence[ServerResult], command: str, earlier: str = "") -> str:
    """The Markdown page. A server takes hours, so that separate commands may play the servers.

    Args:
      results: results of each server.
      command: command that played ``results``.
      earlier: the existing page, whose sections on other servers are kept.
    """
    kept = earlier.split(_SECTION)[1:] if earlier.startswith(_TITLE) else []
    sections = dict(_titled(section) for section in kept)
    for result in results:
        table = server_table(result)
        said = (*sentences(result), f"Played by `{command}`.")
        lines = "".join(f"- {sentence}\n" for sentence in said)
        sections[result.title] = f"\n{table.markdown()}\n{table.caption}.\n\n{lines}"
    return _HEAD + "".join(f"{_SECTION}{title}\n{text}" for title, text in sections.items())


def _titled(section: str) -> tuple[str, str]:
    """Title and text of a section."""
    title, _, text = section.partition("\n")
    return title, f"{text.rstrip()}\n"


def command_text(study: Path | None, server: str, repeats: int | None) -> str:
    """The command that writes the page, without the caller's paths."""
    options = {"--study": study, "--server": None if server == "all" else server}
    options |= {"--repeats": repeats}
    given = [f"{k} {shlex.quote(str(v))}" for k, v in options.items() if v is not None]
    return " ".join(["jaxserve live-study --directory DIR --vllm ENVIRONMENT", *given])


def _measured(found: Interval, factor: float, sign: str = "") -> str:
    mean, low, high = (factor * end for end in (found.mean, found.low, found.high))
    digits = _digits(mean)
    return f"{mean:{sign}.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _predicted(result: AgentResult, name: str, factor: float, simulator: str) -> str:
    value = factor * float(result.column(name, simulator).mean())
    return f"{value:.{_digits(value)}f} [{result.error(name, simulator):+.1%}]"


def _digits(value: float) -> int:
    """Number of decimals for three significant digits."""
    if not math.isfinite(value) or value == 0:
        return 1
    return max(0, 2 - math.floor(math.log10(abs(value))))
