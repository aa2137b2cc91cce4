"""What tests/benchmark.sh measures, one module for each command or part."""
