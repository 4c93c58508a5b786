"""A page for each built-in task, and the table of all, from the task files and their anchors."""

from __future__ import annotations

import dataclasses

from docs_pages.markdown import code, number, table
from jaxserve.fields import Tier
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.traffic.lengths import LengthDistribution
from jaxserve.sim.traffic.traces import load_trace
from jaxserve.spaces import KNOB_FIELDS
from jaxserve.tasks.anchors import anchors_score, load_anchors
from jaxserve.tasks.replay import replay_spec, trace_path
from jaxserve.tasks.spec import Regime, Stream, TaskSpec, load_task, task_names

_PAGE = """\
# {title}

<!-- Written by scripts/generate_docs.py from {name}.json in data/tasks and data/anchors. -->

{description}

```sh
jaxserve evaluate --task {name} --agent default,best_static,heuristic --episodes 4
```

In Python: `jaxserve.make("{name}")`. Terms are explained in [Concepts](../concepts.md).

## Deployment

{deployment}

## Knobs

{knobs}

## Requests

{streams}

## Traffic

{traffic}

{regimes}

## Reward

{reward}

## Score

{score}
"""


def task_pages() -> dict[str, str]:
    """The text of each page by its path below ``docs``."""
    return {f"tasks/{name}.md": _page(load_task(name)) for name in task_names()}


def task_table() -> str:
    """One task a row."""
    rows = []
    for name in task_names():
        spec = load_task(name)
        alias = "" if spec.alias is None else f" ({spec.alias})"
        rows.append(
            [
                f"[`{name}`](tasks/{name}.md){alias}",
                spec.difficulty,
                spec.deployment.gpus_text(spec.hardware),
                f"{len(spec.knobs)}",
                spec.description,
            ]
        )
    return table(["task (alias)", "difficulty", "deployment", "open knobs", "traffic"], rows)


def task_list() -> str:
    """Entries of the table of contents."""
    return "\n".join(["```{toctree}", ":hidden:", "", *(f"tasks/{n}" for n in task_names()), "```"])


def _page(spec: TaskSpec) -> str:
    shown = spec
    if spec.trace is not None:
        shown, _ = replay_spec(spec, load_trace(trace_path(spec.trace)))
    return _PAGE.format(
        title=spec.title,
        name=spec.name,
        description=spec.description,
        deployment=_deployment(spec),
        knobs=_knobs(spec),
        streams=_streams(shown.streams),
        traffic=_traffic(spec),
        regimes=_regimes(shown),
        reward=_reward(spec),
        score=_score(spec),
    )


def _deployment(spec: TaskSpec) -> str:
    settings = dataclasses.asdict(spec.deployment)
    fleet = spec.deployment.fleet
    del settings["fleet"]
    file = read_table_file(f"{spec.model}__{spec.hardware}")
    settings["token_budget"] = settings["token_budget"] or file.metadata.token_budget
    numbers = {name: value for name, value in settings.items() if value}
    rows = [
        ["model", spec.model],
        ["GPU", spec.hardware],
        *([code(name), number(value)] for name, value in numbers.items()),
        ["windows in an episode", number(spec.horizon)],
        ["window", f"{number(spec.window_s)} s, {spec.ticks} scheduler ticks"],
    ]
    if fleet is not None:
        rows += [
            ["start-up of a replica", f"{_span(fleet.start_s)} s, paid from the request"],
            ["draining", f"at most {number(fleet.drain_s)} s, then its sequences are preempted"],
        ]
    if spec.randomisation:
        rows.append(["hardware speed", f"log-uniform, half-width {number(spec.randomisation)}"])
    return table(["deployment", "value"], rows)


def _knobs(spec: TaskSpec) -> str:
    rows = []
    for name, knob in KNOB_FIELDS.items():
        high = knob.highest(spec.deployment.num_gpus)
        allowed = f"{number(knob.bound.low)} to {number(high)}"
        is_open = name in spec.knobs
        rows.append([code(name), allowed if is_open else f"locked at {spec.locked[name]:g}"])
    return table(["knob", "values"], rows)


