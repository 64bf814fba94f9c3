# SPDX-License-Identifier: Apache-2.0
"""Spans of sampled requests for an OpenTelemetry collector. Only this package imports opentelemetry."""
