"""Where the command `sparkwal` begins: what it needs is there, or a line says what is not."""

from __future__ import annotations

from importlib.util import find_spec


def run() -> None:
    """Run the command that the process was started with."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"{missing[0]} is not installed: pip install 'sparkwal[cli]'")
    from sparkwal.cli.main import main

    main(prog_name="sparkwal")
