"""What a log does, as numbers: for Prometheus, or by choice OpenTelemetry."""
