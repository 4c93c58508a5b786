"""Files of load tests as their tools write them, of runs that a test knows."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxserve.sim.fit.sweep import MIN_ROWS


class Run(NamedTuple):
    """A run that a file is written of."""

    concurrency: int
    prompt: float
    output: float
    tpot_ms: float
    ttft_ms: float
    requests: int
    failed: int
    rate: float | None
    slip: float
    """factor on TPOT, as where another unit is written."""

    @property
    def latency_ms(self) -> float:
        return self.ttft_ms + (self.output - 1) * self.tpot_ms

    @property
    def done(self) -> int:
        return self.requests - self.failed

    @property
    def duration_s(self) -> float:
        return self.done * self.latency_ms / 1e3 / self.concurrency


def _stat(value: float, middle: float | None = None, **more: Any) -> dict[str, Any]:
    return {"mean": value, "median": value if middle is None else middle, "max": 99 * value} | more


def vllm(run: Run, draw: random.Random) -> dict[str, Any]:
    return {
        "max_concurrency": run.concurrency,
        "request_rate": run.rate or "inf",
        "random_input_len": 3 * run.prompt,
        "num_prompts": run.requests,
        "completed": run.done,
        "failed": run.failed,
        "total_input_tokens": run.done * run.prompt,
        "total_output_tokens": run.done * run.output,
        "duration": run.duration_s,
        "request_throughput": run.done / run.duration_s,
        "mean_e2el_ms": run.latency_ms,
        "mean_tpot_ms": run.slip * run.tpot_ms,
        "median_tpot_ms": 0.9 * run.tpot_ms,
        "mean_ttft_ms": run.ttft_ms,
        "median_ttft_ms": run.ttft_ms,
    }


def sglang(run: Run, draw: random.Random) -> dict[str, Any]:
    row = vllm(run, draw)
    row["mean_e2e_latency_ms"] = row.pop("mean_e2el_ms")
    names = draw.choice([("total_input", "total_output"), ("total_input_tokens", "")])
    if names[1]:
        row |= {name: row.pop(f"{name}_tokens") for name in names}
    return row | {"accept_length": None, "concurrency": 0.97 * run.concurrency}


def guidellm(run: Run, draw: random.Random) -> dict[str, Any]:
    def by_status(value: float) -> dict[str, Any]:
        return {"successful": _stat(value), "errored": _stat(7 * value), "total": _stat(2 * value)}

    kind = {"rate": run.rate} if run.rate else {"streams": run.concurrency}
    name = "poisson" if run.rate else "concurrent"
    if run.concurrency == 1 and not run.rate:
        kind, name = {}, "synchronous"
    strategy = {draw.choice(["type_", "kind"]): name} | kind
    totals = {"successful": run.done, "errored": run.failed, "incomplete": 2}
    metrics = {
        "inter_token_latency_ms": by_status(run.slip * run.tpot_ms),
        "time_per_output_token_ms": by_status(run.latency_ms / run.output),
        "time_to_first_token_ms": by_status(run.ttft_ms),
        "request_latency": by_status(run.latency_ms / 1e3),
        "prompt_token_count": by_status(run.prompt),
        "output_token_count": by_status(run.output),
    }
    old = draw.random() < 0.3
    if old and "kind" not in strategy:
        return {"args": {"strategy": strategy}, "metrics": metrics, "request_totals": totals}
    metrics["request_totals"] = totals
    config = {"strategy": strategy}
    return {"config": config, "metrics": metrics, "duration": run.duration_s}


def aiperf(run: Run, draw: random.Random) -> dict[str, Any]:
    def time(value_ms: float, middle: bool = True) -> dict[str, Any]:
        unit, factor = draw.choice([("ms", 1.0), ("ns", 1e6), ("us", 1e3), ("s", 1e-3)])
        value = factor * value_ms
        return {"unit": unit, "avg": value, "p99": 3 * value} | ({"p50": value} if middle else {})

    load = {"concurrency": run.concurrency, "request_rate": run.rate}
    phase = {"type": "concurrency", "concurrency": run.concurrency, "rate": run.rate}
    warmup = {"type": "concurrency", "concurrency": 77, "exclude_from_results": True}
    return {
        "input_config": draw.choice(
            [
                {"loadgen": load},
                {"perf_analyzer": {"stimulus": load}},
                load,
                {"phases": [warmup, phase]},
            ]
        ),
        "input_sequence_length": {"unit": "tokens", "avg": run.prompt},
        "output_sequence_length": {"unit": "tokens", "avg": run.output},
        "inter_token_latency": time(run.slip * run.tpot_ms),
        "time_to_first_token": time(run.ttft_ms, draw.random() < 0.5),
        "request_latency": time(run.latency_ms),
        "benchmark_duration": {"unit": "sec", "avg": run.duration_s},
        "request_count": {"unit": "requests", "avg": run.done},
        "error_request_count": {"unit": "requests", "avg": run.failed},
    }


def inference_perf(run: Run, draw: random.Random) -> dict[str, Any]:
    load = {"count": run.requests, "requested_rate": 50.0}
    return {
        "load_summary": load if run.rate else load | {"concurrency": run.concurrency},
        "successes": {
            "count": run.done,
            "latency": {
                "request_latency": _stat(run.latency_ms / 1e3),
                "normalized_time_per_output_token": _stat(run.latency_ms / 1e3 / run.output),
                "time_per_output_token": _stat(run.slip * run.tpot_ms / 1e3, 0.1),
                "time_to_first_token": _stat(run.ttft_ms / 1e3),
            },
            draw.choice(["prompt_len", "prompt_tokens"]): _stat(run.prompt),
            "output_len": _stat(run.output),
        },
        "failures": {"count": run.failed},
        "benchmark_time_seconds": run.duration_s,
    }


def llmperf(run: Run, draw: random.Random) -> dict[str, Any]:
    if run.slip != 1.0 or run.rate:  # the format has no such time and no rates: a stray TTFT
        run = run._replace(ttft_ms=1e3 * run.ttft_ms + run.latency_ms)
        return llmperf(run._replace(slip=1.0, rate=None), draw) | {
            "results_end_to_end_latency_s_mean": 0.1
        }
    return {
        "num_concurrent_requests": run.concurrency,
        "mean_input_tokens": 5 * run.prompt,
        "results_number_input_tokens_mean": run.prompt,
        "results_number_output_tokens_mean": run.output,
        "results_inter_token_latency_s_mean": run.latency_ms / 1e3 / run.output,
        "results_ttft_s_mean": run.ttft_ms / 1e3,
        "results_ttft_s_quantiles_p50": run.ttft_ms / 1e3,
        "results_end_to_end_latency_s_mean": run.latency_ms / 1e3,
        "results_num_completed_requests_per_min": 60 * run.done / run.duration_s,
        "results_num_requests_started": run.requests,
        "results_num_completed_requests": run.done,
        "results_number_errors": run.failed,
    }


def inferencex(run: Run, draw: random.Random) -> dict[str, Any]:
    share, tokens_s = draw.uniform(0.5, 1.0), run.concurrency / run.latency_ms * 1e3
    broken = run.rate or run.failed  # the format counts neither: an engine of two parts
    row = {
        "hw": "h100", "conc": run.concurrency, "tp": 1, "isl": run.prompt / share,
        "osl": run.output / share, "spec_decoding": "none", "disagg": bool(broken),
    }  # fmt: skip
    times = {
        "mean_tpot": run.slip * run.tpot_ms / 1e3, "mean_intvty": 1e3 / run.tpot_ms,
        "mean_ttft": run.ttft_ms / 1e3, "median_ttft": run.ttft_ms / 1e3,
        "mean_e2el": run.latency_ms / 1e3,
        "tput_per_gpu": tokens_s * (run.prompt + run.output),
        "input_tput_per_gpu": tokens_s * run.prompt,
        "output_tput_per_gpu": tokens_s * run.output,
    }  # fmt: skip
    return row | draw.choice([times, {"metrics": times}])


def columns(run: Run, draw: random.Random) -> dict[str, Any]:
    row = vllm(run, draw)
    row.pop("random_input_len")
    lengths = {"input_len": run.prompt, "osl": run.output}
    return {k: v for k, v in row.items() if not k.startswith("total_")} | lengths


WRITERS: dict[str, Callable[[Run, random.Random], dict[str, Any]]] = {
    "vllm-bench": vllm,
    "vllm-sweep": lambda run, draw: vllm(run, draw) | {"run_number": 0, "max_num_seqs": 512},
    "sglang-bench": sglang,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "inference-perf": inference_perf,
    "llmperf": llmperf,
    "inferencex": inferencex,
    "columns": columns,
}
TABLES = ("vllm-bench", "vllm-sweep", "sglang-bench", "columns")
DAMAGE = {"failed": {"failed": 200}, "open loop": {"rate": 4.0}, "unit": {"slip": 1e3}}


JUNK = (None, True, "x", "", [], [1], {}, {"a": 1}, [{}], -1, 0, math.inf, math.nan, 10**400, "nan")


def with_junk(document: Any, draw: random.Random) -> Any:
    """The document with something else in one of its places."""
    keys = [*document] if isinstance(document, dict) else [*range(len(document))]
    key = draw.choice(keys)
    inside = document[key]
    deeper = isinstance(inside, dict | list) and inside and draw.random() < 0.9
    changed = with_junk(inside, draw) if deeper else draw.choice(JUNK)
    if isinstance(document, dict):
        return document | {key: changed}
    return [*document[:key], changed, *document[key + 1 :]]


def shuffled(row: dict[str, Any], draw: random.Random, extra: bool) -> dict[str, Any]:
    """The row with its keys in another order, at all depths, and with further ones."""
    items = [
        (key, shuffled(value, draw, extra) if isinstance(value, dict) else value)
        for key, value in row.items()
    ]
    items += [(f"further_{draw.randrange(9)}", draw.choice([7, "text", None]))] if extra else []
    draw.shuffle(items)
    return dict(items)


def written(folder: Path, name: str, runs: list[Run], draw: random.Random) -> list[Path]:
    """Files of the runs in one of the forms that the format has."""
    extra = name != "columns"
    order = draw.getrandbits(32)
    # The same choices for every run, as one version of a tool has written them.
    rows = [WRITERS[name](run, random.Random(order)) for run in runs]
    rows = [shuffled(row, random.Random(order), extra) for row in rows]
    if name == "guidellm":
        texts = {"report.json": json.dumps({"metadata": {}, "benchmarks": rows})}
    elif name in TABLES and draw.random() < 0.5:
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        texts = {"runs.csv": text.getvalue()}
    elif draw.random() < 0.5:
        texts = {f"run_{i}.json": json.dumps(row, indent=2) for i, row in enumerate(rows)}
    else:
        texts = {"runs.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def drawn(draw: random.Random) -> list[Run]:
    """A sweep of one engine."""
    runs = []
    for i in range(MIN_ROWS):
        level = 2 ** (i % 5)
        runs.append(
            Run(
                level,
                draw.randrange(64, 8000),
                draw.randrange(16, 2000),
                draw.uniform(2, 60),
                draw.uniform(5, 900),
                20 * level,
                0,
                None,
                1.0,
            )
        )
    return runs