def _streams(streams: tuple[Stream, ...]) -> str:
    headings = [
        "stream",
        "prompt tokens: mean (p50, p99)",
        "output tokens: mean (p50, p99)",
        "TTFT SLO, s",
        "TPOT SLO, ms",
        "priority",
        "value",
        f"quality at {' / '.join(Tier.__members__)}",
        "draft acceptance",
    ]
    rows = [
        [
            code(stream.name),
            _lengths(stream.prompt),
            _lengths(stream.output),
            number(stream.ttft_slo_s) + (" (may wait)" if stream.deferrable else ""),
            number(1000.0 * stream.tpot_slo_s),
            number(stream.priority),
            number(stream.value),
            " / ".join(map(number, stream.quality)),
            code(stream.acceptance),
        ]
        for stream in streams
    ]
    return table(headings, rows)


def _lengths(lengths: LengthDistribution) -> str:
    median, tail = (number(round(float(lengths.quantile(p)))) for p in (0.5, 0.99))
    return f"{number(round(lengths.mean()))} ({median}, {tail})"


def _traffic(spec: TaskSpec) -> str:
    if spec.trace is not None:
        return (
            f"Arrivals and lengths of the packaged trace `{spec.trace}`, cut into the streams "
            "above by prompt length; `--trace` replays another one."
        )
    if spec.demand is not None:
        followed = ", ".join(
            f"`{stream}` its stream `{other}`" for stream, other in spec.demand.streams.items()
        )
        return (
            f"Rates follow the hours of the day, drift and burst as `data/demand/{spec.demand.name}"
            f".json` has it: {followed}. An episode begins at any time of the day."
        )
    if len(spec.regimes) == 1:
        return "One regime for the whole episode."
    return (
        "The regimes follow each other in an order that each episode draws; which one is in force "
        "is not shown to the agent."
    )


def _regimes(spec: TaskSpec) -> str:
    headings = [
        "regime",
        "requests/s",
        "streams",
        "lasts, s",
        "burst factor",
        "bursts begin / end, per s",
        "rate cycle",
        "acceptance scale",
    ]
    rows = []
    for regime in spec.regimes:
        bursts = regime.burst_start_per_s > 0.0
        rows.append(
            [
                code(regime.name),
                number(regime.rate_rps),
                ", ".join(f"{name} {share:.0%}" for name, share in regime.mix.items()),
                _span(regime.dwell_s) if len(spec.regimes) > 1 else "all",
                _span(regime.burst_multiplier) if bursts else "none",
                f"{number(regime.burst_start_per_s)} / {number(regime.burst_stop_per_s)}"
                if bursts
                else "",
                _cycle(spec, regime),
                number(regime.acceptance_scale),
            ]
        )
    return table(headings, rows)


def _cycle(spec: TaskSpec, regime: Regime) -> str:
    if not regime.cycle_amplitude:
        return "none"
    return f"±{regime.cycle_amplitude:.0%} every {number(spec.cycle_period_s)} s"


def _span(pair: tuple[float, float]) -> str:
    low, high = pair
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _reward(spec: TaskSpec) -> str:
    rows = [
        [code(name), number(value)] for name, value in dataclasses.asdict(spec.objective).items()
    ]
    return table(["weight or limit", "value"], rows)


def _score(spec: TaskSpec) -> str:
    anchors = load_anchors(spec)
    rows = [
        ["0", "random knobs in every window", f"{anchors.random:.4f}"],
        ["0.5", "the best setting that never changes", f"{anchors.best_static:.4f}"],
        ["1", anchors.top_text(), f"{anchors.oracle:.4f}"],
    ]
    rule = anchors.best_rule_setting
    if anchors.best_rule is not None and rule is not None:
        score = anchors_score(anchors, anchors.best_rule)
        values = ", ".join(f"{name} {value:g}" for name, value in rule["values"].items())
        tuned = f"the best autoscaling rule, tuned on training seeds: `{rule['kind']}` ({values})"
        rows.insert(2, [f"{score:.2f}", tuned, f"{anchors.best_rule:.4f}"])
    action = {
        knob: value for knob, value in anchors.best_static_action.items() if knob in spec.knobs
    }
    setting = ", ".join(f"`{knob}` {value:g}" for knob, value in action.items())
    return "\n".join(
        [
            f"Task version {spec.version}; computed by `{anchors.provenance['command']}`.",
            "",
            table(["score", "agent", "mean reward per window"], rows),
            "",
            f"The best static setting: {setting}.",
        ]
    )
