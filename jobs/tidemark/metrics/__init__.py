"""Metrics of topologies for Prometheus and OpenTelemetry."""
