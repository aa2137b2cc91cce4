"""The group of all commands. A command's module is imported when it runs, so that `--help` does
not wait for pyarrow."""

from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from sparkwal.cli.exit_codes import EXIT_CODES, allows_colours, errors_as_exit_codes

# The first line of each command's help. The docstring of its function follows.
COMMANDS = {
    "status": "Show the head of the log at PATH, its leader, its size and its table.",
    "log": "List the records of the log at PATH, newest first: commits and new leaders.",
    "show": "Show the record at POSITION of the log at PATH and check all of its bytes.",
    "at": "Find the first position of the log at PATH that is not older than TIME.",
    "consumers": "List the consumers of the log at PATH, and which of them hold its floor back.",
    "queries": "List the streaming queries of the log at PATH: where their sources stand, and from "
    "where each can be forked.",
    "audit": "Prove from the records at PATH that the microbatches of its queries follow each "
    "other without hole or overlap.",
    "diff": "Compare a query of the log at PATH with one of another log, over the same sources.",
    "verify": "Read every byte of the log at PATH and check it; works while others write.",
    "erased": "Search every object of the log at PATH and of its table for a value.",
    "collect": "List the objects that the log at PATH no longer needs; --delete deletes them.",
    "refused": "Count and list the rows of the log at PATH that its table refused.",
    "segment": "Copy each thousand old records of the log at PATH into one object, for readers of "
    "long ranges.",
    "checkpoint": "Build a local checkpoint folder for the query NAME from the log at PATH, if it "
    "is needed.",
    "cost": "Estimate what the log at PATH costs in each period: its writers' requests and its "
    "storage, at list prices.",
    "report": "Write the past of the log at PATH as one HTML page: rates, latency, leaders, "
    "pauses, cost.",
    "sql": "Answer QUERY, one SELECT in DuckDB's SQL, about the log at PATH.",
    "cat": "Print rows of the log at PATH as a table, JSON lines, CSV or Arrow.",
    "head": "Print the first rows of the log at PATH, from its floor on.",
    "tail": "Print the newest rows of the log at PATH; with -f also new ones.",
    "metrics": "Print the metrics of the log at PATH for Prometheus, once or over HTTP.",
    "doctor": "Check why a stream does not write to PATH, and print what to do.",
    "repair": "Repair the damaged record at POSITION of the log at PATH, or give it up.",
    "help": "Print a page of the documentation, or the sections about TOPIC.",
    "prove-store": "Prove that the store at URL is fit for a log: race its conditional writes.",
}


# Modules of several commands. Any other command is the function `command` in its own module.
_MODULES = {
    "at": "status",
    "consumers": "status",
    "show": "checks",
    "verify": "checks",
    "erased": "checks",
    "queries": "queries",
    "audit": "queries",
    "diff": "queries",
    "checkpoint": "operate",
    "collect": "operate",
    "repair": "operate",
    "cost": "report",
    "metrics": "status",
    "cat": "rows",
    "head": "rows",
    "tail": "rows",
    "sql": "rows",
}


@cache
def find(name: str) -> click.Command:
    """Import a command. Its help is its line of COMMANDS and the docstring of its function."""
    module = import_module(f"sparkwal.cli.{_MODULES.get(name) or name.replace('-', '_')}")
    command: click.Command = getattr(module, name if name in _MODULES else "command")
    command.help = f"{COMMANDS[name]}\n\n{cleandoc(command.help or '')}"
    return command


class Commands(click.Group):
    """Lists names and first lines of help, and imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, others = super().resolve_command(ctx, args)
        return name, listed and find(args[0]), others

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with errors_as_exit_codes():  # click prints --help here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        if not allows_colours():
            ctx.color = False
        with errors_as_exit_codes():
            return super().invoke(ctx)


@click.group(
    cls=Commands,
    commands=[click.Command(name, short_help=COMMANDS[name]) for name in COMMANDS],
    epilog=EXIT_CODES,
    context_settings={"max_content_width": 100},
)
@click.version_option(package_name="sparkwal", prog_name="sparkwal")
def main() -> None:
    """Inspect and check a write-ahead log on object storage. Needs neither Spark nor Java."""
