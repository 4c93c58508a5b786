"""Metrics that engines expose on ``/metrics``, under the same names for all kinds."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, fields
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool, Replica
from jaxserve.gateway.engines.upstream import EngineRefused, Upstream, ask_text


@dataclass(frozen=True)
class EngineMetrics:
    """Metrics of one engine at one time; None where the engine lacks one. Counters start with the
    engine."""

    running: float | None = None
    """sequences in the batch."""
    waiting: float | None = None
    """sequences waiting for admission."""
    kv_use: float | None = None
    """fraction of the KV blocks in use."""
    preemptions: float | None = None
    """counter, sequences."""
    drafted: float | None = None
    """counter, draft tokens proposed."""
    accepted: float | None = None
    """counter, draft tokens accepted."""
    prompt_tokens: float | None = None
    """counter, tokens prefilled."""
    output_tokens: float | None = None
    """counter, tokens generated."""
    kv_tokens: float | None = None
    """size of the KV pool, tokens."""
    started_unix_s: float | None = None
    """start of the process, s since 1970."""


_NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_use": "vllm:kv_cache_usage_perc",
        "preemptions": "vllm:num_preemptions_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "output_tokens": "vllm:generation_tokens_total",
        "started_unix_s": "process_start_time_seconds",
    },
    "sglang": {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv_use": "sglang:token_usage",
        "preemptions": "sglang:num_retracted_requests_total",
        "prompt_tokens": "sglang:prompt_tokens_total",
        "output_tokens": "sglang:generation_tokens_total",
        "kv_tokens": "sglang:max_total_num_tokens",
        "started_unix_s": "process_start_time_seconds",
    },
}
"""Names in vLLM 0.28 to 0.33 and SGLang 0.5.23."""

_POOL_OF_VLLM = "vllm:cache_config_info"
_ONE_OF_ALL = ("kv_use", "started_unix_s")
"""Metrics averaged over the data-parallel engines behind an address; the others are summed."""


def parse_metrics(kind: str, text: str) -> EngineMetrics:
    """Parses an engine's Prometheus text.

    Args:
      kind: ``vllm`` or ``sglang``.
      text: exposition format.

    Raises:
      InputError: the text is malformed, or a value is not a finite number from 0 on.
    """
    names = _NAMES[kind]
    pool = {_POOL_OF_VLLM} if kind == "vllm" else set()
    found = _found({name: field for field, name in names.items()}, pool, text)
    if "running" not in found:
        raise InputError(f"the engine's metrics have no {names['running']}")
    return EngineMetrics(
        **{
            field.name: _together(field.name, found[field.name])
            for field in fields(EngineMetrics)
            if field.name in found
        }
    )


def parse_pool_tokens(text: str) -> float | None:
    """Size of a vLLM server's KV pool, tokens; None where the text has none.

    Raises:
      InputError: the text is malformed, or the size is not a finite number from 0 on.
    """
    tokens = _found({}, {_POOL_OF_VLLM}, text).get("kv_tokens")
    return None if tokens is None else _together("kv_tokens", tokens)


def _found(wanted: Mapping[str, str], pool: Set[str], text: str) -> dict[str, list[float]]:
    """Values of each field, one per data-parallel engine behind the address.

    Args:
      wanted: fields by the names of their metrics.
      pool: names of metrics whose labels have the size of the KV pool.
      text: exposition format.
    """
    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(_lines(text, {*wanted, *pool})):
            for sample in family.samples:
                if sample.name in wanted:
                    found.setdefault(wanted[sample.name], []).append(float(sample.value))
                elif (tokens := _pool_tokens(sample.labels)) is not None:
                    found.setdefault("kv_tokens", []).append(tokens)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"the engine's metrics are not Prometheus text: {error!r:.80}") from None
    for field, values in found.items():
        wrong = [value for value in values if not (math.isfinite(value) and value >= 0.0)]
        if wrong:
            raise InputError(f"the engine's metrics have {field} {wrong[0]:g}")
    return found


class EngineMetricsReader:
    """Reads the metrics of all engines."""

    def __init__(self, pools: Mapping[str, Pool], upstream: Upstream) -> None:
        """Args: the pools of engines, and the connections."""
        self._replicas = [replica for pool in pools.values() for replica in pool.replicas]
        self._upstream = upstream

    async def read(self) -> dict[str, dict[str, Any]]:
        """Metrics of each engine by name, or its ``error``; JSON-able."""
        found = await asyncio.gather(*map(self._read, self._replicas))
        names = [replica.spec.name for replica in self._replicas]
        return dict(zip(names, found, strict=True))

    async def _read(self, replica: Replica) -> dict[str, Any]:
        spec = replica.spec
        try:
            status, text = await ask_text(self._upstream, spec, "GET", "/metrics")
            if status != 200:
                return {"error": f"engine {spec.name} answers /metrics with status {status}"}
            return asdict(parse_metrics(spec.kind, text.decode("utf-8", "replace")))
        except EngineRefused as error:
            return {"error": str(error)}
        except InputError as error:
            return {"error": f"engine {spec.name}: {error}"}


def _together(field: str, values: list[float]) -> float:
    return sum(values) / len(values) if field in _ONE_OF_ALL else sum(values)


def _lines(text: str, names: Set[str]) -> str:
    """Lines of the wanted metrics: parsing all lines would stall every stream for milliseconds."""
    kept = (line for line in text.split("\n") if re.split(r"[{\s]", line, maxsplit=1)[0] in names)
    return "\n".join(kept) + "\n"


def _pool_tokens(labels: Mapping[str, str]) -> float | None:
    counts = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    if not all(count.isdecimal() for count in counts):  # vLLM writes None during its start
        return None
    return float(counts[0]) * float(counts[1])
