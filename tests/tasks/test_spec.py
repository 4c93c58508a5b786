"""Task files: what is built in loads, and whatever is wrong in one is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.tasks.spec import load_task, parse_deployment, parse_task, task_names


@pytest.fixture
def content() -> dict[str, Any]:
    """A small task file that is right."""
    return {
        "spec_version": 1,
        "title": "A task",
        "difficulty": "easy",
        "description": "One stream.",
        "hardware": "a100-sxm-40gb",
        "model": "llama-3.1-8b",
        "deployment": {"num_gpus": 2, "restart_s": 5.5},
        "knobs": ["batch_cap"],
        "streams": [
            {
                "name": "chat",
                "prompt": {"kind": "lognormal", "mu": 5, "sigma": 1, "low": 32, "high": 4096},
                "output": {"kind": "uniform", "low": 16, "high": 64},
                "acceptance": "sharegpt/eagle",
                "ttft_slo_s": 0.5,
                "tpot_slo_s": 0.05,
            }
        ],
        "regimes": [{"name": "steady", "rate_rps": 5, "mix": {"chat": 1.0}}],
        "objective": {"memory_limit_gib": 36},
    }


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with one field set; ``...`` deletes it."""
    result = copy.deepcopy(content)
    target: Any = result
    for key in path[:-1]:
        target = target[key]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return result


def test_built_in_tasks_load_in_order_of_difficulty() -> None:
    """The three graded tasks come first, and their aliases are 1, 2 and 3."""
    names = task_names()
    assert names[:3] == ("static_workload", "bursty_workload", "adversarial_multitenant")
    for number, name in enumerate(names[:3], start=1):
        assert load_task(number).name == load_task(str(number)).name == name
        assert load_task(name).alias == number


def test_built_in_tasks_keep_their_published_figures() -> None:
    """Horizon, memory limits and knobs of the three tasks are what users compare against."""
    easy, medium, hard = (load_task(number) for number in (1, 2, 3))
    assert [task.horizon for task in (easy, medium, hard)] == [200, 200, 200]
    assert easy.knobs == ("batch_cap", "kv_budget_fraction")
    assert medium.knobs == (*easy.knobs, "speculation_depth")
    assert len(hard.knobs) == 6
    assert medium.objective.memory_limit_gib == 36
    assert hard.objective.memory_limit_gib == 38


def test_defaults_fill_what_a_file_leaves_out(content: dict[str, Any]) -> None:
    """A minimal file is a whole task."""
    task = parse_task(content, "mine")
    assert (task.name, task.version, task.alias, task.horizon) == ("mine", 1, None, 200)
    assert task.deployment.num_gpus == 2
    assert task.deployment.restart_s == 5.5
    assert task.deployment.queue_capacity == 512
    assert task.regimes[0].burst_multiplier == (1.0, 1.0)
    assert task.locked["batch_cap"] == 32


