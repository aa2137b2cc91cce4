"""The benchmarks of tests/benchmark.sh, one module for each command or part."""
