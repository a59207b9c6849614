"""What /metrics says, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = tuple(2**power for power in range(3, 17))


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = {"registry": self.registry}
        self.requests = Counter("bertfuse_requests", "Requests by answer", ["endpoint", "status"], **of)
        self.seconds = Histogram("bertfuse_request_seconds", "Until the answer", ["endpoint"], buckets=SECONDS, **of)
        self.texts = Counter("bertfuse_texts", "Texts answered", **of)
        self.tokens = Counter("bertfuse_tokens", "Tokens answered, special ones included", **of)
        self.ongoing = Gauge("bertfuse_requests_ongoing", "Requests without an answer yet", **of)
        self.batch_tokens = Histogram("bertfuse_batch_tokens", "Tokens of a batch", buckets=TOKENS, **of)
        self.batch_requests = Histogram("bertfuse_batch_requests", "Requests of a batch", buckets=TOKENS[:8], **of)
        self.retries = Counter("bertfuse_retries", "Batches asked for again because a replica had ended", **of)

    def collected(self) -> list[Metric]:
        return list(self.registry.collect())


def text_of(processes: Sequence[list[Metric]]) -> bytes:
    """The sums over processes, each given by its `Metrics.collected`; of times the earliest."""
    return generate_latest(_Sums(processes))


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
