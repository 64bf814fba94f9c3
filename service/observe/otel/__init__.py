"""Spans of sampled requests for an OpenTelemetry collector. Only this package imports opentelemetry."""
