"""What the records of a log tell of its past: rates, latency, terms, pauses, cost."""
