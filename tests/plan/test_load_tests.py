"""Load tests and tables in place of published times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.load_tests import measured_options
from jaxserve.plan.options import EngineOption, engine_options
from jaxserve.sim.table.closed_loop import closed_loop

KINDS = {"h100-sxm-80gb": 3.5, "a100-sxm-80gb": 2.2}


def _inputs(prompt: int = 1000, rate: float = 2.0, **prices: float) -> PlanInputs:
    return PlanInputs(
        "llama-3.1-8b", *steady_traffic(rate, prompt, 100), PlanObjective(2.0, 0.05),
        prices or KINDS, max_gpus=2, formats=("bf16", "fp8"), kv_formats=("bf16",),
    )  # fmt: skip


def _write(path: Path, option: EngineOption, slower: float) -> Path:
    lines = []
    for prompt in (256, 1024, 2048):
        for level in (1, 4, 16):
            loop = closed_loop(option.cost, level, prompt, 100, kv_tokens=400_000)
            lines.append(
                {
                    "max_concurrency": level,
                    "random_input_len": prompt,
                    "random_output_len": 100,
                    "mean_tpot_ms": float(1e3 * slower * loop.tpot_s),
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _by_name(options: list[EngineOption]) -> dict[str, EngineOption]:
    return {option.name: option for option in options}


@pytest.mark.slow
def test_measured_times_replace_the_published_ones(tmp_path: Path) -> None:
    """Of the engine that was measured, and in proportion of its kind of GPU; other kinds keep
    theirs. The doubt is least where the measurement is."""
    inputs = _inputs()
    options, _ = engine_options(inputs)
    before = _by_name(options)
    name = "h100-sxm-80gb TP1 bf16"
    path = _write(tmp_path / "test.jsonl", before[name], 1.2)
    after = _by_name(measured_options(options, inputs, [f"h100-sxm-80gb/1/bf16={path}"]))
    for key, most in ((name, 0.04), ("h100-sxm-80gb TP2 bf16", 0.08)):
        ratio = after[key].cost.decode_s(8, 1000) / before[key].cost.decode_s(8, 1000)
        assert 1.1 < float(ratio) < 1.3
        assert after[key].doubt.error < most
    assert after[name].doubt.error < after["h100-sxm-80gb TP2 bf16"].doubt.error
    assert after[name].doubt.measured and not after["h100-sxm-80gb TP2 bf16"].doubt.measured
    assert after["a100-sxm-80gb TP1 bf16"] is before["a100-sxm-80gb TP1 bf16"]


@pytest.mark.slow
def test_the_doubt_grows_beyond_what_was_measured(tmp_path: Path) -> None:
    """Longer sequences than the load test's are extrapolated, and far longer ones refused."""
    errors = []
    for prompt in (1000, 4000):
        inputs = _inputs(prompt, 0.5, **{"h100-sxm-80gb": 3.5})
        options, _ = engine_options(inputs)
        path = _write(tmp_path / "test.jsonl", options[0], 1.1)
        errors.append(measured_options(options, inputs, [str(path)])[0].doubt.error)
    assert errors[1] > errors[0]
    inputs = _inputs(20_000, 0.1, **{"h100-sxm-80gb": 3.5})
    options, _ = engine_options(inputs)
    with pytest.raises(InputError, match="measure longer ones"):
        measured_options(options, inputs, [str(path)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "does not say of which GPU"),
        ("b200/1/bf16={}", "one of h100-sxm-80gb, a100-sxm-80gb"),
        ("h100-sxm-80gb/x={}", "TP of --load-test"),
        ("h100-sxm-80gb/8/bf16={}", "not among the engines of the plan"),
        ("h100-sxm-80gb/1/fp7={}", "format of --load-test"),
        ("missing.jsonl", "is not a file"),
    ],
)
def test_a_load_test_of_no_engine_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The error says which part of the option is wrong."""
    inputs = _inputs()
    options, _ = engine_options(inputs)
    path = _write(tmp_path / "test.jsonl", options[0], 1.0)
    with pytest.raises(InputError, match=message):
        measured_options(options, inputs, [text.format(path)])


def test_a_table_of_the_engine_is_used() -> None:
    """A packaged table without an error of its own keeps the published doubt."""
    inputs = _inputs()
    options, _ = engine_options(inputs)
    after = measured_options(options, inputs, table=Path("llama-3.1-8b__a100-sxm-80gb"))
    (option,) = [each for each in after if each.name == "a100-sxm-80gb TP1 bf16"]
    assert option.doubt.source.startswith("table ")
