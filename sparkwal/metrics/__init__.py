"""What a log does, as numbers for Prometheus."""
