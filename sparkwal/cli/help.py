"""`sparkwal help`: the documentation on the terminal, from the installed package."""

import re
from importlib.resources import files

import click

from sparkwal.cli.exit_codes import Refused

_HEADING = re.compile(r"(?m)^#{1,6} +(.+)$")


def pages() -> dict[str, str]:
    """The Markdown text of each page of the documentation, by the page's name."""
    package = files("sparkwal")
    texts = {
        file.name.removesuffix(".md"): file.read_text(encoding="utf-8")
        for file in package.joinpath("docs").iterdir()
        if file.name.endswith(".md")
    }
    texts["protocol"] = package.joinpath("PROTOCOL.md").read_text(encoding="utf-8")
    return dict(sorted(texts.items()))


def sections(text: str) -> list[tuple[str, str]]:
    """The heading and the text of each section, with its subsections.

    A line that begins with # inside a code block is no heading.
    """
    blocks = [match.span() for match in re.finditer(r"(?ms)^```.*?^```", text)]
    headings = [
        match
        for match in _HEADING.finditer(text)
        if not any(start <= match.start() < end for start, end in blocks)
    ]
    results = []
    for index, heading in enumerate(headings):
        level = heading[0].index(" ")
        ends = (other.start() for other in headings[index + 1 :] if other[0].index(" ") <= level)
        results.append((heading[1], text[heading.start() : next(ends, len(text))].strip()))
    return results


def matching(topic: str) -> list[str]:
    """The page called `topic`, or the sections whose headings contain these words."""
    texts = pages()
    if page := texts.get(topic.lower().removesuffix(".md")):
        return [page.strip()]
    parts = [
        (f"{name}: {heading}", text)
        for name, page in texts.items()
        for heading, text in sections(page)
        if topic.lower() in heading.lower()
    ]
    return [f"({title})\n\n{text}" for title, text in parts]


@click.command()
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """TOPIC is the name of a page, or words of a heading. Without TOPIC, list the pages. For the
    options of a command, run sparkwal COMMAND --help.

    \b
    sparkwal help operations
    sparkwal help "is damaged"
    """
    if topic is None:
        for name, page in pages().items():
            title = next((heading for heading, _ in sections(page)), "")
            click.echo(f"{name:<14} {title}")
        return
    texts = matching(topic)
    if not texts:
        raise Refused(f"no page or heading contains {topic!r}; sparkwal help lists the pages")
    click.echo_via_pager("\n\n".join(texts) + "\n")
