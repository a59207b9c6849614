"""Traces by OpenTelemetry's own library: a span for each request, sent where OTEL_EXPORTER_OTLP_ENDPOINT says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bertfuse.errors import BertfuseError

_PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-instrumentation-asgi")


def check_tracing() -> None:
    """Raises BertfuseError where a package is missing."""
    for package in _PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            why = f"--tracing: {package} is not installed: pip install {' '.join(_PACKAGES)}"
            raise BertfuseError(why) from None


def traced(app: Any) -> Any:
    """The application with a span around each request."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "bertfuse"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    # Spans of each ASGI message within a request's would be four for one.
    return OpenTelemetryMiddleware(app, excluded_urls="health,ping,metrics", exclude_spans=["receive", "send"])


def flush() -> None:
    """Sends the spans that have ended, for two seconds at most."""
    from opentelemetry import trace

    trace.get_tracer_provider().force_flush(2000)  # type: ignore[attr-defined]  # the SDK's has it
