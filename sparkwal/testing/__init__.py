"""Tools to test a log against failing stores; used by the project's own tests and benchmarks."""
