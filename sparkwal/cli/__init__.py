"""The command `sparkwal`. It begins here: what it needs is there, or a line says what is not."""

import os
import signal
import sys
from importlib.util import find_spec


def run() -> None:
    missing = [x for x in ("click", "rich", "duckdb", "matplotlib") if find_spec(x) is None]
    if missing:
        raise SystemExit(f"{missing[0]} is not installed: pip install 'sparkwal[cli]'")
    try:
        try:
            from sparkwal.cli.exit_codes import hear_signals, spells_out_the_rest
            from sparkwal.cli.main import main

            hear_signals()
            spells_out_the_rest()
            main(prog_name="sparkwal")
        except SystemExit as end:
            if isinstance(end.code, int) and end.code > 128:
                # Stopped: requests that are under way, and their retries, are not waited for.
                sys.stderr.flush()
                os._exit(end.code)
            raise
    except KeyboardInterrupt:  # also a second one, while the first ends the command
        os._exit(128 + signal.SIGINT)
