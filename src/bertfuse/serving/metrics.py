"""What /metrics says, in Prometheus' text format: text-embeddings-inference's names, and a few of our own.

With PROMETHEUS_MULTIPROC_DIR set before this is imported, every process writes its numbers to files in that folder and
any of them can tell the sums.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .resident import resident_bytes
from .work import Timing

SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
SIZES = tuple(2**power for power in range(17))


class Metrics:
    """Of one process that speaks HTTP. The names beginning with te_ are those of text-embeddings-inference 1.9."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = {"registry": self.registry}
        self._count = Counter("te_request_count", "Requests", ["method"], **of)
        self._success = Counter("te_request_success", "Requests that were answered", ["method"], **of)
        self._failure = Counter("te_request_failure", "Requests that were refused or failed", ["err"], **of)
        self._duration = Histogram("te_request_duration", "Seconds until the answer", buckets=SECONDS, **of)
        self.tokenization = Histogram(
            "te_request_tokenization_duration", "Seconds of tokenising a request", buckets=SECONDS, **of
        )
        self._queued = Histogram(
            "te_request_queue_duration", "Seconds until a request's first batch began", buckets=SECONDS, **of
        )
        self._inference = Histogram(
            "te_request_inference_duration", "Seconds that a request's first batch ran", buckets=SECONDS, **of
        )
        self._texts = Counter("te_embed_count", "Texts answered", ["model"], **of)
        self._waiting = Gauge("te_queue_size", "Requests waiting for an engine", multiprocess_mode="mostrecent", **of)
        self._batch_requests = Histogram("te_batch_next_size", "Requests in a batch", buckets=SIZES[:11], **of)
        self._batch_tokens = Histogram("te_batch_next_tokens", "Tokens in a batch", buckets=SIZES, **of)
        self._requests = Counter("bertfuse_requests", "Requests by route and status", ["endpoint", "status"], **of)
        self._tokens = Counter("bertfuse_tokens", "Tokens answered, special ones included", ["model"], **of)
        self.ongoing = Gauge(
            "bertfuse_requests_ongoing", "Requests without an answer yet", multiprocess_mode="livesum", **of
        )
        self.retries = Counter("bertfuse_retries", "Requests asked for again because an engine had ended", **of)
        self._children: dict[tuple[str, int], tuple[Counter, ...]] = {}

    def answered(self, endpoint: str, status: int, kind: str, seconds: float) -> None:
        """`kind` is the error's, as text-embeddings-inference names it; "" for an answer."""
        found = self._children.get((endpoint, status))
        if found is None:  # looking labels up costs more than counting
            last = self._failure.labels(kind.lower()) if kind else self._success.labels(endpoint.strip("/"))
            found = (self._requests.labels(endpoint, status), self._count.labels(endpoint.strip("/")), last)
            self._children[endpoint, status] = found
        for counter in found:
            counter.inc()
        self._duration.observe(seconds)

    def ran(self, model: str, texts: int, tokens: int, timing: Timing) -> None:
        self._texts.labels(model).inc(texts)
        self._tokens.labels(model).inc(tokens)
        self._queued.observe(timing.queue / 1e9)
        self._inference.observe(timing.run / 1e9)
        self._batch_requests.observe(timing.batch_requests)
        self._batch_tokens.observe(timing.batch_tokens)
        self._waiting.set(timing.waiting)

    def collected(self) -> list[Metric]:
        return list(self.registry.collect())

    def text(self) -> bytes:
        """Of all processes that share the folder, else of this one."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        everywhere = CollectorRegistry()
        multiprocess.MultiProcessCollector(everywhere)
        everywhere.register(_Memory())
        return generate_latest(everywhere)


def text_of(processes: Sequence[list[Metric]]) -> bytes:
    """The sums over processes without a common folder, each given by its `Metrics.collected`; of times the earliest."""
    return generate_latest(_Sums(processes))


class _Memory(Collector):
    """Of the server's processes, by their kind; Linux tells it."""

    def collect(self) -> Iterator[Metric]:
        found = GaugeMetricFamily("bertfuse_resident_bytes", "Memory of the server's processes", labels=["process"])
        server = os.getppid()
        sizes: Counts[str] = Counts()
        with contextlib.suppress(OSError):
            for child in _children(str(server)):
                with contextlib.suppress(OSError):  # it has ended
                    called = re.search(
                        rb"bertfuse\.serving\.(\w+)_process", Path(f"/proc/{child}/cmdline").read_bytes()
                    )
                    sizes[called[1].decode() if called else "other"] += resident_bytes(child)
            sizes["supervisor"] = resident_bytes(str(server))
        for kind, size in sizes.items():
            found.add_metric([kind], size)
        yield found


def _children(process: str) -> Iterator[str]:
    """Its children, and theirs."""
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        yield child
        with contextlib.suppress(OSError):
            yield from _children(child)


class _Sums(CollectorRegistry):
    def __init__(self, processes: Sequence[list[Metric]]) -> None:
        super().__init__()
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        families = [family for process in self._processes for family in process]
        for name in dict.fromkeys(family.name for family in families):
            alike = [family for family in families if family.name == name]
            found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
            for sample in (sample for family in alike for sample in family.samples):
                key = (sample.name, tuple(sample.labels.items()))
                together = min if sample.name.endswith("_created") else sum
                found[key] = together([found[key], sample.value]) if key in found else sample.value
            total = Metric(name, alike[0].documentation, alike[0].type, alike[0].unit)
            for (of, labels), value in found.items():
                total.add_sample(of, dict(labels), value)
            yield total
