"""Metrics of streams, writers and logs, for Prometheus."""
