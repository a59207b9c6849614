"""--tracing: a collector gets a span for each request, in the trace that its traceparent names."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.corpora import model_folder
from tests.servers import eventually, served

for package in ("opentelemetry.instrumentation.asgi", "opentelemetry.exporter.otlp.proto.http"):
    pytest.importorskip(package)

pytestmark = pytest.mark.slow


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What a collector has been sent."""
    found: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            found.append(gzip.decompress(sent) if self.headers.get("content-encoding") == "gzip" else sent)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}")
        yield found
        collector.shutdown()


def test_spans(bodies: list[bytes]) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    trace, parent = random.randbytes(16), random.randbytes(8)
    with served(model_folder("encoder"), "--tracing") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
        for path, sent in (("/embed", {"inputs": "anna"}), ("/embed", {"inputs": []}), ("/health", None)):
            headers = {"traceparent": f"00-{trace.hex()}-{parent.hex()}-01"}
            connection.request("POST" if sent else "GET", path, sent and json.dumps(sent), headers)
            connection.getresponse().read()
        connection.close()
        assert server.stop() == 0  # what has not been sent is sent now
    assert eventually(lambda: bool(bodies))
    spans = [
        span
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [(span.name, span.trace_id, span.parent_span_id) for span in spans] == [("POST /embed", trace, parent)] * 2
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in spans)
    statuses = [
        attribute.value.int_value for span in spans for attribute in span.attributes if "status" in attribute.key
    ]
    assert statuses == [200, 400]
