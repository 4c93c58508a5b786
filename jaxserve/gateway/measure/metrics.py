"""Prometheus metrics of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxserve.gateway.measure.records import RequestRecord

_PREFIX = "jaxserve_gateway"


def _edges(mantissas: tuple[float, ...], powers: range, *last: float) -> tuple[float, ...]:
    steps = [round(mantissa * 10.0**power, 6) for power in powers for mantissa in mantissas]
    return (*steps, *last)


# The engines' own edges (0.1, 0.25, 0.5 s) are too coarse to tell a quantile of one window.
_TOKEN_EDGES_S = _edges((1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8), range(-3, 0), 1.0, 2.0, 5.0)
_REQUEST_EDGES_S = _edges((1, 1.6, 2.5, 4, 6.3), range(-3, 2), 100.0, 250.0, 600.0)

Gauges = Iterable[tuple[str, str, str, Mapping[str, float]]]
"""Name, description, label, and values by label of the gauges at this moment."""


class GatewayMetrics:
    """Counters and histograms of requests, and gauges."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        """Args: function that computes the gauges on each read."""
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, edges_s: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"{_PREFIX}_{name}_seconds", text, ["class"], registry=registry, buckets=edges_s
            )

        self._arrivals = counter("arrivals", "Requests that arrived.", "class", "dialect")
        self._ended = {
            "completed": counter("completed", "Requests answered by an engine.", "class"),
            "rejected": counter("rejected", "Requests turned away.", "class", "reason"),
            "cancelled": counter("cancelled", "Requests that clients left.", "class", "reason"),
            "failed": counter("failed", "Requests that failed.", "class", "reason"),
        }
        self._good = counter("good", "Requests completed inside their objectives.", "class")
        self._judged = counter(
            "judged",
            "Requests that met or missed their objectives, refused ones included.",
            "class",
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, by the engines' count.")
        self._output_tokens = counter("output_tokens", "Output tokens, by the engines' count.")
        self._bytes_in = counter("received_bytes", "Bytes of requests' bodies.")
        self._bytes_out = counter("sent_bytes", "Bytes of answers' bodies.")
        self._retries = counter("retries", "Engines that did not begin, so another was tried.")
        self._queue = histogram("queue", "Wait for a place at an engine.", _REQUEST_EDGES_S)
        self._ttft = histogram("ttft", "Time to first token of streams.", _REQUEST_EDGES_S)
        self._tpot = histogram("tpot", "Time per output token of streams.", _TOKEN_EDGES_S)
        self._itl = histogram("itl", "Time between events with output.", _TOKEN_EDGES_S)
        self._e2e = histogram("e2e", "From arrival to the last byte.", _REQUEST_EDGES_S)
        registry.register(_GaugeCollector(gauges))

    def arrived(self, record: RequestRecord) -> None:
        """Counts a request that arrived."""
        self._arrivals.labels(record.class_name, record.dialect).inc()

    def admitted(self, record: RequestRecord) -> None:
        """Observes the wait of a request that got a place."""
        if record.admitted_s is not None:
            wait_s = record.admitted_s - record.arrival_s
            self._queue.labels(record.class_name).observe(wait_s)

    def first_token(self, record: RequestRecord) -> None:
        """Observes the time to the first token of a stream."""
        if record.ttft_s is not None:
            self._ttft.labels(record.class_name).observe(record.ttft_s)

    def gaps(self, class_name: str) -> Histogram:
        """Histogram of the inter-token latency of a class."""
        return self._itl.labels(class_name)

    def ended(self, record: RequestRecord) -> None:
        """Counts a request that ended."""
        labels = [record.class_name]
        if record.outcome != "completed":
            labels.append(record.reason)
        elif record.ended_s is not None:
            self._e2e.labels(record.class_name).observe(record.ended_s - record.arrival_s)
        self._ended[record.outcome].labels(*labels).inc()
        if record.good is not None or record.outcome in ("rejected", "failed"):
            self._judged.labels(record.class_name).inc()
        if record.good:
            self._good.labels(record.class_name).inc()
        if record.tpot_s is not None and record.outcome == "completed":
            self._tpot.labels(record.class_name).observe(record.tpot_s)
        self._prompt_tokens.inc(record.prompt_tokens or 0)
        self._output_tokens.inc(record.output_tokens or 0)
        self._bytes_in.inc(record.bytes_in)
        self._bytes_out.inc(record.bytes_out)
        self._retries.inc(max(record.attempts - 1, 0))

    def text(self) -> bytes:
        """All metrics in the exposition format."""
        return generate_latest(self._registry)


class _GaugeCollector(Collector):
    """Gauges, computed on each read."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, text, label, values in self._gauges():
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
            for value, number in values.items():
                family.add_metric([value], number)
            yield family
