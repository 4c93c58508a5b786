"""The reference engine against real vLLM servers whose prompts share prefixes.

The runs (inference-sim/training, commit ed5c1d2) are of vLLM on H100. Prompts come in ten groups of
ten with a common beginning and are repeated at a constant rate. Each run names its model and the
number of GPUs; the repository's README names the GPU. Only summaries are published: means and
quantiles of latencies for each stage. The summaries count two events for a token; therefore the
comparison uses the latency of whole requests in place of the time per output token.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.machine.stack import serve
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from jaxserve.studies.fidelity.measurements import FidelityRow

DIRECTORY = "inference_sim_training/default_args"
LATENCY_BAR, TTFT_BAR = 10.0, 20.0
PLAYED_S = 150.0
"""Seconds played of each stage; the prompts repeat every few seconds."""

_GPU = "h100-sxm-80gb"
_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
}
_PAUSE_S = 30.0  # between two stages
_MOST_TOKENS = 4096


@dataclass(frozen=True)
class RunStage:
    """A stage of a run, measured and simulated."""

    name: str
    """model and rate of the stage, for the page."""
    ttft_s: float
    """measured mean time to first token."""
    latency_s: float
    """measured mean time from request to last token."""
    log: np.ndarray
    """``LOG_DTYPE`` rows of the simulated requests."""
    plain: np.ndarray
    """``LOG_DTYPE`` rows of the same requests without prefix caching."""


def load_stages(directory: Path) -> list[RunStage]:
    """Plays a run.

    Returns:
      the stages; none if requests failed, because the server was overloaded.

    Raises:
      InputError: a file lacks a setting of the load or the server, or no file describes the model.
    """
    config = (directory / "results" / "config.yaml").read_text(encoding="utf-8")
    paths = sorted((directory / "results").glob("stage_*_lifecycle_metrics.json"))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if any(report["failures"]["count"] for report in reports):
        return []
    served = (directory / "exp-config.yaml").read_text(encoding="utf-8")
    requests, stage = _requests(config, reports)
    named = _served_model(directory)
    gpu, model = serve(_GPU, _MODELS[checks.one_of("model of a run", named, _MODELS)], None)
    tensor_parallel = _number(served, "tensor_parallelism")
    room = int(kv_capacity_tokens(gpu, model, 0, 1.0, False, tensor_parallel))
    knobs = GpuKnobs(_number(served, "max_num_seqs"), room)
    budget = _number(served, "max_num_batched_tokens")
    cost = CostModel.of(gpu, model, tensor_parallel)
    logs = [
        run_requests(
            [dataclasses.replace(request) for request in requests],
            cost,
            knobs,
            SchedulerSettings(token_budget=budget, prefix_caching=caching),
        )
        for caching in (True, False)
    ]
    found = []
    for number, report in enumerate(reports):
        latency = report["successes"]["latency"]
        rate = report["load_summary"]["requested_rate"]
        found.append(
            RunStage(
                f"{directory.name.rpartition('-')[2]} at {rate:g}/s",
                latency["time_to_first_token"]["mean"],
                latency["request_latency"]["mean"],
                *(log[stage == number] for log in logs),
            )
        )
    return found


def _requests(config: str, reports: list[dict]) -> tuple[list[Request], np.ndarray]:
    """The requests of all stages one after the other, and int[n] stage of each.

    Prompts are sent in turn. Their lengths are spread evenly from the shortest to the longest
    counted one. Counted lengths are somewhat longer than configured; the common beginning is scaled
    likewise.
    """
    groups, each = _number(config, "num_groups"), _number(config, "num_prompts_per_group")
    common, question = _number(config, "system_prompt_len"), _number(config, "question_len")
    rng = np.random.default_rng(0)
    lengths = reports[0]["successes"]["prompt_len"]
    tokens = rng.permutation(np.linspace(lengths["min"], lengths["max"], groups * each).round())
    order = rng.permutation(groups * each)
    beginning = round(common * lengths["mean"] / (common + question))
    requests: list[Request] = []
    stage: list[int] = []
    start_s = 0.0
    for number, report in enumerate(reports):
        rate = report["load_summary"]["requested_rate"]
        count = min(report["load_summary"]["count"], int(rate * PLAYED_S))
        for i in range(count):
            prompt = int(order[i % len(order)])
            places = np.arange(int(tokens[prompt]))
            owner = np.where(places < beginning, prompt // each, groups + prompt)
            requests.append(
                Request(
                    len(requests),
                    start_s + i / rate,
                    len(places),
                    _number(config, "output_len"),
                    prefix_ids=owner * _MOST_TOKENS + places,
                )
            )
            stage.append(number)
        start_s += count / rate + _PAUSE_S
    return requests, np.array(stage)


def prefix_run_fidelity(shared: Path) -> list[FidelityRow]:
    """Rows on latency and TTFT of the real runs; none if the runs are absent.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    runs: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted((shared / DIRECTORY).glob("*/exp-config.yaml")):
        runs[_served_model(file.parent)].append(file.parent)
    missing = sorted(set(runs) - set(_MODELS))
    skipped = f"; no file describes {', '.join(missing)}, not played" if missing else ""
    return [
        row
        for named, directories in runs.items()
        if named in _MODELS
        for row in _model_rows(_MODELS[named], directories, skipped)
    ]


