"""What jobs/benchmark.py measures, one module for each command or part."""
