"""The group of all commands. Each is imported when it runs: help must not wait for pyarrow."""

from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from sparkwal.cli.exit_codes import EXIT_CODES, ended_quietly, takes_colours

# A command's module holds it as `command`; its docstring is the rest of its help.
COMMANDS = {
    "status": "How far the log at PATH is, who leads it, and what of it is in its table.",
    "log": "The records of the log at PATH, newest first: commits, and who came to lead it.",
    "show": "Everything of the record at POSITION of the log at PATH, checked to the last byte.",
    "at": "The first position of the log at PATH that is not older than TIME.",
    "consumers": "Who reads the log at PATH, how far they are, and whom its floor waits for.",
    "verify": "Read every byte of the log at PATH and check it; works while others write.",
    "collect": "What the log at PATH does not need any more; with --delete it is deleted.",
    "checkpoint": "A local checkpoint folder for the query NAME of the log at PATH, made where it "
    "is needed.",
    "cost": "What the log at PATH costs, by period: its writers' requests and its storage, "
    "at list prices.",
    "report": "The past of the log at PATH as one HTML page: rates, latency, leaders, pauses, "
    "cost.",
    "sql": "The answer to QUERY, one SELECT in DuckDB's SQL, about the log at PATH.",
    "cat": "Rows of the log at PATH as a table, JSON lines, CSV or Arrow.",
    "head": "The first rows of the log at PATH, from its floor on.",
    "tail": "The newest rows of the log at PATH; with -f those that come too.",
    "metrics": "The numbers of the log at PATH as Prometheus reads them, once or over HTTP.",
    "doctor": "Why a stream does not write to PATH: each line is ok, or says what to do.",
    "repair": "Repair the damaged record at POSITION of the log at PATH, or give it up.",
    "help": "A page of the documentation, or the sections about TOPIC.",
    "prove-store": "Prove that the store at URL is fit for a log: its conditional writes raced.",
}


# Of those that are not in a module of their own.
_MODULES = {
    "at": "status",
    "consumers": "status",
    "show": "checks",
    "verify": "checks",
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
    """Its line of COMMANDS begins its help."""
    module = import_module(f"sparkwal.cli.{_MODULES.get(name) or name.replace('-', '_')}")
    command: click.Command = getattr(module, name if name in _MODULES else "command")
    command.help = f"{COMMANDS[name]}\n\n{cleandoc(command.help or '')}"
    return command


class Commands(click.Group):
    """What it lists is names and lines; the command itself is found when it runs."""

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
        with ended_quietly():  # --help is printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        if not takes_colours():
            ctx.color = False
        with ended_quietly():
            return super().invoke(ctx)


@click.group(
    cls=Commands,
    commands=[click.Command(name, short_help=COMMANDS[name]) for name in COMMANDS],
    epilog=EXIT_CODES,
    context_settings={"max_content_width": 100},
)
@click.version_option(package_name="sparkwal", prog_name="sparkwal")
def main() -> None:
    """Look at a write-ahead log on object storage, and prove it. Needs neither Spark nor Java."""