def test_a_file_loads_by_its_path(content: dict[str, Any], tmp_path: Path) -> None:
    """Users bring their own tasks as files."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    assert load_task(str(path)).name == "mine"


def test_locked_values_override_the_default(content: dict[str, Any]) -> None:
    """A knob that the agent may not turn can be fixed at any allowed value."""
    content["locked"] = {"speculation_depth": 4, "kv_budget_fraction": 0.5}
    task = parse_task(content, "mine")
    assert task.locked["speculation_depth"] == 4
    assert task.locked["kv_budget_fraction"] == 0.5


def test_limits_narrow_the_range_of_knobs(content: dict[str, Any]) -> None:
    """Those of a deployment; a knob without limits has its whole range."""
    assert parse_task(content, "mine").limits == {}
    content["limits"] = {"batch_cap": [2, 48], "kv_budget_fraction": [0.3, 0.9]}
    limits = parse_task(content, "mine").limits
    assert limits == {"batch_cap": (2, 48), "kv_budget_fraction": (0.3, 0.9)}


def test_quantiles_are_a_length_distribution(content: dict[str, Any]) -> None:
    """A file may give recorded lengths."""
    content["streams"][0]["prompt"] = {"kind": "quantiles", "values": [100, 200, 300]}
    task = parse_task(content, "mine")
    assert task.streams[0].prompt.mean() == pytest.approx(200, rel=0.01)


NAN, INFINITE = float("nan"), float("inf")
STREAM, REGIME = ("streams", 0), ("regimes", 0)
WRONG = [
    (("spec_version",), 2, "spec_version"),
    (("spec_version",), True, "spec_version"),
    (("spec_version",), ..., "spec_version"),
    (("surprise",), 1, "surprise"),
    (("name",), "other", "name"),
    (("title",), 3, "title"),
    (("title",), "", "title"),
    (("difficulty",), ..., "difficulty"),
    (("description",), None, "description"),
    (("hardware",), ..., "hardware"),
    (("model",), 8, "model"),
    (("version",), 0, "version"),
    (("version",), "1", "version"),
    (("alias",), 1.5, "alias"),
    (("horizon",), 0, "horizon"),
    (("horizon",), 10.0, "horizon"),
    (("horizon",), True, "horizon"),
    (("ticks",), 65, "ticks"),
    (("window_s",), 0, "window_s"),
    (("window_s",), NAN, "window_s"),
    (("cycle_period_s",), INFINITE, "cycle_period_s"),
    (("randomisation",), 0.6, "randomisation"),
    (("trace",), 5, "trace"),
    (("knobs",), [], "knobs"),
    (("knobs",), "batch_cap", "knobs"),
    (("knobs",), ["batch_size"], "batch_size"),
    (("knobs",), [["batch_cap"]], "batch_cap"),
    (("knobs",), ["batch_cap", "batch_cap"], "knobs"),
    (("locked",), [], "locked"),
    (("locked",), {"warp": 1}, "warp"),
    (("locked",), {"batch_cap": 513}, "batch_cap"),
    (("locked",), {"quantization_tier": 0.5}, "quantization_tier"),
    (("locked",), {"kv_budget_fraction": NAN}, "kv_budget_fraction"),
    (("limits",), [], "limits"),
    (("limits",), {"warp": [1, 2]}, "warp"),
    (("limits",), {"batch_cap": 8}, "batch_cap"),
    (("limits",), {"batch_cap": [8]}, "batch_cap"),
    (("limits",), {"batch_cap": [16, 8]}, "batch_cap"),
    (("limits",), {"batch_cap": [1, 513]}, "batch_cap"),
    (("limits",), {"batch_cap": [1.5, 8]}, "batch_cap"),
    (("limits",), {"kv_budget_fraction": [NAN, 1]}, "kv_budget_fraction"),
    (("deployment",), 2, "deployment"),
    (("deployment", "gpus"), 2, "gpus"),
    (("deployment", "num_gpus"), 0, "num_gpus"),
    (("deployment", "num_gpus"), 9, "num_gpus"),
    (("deployment", "num_gpus"), 1.5, "num_gpus"),
    (("deployment", "restart_s"), -1, "restart_s"),
    (("deployment", "memory_utilization"), 1.1, "memory_utilization"),
    (("deployment", "tensor_parallel"), 0, "tensor_parallel"),
    (("deployment", "queue_capacity"), 0, "queue_capacity"),
    (("objective",), ..., "memory_limit_gib"),
    (("objective", "memory_limit_gib"), 0, "memory_limit_gib"),
    (("objective", "memory_limit_gib"), "36", "memory_limit_gib"),
    (("objective", "cost_weight"), -0.1, "cost_weight"),
    (("objective", "speed_weight"), 1, "speed_weight"),
    (("streams",), [], "streams"),
    (("streams",), {}, "streams"),
    (STREAM, 1, "streams[0]"),
    ((*STREAM, "colour"), 1, "colour"),
    ((*STREAM, "name"), "", "name"),
    ((*STREAM, "acceptance"), "sharegpt", "acceptance"),
    ((*STREAM, "ttft_slo_s"), 0, "ttft_slo_s"),
    ((*STREAM, "ttft_slo_s"), 121, "it must be in seconds, from 0.001 to 120"),
    ((*STREAM, "ttft_slo_s"), "0.5", "it must be in seconds, from 0.001 to 120"),
    ((*STREAM, "tpot_slo_s"), ..., "tpot_slo_s"),
    ((*STREAM, "tpot_slo_s"), 50, "tpot_slo_s is 50; it must be in seconds, from 0.0001"),
    ((*STREAM, "priority"), 3, "priority"),
    ((*STREAM, "priority"), 0.5, "priority"),
    ((*STREAM, "bins"), 7, "bins"),
    ((*STREAM, "bins"), 1.5, "bins"),
    ((*STREAM, "value"), -1, "value"),
    ((*STREAM, "value"), 0, "value"),
    ((*STREAM, "quality"), [1, 1], "quality"),
    ((*STREAM, "quality"), [1, 1, 1.5], "quality"),
    ((*STREAM, "quality"), [1, 1, "1"], "quality"),
    ((*STREAM, "prompt"), ..., "prompt"),
    ((*STREAM, "prompt", "kind"), "normal", "kind"),
    ((*STREAM, "prompt", "kind"), ["normal"], "kind"),
    ((*STREAM, "prompt", "mean"), 5, "mean"),
    ((*STREAM, "prompt", "sigma"), ..., "sigma"),
    ((*STREAM, "prompt", "low"), 0, "prompt"),
    ((*STREAM, "output", "high"), 8, "output"),
    ((*STREAM, "output"), {"kind": "quantiles"}, "values"),
    ((*STREAM, "output"), {"kind": "quantiles", "values": ["a"]}, "values"),
    ((*STREAM, "output"), {"kind": "quantiles", "values": [0.5]}, "output"),
    ((*STREAM, "output"), {"kind": "quantiles", "values": [NAN]}, "output"),
    (("regimes",), [], "regimes"),
    (("regimes",), [{}] * 5, "regimes"),
    ((*REGIME, "rate"), 1, "rate"),
    ((*REGIME, "rate_rps"), ..., "rate_rps"),
    ((*REGIME, "rate_rps"), 0, "rate_rps"),
    ((*REGIME, "rate_rps"), INFINITE, "rate_rps"),
    ((*REGIME, "mix"), ..., "mix"),
    ((*REGIME, "mix"), {}, "mix"),
    ((*REGIME, "mix"), {"chat": 0.9}, "mix"),
    ((*REGIME, "mix"), {"chat": 0.5, "code": 0.5}, "code"),
    ((*REGIME, "dwell_s"), [60, 40], "dwell_s"),
    ((*REGIME, "dwell_s"), 40, "dwell_s"),
    ((*REGIME, "burst_multiplier"), [0.5, 2], "burst_multiplier"),
    ((*REGIME, "burst_multiplier"), [1, NAN], "burst_multiplier"),
    ((*REGIME, "burst_start_per_s"), 1.5, "burst_start_per_s"),
    ((*REGIME, "burst_stop_per_s"), 0, "burst_stop_per_s"),
    ((*REGIME, "cycle_amplitude"), -1, "cycle_amplitude"),
    ((*REGIME, "acceptance_scale"), "high", "acceptance_scale"),
]


@pytest.mark.parametrize(("path", "value", "named"), WRONG, ids=lambda part: str(part)[:40])
def test_a_wrong_field_is_named(
    content: dict[str, Any], path: tuple[Any, ...], value: Any, named: str
) -> None:
    """One sentence, which names the task and the field."""
    with pytest.raises(InputError, match=r"^task mine") as error:
        parse_task(changed(content, path, value), "mine")
    message = str(error.value)
    assert named in message
    assert "\n" not in message


def test_a_field_that_is_not_there_is_missing(content: dict[str, Any]) -> None:
    """The sentence does not speak of a value that nobody wrote."""
    with pytest.raises(InputError, match=r"title is missing; it must be a text"):
        parse_task(changed(content, ("title",), ...), "mine")
    with pytest.raises(InputError, match=r"rate_rps is missing; it must be a number"):
        parse_task(changed(content, ("regimes", 0, "rate_rps"), ...), "mine")
    with pytest.raises(InputError, match=r"knobs is missing; it must be a list"):
        parse_task(changed(content, ("knobs",), ...), "mine")


def test_the_digest_is_of_what_moves_scores(content: dict[str, Any]) -> None:
    """Texts for people may change, and so may the order of fields; nothing else."""
    digest = parse_task(content, "mine").digest
    backwards = dict(reversed(content.items()))
    assert parse_task(changed(backwards, ("title",), "Another"), "other").digest == digest
    assert parse_task(changed(content, ("regimes", 0, "rate_rps"), 5.5), "mine").digest != digest
    assert parse_task(changed(content, ("horizon",), 100), "mine").digest != digest


def test_streams_must_differ_and_fit(content: dict[str, Any]) -> None:
    """Six classes are all there is, and a regime must be able to tell the streams apart."""
    twice = changed(content, ("streams",), content["streams"] * 2)
    with pytest.raises(InputError, match="duplicate names"):
        parse_task(twice, "mine")
    second = {**content["streams"][0], "name": "code", "bins": 6}
    with pytest.raises(InputError, match="7 bins in all; at most 6 fit"):
        parse_task(changed(content, ("streams",), [*content["streams"], second]), "mine")


@pytest.mark.parametrize(
    "task", ["warp", "", "4", "0", "²", "warp.json", "../spec", True, 1.0, None]
)
def test_unknown_tasks_are_refused(task: Any) -> None:
    """An unknown name says what there is."""
    with pytest.raises(InputError, match="task"):
        load_task(task)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "\x00", '{"a": 1}}', "[" * 100_000])
def test_files_that_are_no_json_are_refused(text: str, tmp_path: Path) -> None:
    """Broken files end in a sentence, not in a traceback of the parser."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"mine\.json is not readable JSON"):
        load_task(str(path))


