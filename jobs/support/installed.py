"""Ends a job with one line if a library is missing. Each job imports this module first."""

import os
from importlib.util import find_spec

_missing = [name for name in ("sparkwal", "pyarrow", "click", "rich") if find_spec(name) is None]
if _missing:
    raise SystemExit(
        f"{_missing[0]} is not installed for this Python. "
        + (
            "Give it to spark-submit: --archives, or --py-files (sparkwal/docs/deploying.md)"
            if "PYSPARK_GATEWAY_PORT" in os.environ
            else "In a clone: pip install '.[spark,cli]', or run jobs/quickstart.sh once and "
            "start jobs with .venv/bin/python"
        )
    )
