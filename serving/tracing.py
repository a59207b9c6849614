"""Traces by OpenTelemetry's own library: a span for each request, sent where OTEL_EXPORTER_OTLP_ENDPOINT says."""

from __future__ import annotations

from typing import Any

from bertfuse.errors import BertfuseError

_PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http opentelemetry-instrumentation-asgi"


def traced(app: Any) -> Any:
    """The application with a span around each request. Raises BertfuseError where the packages are missing."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise BertfuseError(f"--tracing: {error.name} is not installed: pip install {_PACKAGES}") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "bertfuse"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return OpenTelemetryMiddleware(app, excluded_urls="health,ping,metrics")