@pytest.mark.parametrize("data", [None, 3, "task", []])
def test_files_must_hold_an_object(data: Any) -> None:
    """JSON that is no object is no task."""
    with pytest.raises(InputError, match="JSON object"):
        parse_task(data, "mine")


def test_prefix_caching_is_a_flag_of_the_deployment() -> None:
    """Off unless a task file turns it on, and nothing but true or false."""
    assert not parse_deployment({}, "deployment").prefix_caching
    assert parse_deployment({"prefix_caching": True}, "deployment").prefix_caching
    with pytest.raises(InputError, match="prefix_caching is 1; it must be"):
        parse_deployment({"prefix_caching": 1}, "deployment")


def test_requests_that_no_table_knows_are_refused(content: dict[str, Any]) -> None:
    """A longer context than latency tables have would be played as a shorter one."""
    stream = content["streams"][0]
    stream["prompt"] = {"kind": "uniform", "low": 64, "high": 131_000}
    stream["output"] = {"kind": "uniform", "low": 1, "high": 72}
    parse_task(content, "mine")
    stream["output"]["high"] = 73
    with pytest.raises(InputError, match=r"tokens is '131073'; it must be at most 131072"):
        parse_task(content, "mine")


@pytest.mark.parametrize("ages", [1, 8, 128])
def test_output_ages_are_one_or_enough(content: dict[str, Any], ages: int) -> None:
    """One bin is no memory; fewer than eight would be neither that nor a distribution."""
    assert parse_task(content, "mine").output_ages == 1
    assert parse_task(content | {"output_ages": ages}, "mine").output_ages == ages
    with pytest.raises(InputError, match=r"output_ages is 7; it must be 1 or from 8 to 128"):
        parse_task(content | {"output_ages": 7}, "mine")
