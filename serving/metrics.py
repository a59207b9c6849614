"""What /metrics says, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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

    def text(self) -> bytes:
        return generate_latest(self.registry)