def _model_rows(model: str, directories: list[Path], skipped: str) -> list[FidelityRow]:
    """Rows of one model's runs; none if fewer than two stages can be played."""
    stages = [stage for directory in directories for stage in load_stages(directory)]
    if len(stages) < 2:
        return []
    latency = np.array([_latency_s(s.log) / s.latency_s - 1 for s in stages])
    plain = np.array([_latency_s(s.plain) / s.latency_s - 1 for s in stages])
    # Client, HTTP and tokeniser: one constant, from the stages other than the one judged.
    missing_s = np.array([s.ttft_s - s.log["ttft_s"].mean() for s in stages])
    others_s = [float(np.median(np.delete(missing_s, i))) for i in range(len(stages))]
    ttft = np.array(
        [
            (s.log["ttft_s"].mean() + other_s) / s.ttft_s - 1
            for s, other_s in zip(stages, others_s, strict=True)
        ]
    )
    bare = np.array([s.log["ttft_s"].mean() / s.ttft_s - 1 for s in stages])
    found = [s.log["cached_tokens"].sum() / s.log["prompt_tokens"].sum() for s in stages]
    about = f"{len(stages)} stages, {min(found):.0%} to {max(found):.0%} of the prompts found"
    about += skipped
    return [
        _row(
            f"{model} latency mean",
            latency,
            LATENCY_BAR,
            stages,
            f"{about}; without caching {_listed(plain)}",
        ),
        _row(
            f"{model} TTFT mean",
            ttft,
            TTFT_BAR,
            stages,
            f"{about}; front end of {1e3 * min(others_s):.0f} to {1e3 * max(others_s):.0f} ms from "
            "the other stages",
        ),
        _row(
            f"{model} TTFT mean, no front end",
            bare,
            TTFT_BAR,
            stages,
            f"the same at the engine, by stage {_listed(bare)}",
        ),
    ]


def _row(
    name: str, errors: np.ndarray, bar: float, stages: list[RunStage], detail: str
) -> FidelityRow:
    worst = int(np.abs(errors).argmax())
    return FidelityRow.within(
        f"reference vs real vLLM with shared prefixes: {name}",
        100 * float(np.abs(errors).mean()),
        bar,
        "% (mean)",
        f"{detail}; worst {100 * errors[worst]:+.1f} %: {stages[worst].name}",
    )


def _latency_s(log: np.ndarray) -> float:
    return float((log["finish_s"] - log["arrival_s"]).mean())


def _listed(errors: np.ndarray) -> str:
    return " / ".join(f"{100 * error:+.0f}" for error in errors) + " %"


def _served_model(directory: Path) -> str:
    """The model of a run by its name at Hugging Face."""
    text = (directory / "exp-config.yaml").read_text(encoding="utf-8")
    found = re.search(r"^model: (\S+)$", text, re.M)
    if found is None:
        raise InputError(f"a run of {DIRECTORY} does not say model")
    return found[1]


def _number(text: str, name: str) -> int:
    found = re.search(rf"^\s*{name}: (\d+)$", text, re.M)
    if found is None:
        raise InputError(f"a run of {DIRECTORY} does not say {name}")
    return int(found[1])
