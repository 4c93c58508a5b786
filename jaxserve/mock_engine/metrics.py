"""Prometheus metrics under vLLM's names, with vLLM's bucket edges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from jaxserve.mock_engine.machine import Machine
from jaxserve.sim.machine.memory import BLOCK_TOKENS

_TTFT_EDGES_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_EDGES_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_EDGES_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("Time to first token.", _TTFT_EDGES_S),
    "vllm:inter_token_latency_seconds": ("Time between the steps of a request.", _TOKEN_EDGES_S),
    "vllm:request_time_per_output_token_seconds": (
        "Time per output token.",
        _TOKEN_EDGES_S,
    ),
    "vllm:e2e_request_latency_seconds": ("From arrival to the last token.", _REQUEST_EDGES_S),
    "vllm:request_queue_time_seconds": ("Time in the queue.", _REQUEST_EDGES_S),
    "vllm:request_prefill_time_seconds": (
        "From first step to first token.",
        _REQUEST_EDGES_S,
    ),
    "vllm:request_decode_time_seconds": ("From the first token to the last.", _REQUEST_EDGES_S),
    "jaxserve:host_late_seconds": ("How late the host hands over a step.", _TTFT_EDGES_S),
}
_LENGTHS: Mapping[str, str] = {
    "vllm:request_prompt_tokens": "Prompt tokens of a request.",
    "vllm:request_generation_tokens": "Output tokens of a request.",
    "vllm:request_max_num_generation_tokens": "Output tokens of the longest of n outputs.",
    "vllm:request_params_max_tokens": "Field max_tokens of a request.",
}
"""Histograms of tokens, with edges 1, 2, 5, 10 and so on up to the longest sequence."""
_COUNTERS: Mapping[str, str] = {
    "vllm:num_preemptions": "Preemptions.",
    "vllm:prompt_tokens": "Prompt tokens of requests that were prefilled.",
    "vllm:generation_tokens": "Output tokens.",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in a prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found there.",
}
_DRAFT_COUNTERS: Mapping[str, str] = {
    "vllm:spec_decode_num_drafts": "Steps of a sequence with drafts.",
    "vllm:spec_decode_num_draft_tokens": "Tokens drafted.",
    "vllm:spec_decode_num_accepted_tokens": "Tokens drafted and accepted.",
}
_FINISHED = ("stop", "length", "abort")

Gauges = Callable[[], Mapping[str, float]]
"""Returns the present ``running``, ``waiting`` and ``kv_usage``."""


class _Histogram:
    """A histogram that adds many equal observations at once, unlike prometheus_client's."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._edges, value)] += count
        self._sum += value * count

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        total, found = 0, []
        for edge, count in zip((*map(str, self._edges), "+Inf"), self._counts, strict=True):
            total += count
            found.append((edge, float(total)))
        return found, self._sum


class MetricsCollector(Collector):
    """Counters and histograms, filled at the end of steps, in the GPU's time."""

    def __init__(self, machine: Machine, gauges: Gauges) -> None:
        """Args: the served machine, and the gauges to read at every scrape."""
        settings = machine.settings
        self._gauges = gauges
        self._labels = {"model_name": settings.served_name, "engine": "0"}
        longest = settings.max_model_len
        lengths = tuple(float(edge) for edge in _one_two_five(longest))
        self._families = {**_HISTOGRAMS, **{name: (_LENGTHS[name], lengths) for name in _LENGTHS}}
        self._histograms = {name: _Histogram(edges) for name, (_, edges) in self._families.items()}
        self._texts = {**_COUNTERS, **(_DRAFT_COUNTERS if settings.speculation_depth else {})}
        self._counts = dict.fromkeys(self._texts, 0.0)
        self._finished: dict[str, int] = dict.fromkeys(_FINISHED, 0)
        self._config = {
            "block_size": str(BLOCK_TOKENS),
            "num_gpu_blocks": str(machine.kv_blocks),
            "gpu_memory_utilization": str(settings.memory_utilization),
            "enable_prefix_caching": "False",
            "engine": "0",
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, name: str, value: float, count: int = 1) -> None:
        """Adds observations, in seconds or tokens, to the histogram ``name``."""
        self._histograms[name].add(value, count)

    def count(self, name: str, amount: float) -> None:
        """Adds to the counter ``name``."""
        self._counts[name] += amount

    def finished(self, reason: str) -> None:
        """Counts a request that ended by ``stop``, ``length`` or ``abort``."""
        self._finished[reason] += 1

    def text(self) -> bytes:
        """All metrics in Prometheus's exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """All metric families, for prometheus_client."""
        now, labels = self._gauges(), list(self._labels)
        values = list(self._labels.values())
        for name, text, key in (
            ("vllm:num_requests_running", "Requests that run.", "running"),
            ("vllm:num_requests_waiting", "Requests that wait.", "waiting"),
            ("vllm:kv_cache_usage_perc", "Share of the KV budget in use, 0 to 1.", "kv_usage"),
        ):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            gauge.add_metric(values, now[key])
            yield gauge
        name, text = "vllm:num_requests_waiting_by_reason", "Requests that wait, by reason."
        reasons = GaugeMetricFamily(name, text, labels=[*labels, "reason"])
        for reason, number in (("capacity", now["waiting"]), ("deferred", 0.0)):
            reasons.add_metric([*values, reason], number)
        yield reasons
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache.", labels=list(self._config)
        )
        config.add_metric(list(self._config.values()), 1.0)
        yield config
        for name, text in self._texts.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            counter.add_metric(values, self._counts[name])
            yield counter
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=[*labels, "finished_reason"]
        )
        for reason, number in self._finished.items():
            ended.add_metric([*values, reason], number)
        yield ended
        for name, (text, _) in self._families.items():
            histogram = HistogramMetricFamily(name, text, labels=labels)
            histogram.add_metric(values, *self._histograms[name].buckets())
            yield histogram


def _one_two_five(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    decade = 1
    while decade <= most:
        yield from (mantissa * decade for mantissa in (1, 2, 5) if mantissa * decade <= most)
        decade *= 10
