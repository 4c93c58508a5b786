"""``python -m benchmarks.plan_doubt``: whether plans are as sure as they may be, and right.

Every scenario has hidden constants: GPUs whose times are not those of their data sheets, each
constant by a factor of its own. A load test of each kind of GPU, played on the reference simulator
with the hidden constants, with scatter, is all that the plan sees of them. The truth is the
reference simulator with the hidden constants on the traffic of the plan: the attainment of the
deployment that was named, and the cheapest deployment of a search that knows the constants.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.page import page_parser, publish
from jaxserve.plan.as_played import played
from jaxserve.plan.attainment import interval
from jaxserve.plan.inputs import PlanInputs, PlanObjective, gpu_prices
from jaxserve.plan.load_tests import measured_options
from jaxserve.plan.options import EngineOption, engine_options
from jaxserve.plan.play import PlannedDeployment, Play, Player
from jaxserve.plan.search import search
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.traffic.traces import Trace

NEAR = 1.10
"""Times the price of the cheapest true deployment that the named one may cost."""
_FACTORS = {
    "weight_read_s": 0.12,
    "linear_s_per_token": 0.15,
    "host_s": 0.3,
    "elementwise_s_per_token": 0.3,
    "kv_read_s_per_token": 0.15,
    "attention_s_per_sequence": 0.2,
    "prefill_s_per_pair": 0.2,
    "head_read_s": 0.12,
}
"""Standard deviation of the logarithm of each hidden factor."""
_LAYOUT = 0.03
"""The same of the factor on all times of each layout, beside those of its kind of GPU."""
_SCATTER = 0.01
_PROMPTS, _LEVELS, _OUTPUT = (256, 1024, 3072), (1, 4, 16, 64), 128
_BUDGET = 2048
_DURATION_S = 200.0


@dataclass(frozen=True)
class Scenario:
    """Traffic, objectives and GPUs to choose from."""

    name: str
    """description of the traffic."""
    model: str
    """model that is served."""
    hardware: tuple[str, ...]
    """kinds of GPU."""
    rate: float
    """mean requests per second."""
    swing: float
    """relative height of a wave on the rate."""
    lengths: tuple[int, int]
    """mean prompt and output tokens."""
    objective: PlanObjective
    """objectives."""


def scenarios() -> list[Scenario]:
    """Two models, four mixes of GPUs and six kinds of traffic."""
    small, large = "llama-3.1-8b", "qwen3-32b"
    both, old = ("h100-sxm-80gb", "a100-sxm-80gb"), ("a100-sxm-80gb", "l40s-48gb")
    new, one = ("h200-sxm-141gb", "h100-sxm-80gb"), ("h100-sxm-80gb",)
    chat, long, talk = (800, 150), (3000, 100), (300, 300)
    tight, loose, slow = (
        PlanObjective(0.5, 0.025),
        PlanObjective(1.0, 0.05),
        PlanObjective(2.0, 0.06),
    )
    return [
        Scenario("chat, steady", small, both, 26, 0.0, chat, loose),
        Scenario("chat, waves", small, old, 16, 0.6, chat, loose),
        Scenario("chat, tight", small, both, 24, 0.3, chat, tight),
        Scenario("long prompts", small, both, 12, 0.4, long, slow),
        Scenario("long prompts, tight", small, one, 11, 0.3, long, PlanObjective(1.0, 0.03)),
        Scenario("long outputs", small, old, 14, 0.4, talk, loose),
        Scenario("long outputs, waves", small, new, 40, 0.6, talk, PlanObjective(1.0, 0.03)),
        Scenario("heavy", small, one, 50, 0.3, chat, loose),
        Scenario("32B chat", large, both, 9, 0.3, chat, slow),
        Scenario("32B chat, waves", large, new, 10, 0.6, chat, loose),
        Scenario("32B long prompts", large, new, 4, 0.4, long, slow),
        Scenario("32B long outputs", large, both, 8, 0.3, talk, slow),
    ]


@dataclass(frozen=True)
class Row:
    """Result of a scenario: the plan beside the truth."""

    scenario: Scenario
    """the scenario."""
    named: PlannedDeployment
    """deployment of the plan."""
    interval: tuple[float, float]
    """stated interval of its attainment."""
    true: float
    """attainment under the hidden constants."""
    cheapest: PlannedDeployment
    """cheapest deployment under the hidden constants."""

    @property
    def inside(self) -> bool:
        """Whether the true attainment is inside the stated interval."""
        low, high = self.interval
        return low <= self.true <= high

    @property
    def near(self) -> bool:
        """Whether the named deployment costs what the cheapest true one does, or little more."""
        return self.named.usd_per_hour <= NEAR * self.cheapest.usd_per_hour

    @property
    def right(self) -> bool:
        """Whether the price is near and not below that of the cheapest true one."""
        return self.near and self.named.usd_per_hour >= self.cheapest.usd_per_hour / NEAR


def traffic(scenario: Scenario, rng: np.random.Generator) -> Trace:
    """Poisson arrivals on a wave, lengths with a long tail."""
    most = scenario.rate * (1 + scenario.swing)
    times = np.cumsum(rng.exponential(1 / most, int(most * _DURATION_S * 1.2)))
    times = times[times < _DURATION_S]
    rate = 1 + scenario.swing * np.sin(2 * np.pi * times / _DURATION_S)
    times = times[rng.random(len(times)) < scenario.rate * rate / most]

    def lengths(mean: float, least: int) -> np.ndarray:
        drawn = rng.lognormal(-0.245, 0.7, len(times)) * mean
        return np.clip(drawn, least, 8 * mean).astype(np.int32)

    prompt, output = scenario.lengths
    return Trace(times - times[0], lengths(prompt, 16), lengths(output, 2))


def hidden_options(options: Sequence[EngineOption], rng: np.random.Generator) -> list[EngineOption]:
    """Engines with hidden constants: factors of each kind of GPU, and a small one of each
    layout."""
    kinds = sorted({option.gpu for option in options})
    factors = {
        kind: {name: float(rng.lognormal(0.0, sigma)) for name, sigma in _FACTORS.items()}
        for kind in kinds
    }
    found = []
    for option in options:
        layout = float(rng.lognormal(0.0, _LAYOUT))
        changes = {
            name: _times(getattr(option.cost, name), factor * layout)
            for name, factor in factors[option.gpu].items()
        }
        cost = dataclasses.replace(option.cost, **changes)
        found.append(dataclasses.replace(option, cost=cost))
    return found


def _times(value: float | tuple[float, ...], factor: float) -> float | tuple[float, ...]:
    if isinstance(value, tuple):
        return tuple(factor * each for each in value)
    return factor * value


def play_load_test(option: EngineOption, path: Path, rng: np.random.Generator) -> None:
    """Writes a closed-loop load test of an engine, with scatter."""
    levels, prompts = (each.ravel() for each in np.meshgrid(_LEVELS, _PROMPTS))
    fixed = np.ones(len(levels))
    asked = Sweep(1.0 * levels, 1.0 * prompts, _OUTPUT * fixed, fixed, None)
    lines = [
        {
            "max_concurrency": int(level),
            "random_input_len": int(prompt),
            "random_output_len": _OUTPUT,
            "mean_tpot_ms": 1e3 * tpot_s * (1.0 + _SCATTER * rng.standard_normal()),
            "median_ttft_ms": 1e3 * ttft_s,
        }
        for level, prompt, ttft_s, tpot_s in zip(
            levels, prompts, *played(asked, option.cost, option, _BUDGET), strict=True
        )
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def play(scenario: Scenario, seed: int, folder: Path) -> Row:
    """One scenario."""
    rng = np.random.default_rng(seed)
    trace = traffic(scenario, rng)
    prices, _ = gpu_prices(scenario.hardware, None)
    inputs = PlanInputs(
        scenario.model, trace, scenario.name, scenario.objective, prices, max_gpus=8,
        formats=("bf16",), kv_formats=("bf16",),
    )  # fmt: skip
    published, _ = engine_options(inputs)
    hidden = hidden_options(published, rng)
    tests = []
    for kind in scenario.hardware:
        measured = min(
            (each for each in hidden if each.gpu == kind), key=lambda each: each.tensor_parallel
        )
        path = folder / f"{seed}_{kind}.jsonl"
        play_load_test(measured, path, rng)
        tests.append(f"{kind}/{measured.tensor_parallel}/bf16={path}")
    options = measured_options(published, inputs, tests)
    player = Player(inputs)
    named = search(inputs, options, player).best.deployment
    doubt = named.option.doubt
    stated = interval(
        player.play([Play(named, slowdown=at) for at in (doubt.slower, 1.0, doubt.faster)])
    )
    true_option = next(each for each in hidden if each.name == named.option.name)
    (true,) = player.play([Play(dataclasses.replace(named, option=true_option))])
    cheapest = search(inputs, hidden, player).best.deployment
    return Row(scenario, named, stated, true.attainment, cheapest)


def page_text(rows: Sequence[Row]) -> str:
    """The page."""
    inside = sum(row.inside for row in rows)
    near = sum(row.right for row in rows)
    lines = [
        "# How sure plans are",
        "",
        "`python -m benchmarks.plan_doubt` plans for servers with hidden constants: a load test of "
        "one layout of each kind of GPU is all that a plan sees of them. Compared is what the same "
        "deployment reaches under the hidden constants, and the cheapest deployment of a search "
        "that knows them.",
        "",
        f"The true attainment is inside the stated interval in {inside} of {len(rows)} "
        "scenarios, "
        f"and the price is within {NEAR - 1:.0%} of the cheapest true deployment's in {near}.",
        "",
        "| scenario | named | USD/h | stated interval | true attainment | cheapest true | USD/h |",
        "|---|---|--:|--:|--:|---|--:|",
    ]
    return "\n".join([*lines, *map(page_row, rows)]) + "\n"


def page_row(row: Row) -> str:
    """A line of the page's table."""
    low, high = row.interval
    return (
        f"| {row.scenario.model}: {row.scenario.name} | {row.named.name} "
        f"| {row.named.usd_per_hour:.2f} | {low:.2%} to {high:.2%} "
        f"| {row.true:.2%}{'' if row.inside else ' (outside)'} | {row.cheapest.name} "
        f"| {row.cheapest.usd_per_hour:.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays all scenarios and prints the page."""
    parser = page_parser("benchmarks.plan_doubt", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the hidden constants")
    parser.add_argument("--only", type=int, help="number of the one scenario to play")
    options = parser.parse_args(arguments)

    def measure() -> str:
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for number, scenario in enumerate(scenarios()):
                if options.only in (None, number):
                    rows.append(play(scenario, 100 * options.seed + number, Path(folder)))
                    print(page_row(rows[-1]), file=sys.stderr, flush=True)
        return page_text(rows)

    return publish(measure, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
