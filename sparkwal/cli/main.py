"""The group of all commands. Each is imported when it runs: help must not wait for pyarrow."""

from __future__ import annotations

from importlib import import_module

import click

from sparkwal.cli.exits import EXIT_CODES, as_exit
from sparkwal.errors import SparkWalError

# Each command's module holds it as `command`. The line is its help in the list: a test keeps
# both equal.
COMMANDS = {
    "status": "How far the log at PATH is, who leads it, and what of it is in its table.",
}


class Commands(click.Group):
    """The commands of COMMANDS, of which only the one that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"sparkwal.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SparkWalError as error:
            raise as_exit(error) from None


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"max_content_width": 100})
@click.version_option(package_name="sparkwal", prog_name="sparkwal")
def main() -> None:
    """Look at a write-ahead log on object storage, and prove it. Needs neither Spark nor Java."""
