"""The entry point of the command `sparkwal`."""

import os
import signal
import sys
from importlib.util import find_spec

from sparkwal.errors import install_extra


def run() -> None:
    """Run the command. If a library of the extra `cli` is missing, print how to install it."""
    libraries = ("click", "rich", "duckdb", "matplotlib")
    missing = [library for library in libraries if find_spec(library) is None]
    if missing:
        raise SystemExit(f"{missing[0]} is not installed: {install_extra('cli')}")
    try:
        try:
            from sparkwal.cli.exit_codes import escape_unencodable, handle_signals
            from sparkwal.cli.main import main

            handle_signals()
            escape_unencodable()
            main(prog_name="sparkwal")
        except SystemExit as end:
            if isinstance(end.code, int) and end.code > 128:
                # A signal stopped the command: do not wait for requests in flight or their retries.
                sys.stderr.flush()
                os._exit(end.code)
            raise
    except KeyboardInterrupt:  # possibly a second one, while the first ends the command
        os._exit(128 + signal.SIGINT)
