"""`sparkwal help` prints the documentation, and errors name topics that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkwal.cli.help import matching, pages, sections
from tests.cli.logs import ran

ROOT = Path(__file__).parents[2]


def test_without_a_topic_it_lists_every_page_with_its_title() -> None:
    listed = ran("help").splitlines()
    assert len(listed) == len(pages())
    assert any(line.split(maxsplit=1) == ["operations", "Operations"] for line in listed)


def test_a_page_is_printed_whole() -> None:
    assert ran("help", "operations").strip() == pages()["operations"].strip()


def test_words_of_a_heading_print_its_section_and_no_other() -> None:
    shown = ran("help", "damaged or gone")
    assert "## A record or an object is damaged or gone" in shown
    assert "## A log is moved" not in shown


def test_an_unknown_topic_is_refused() -> None:
    assert "no page or heading contains 'zebra'" in ran("help", "zebra", code=2)


def test_a_comment_in_a_code_block_is_no_heading() -> None:
    text = "# One\n\n```bash\n# no heading\n```\n\n## Two\n\ntext"
    assert [heading for heading, _ in sections(text)] == ["One", "Two"]


def topics() -> list[str]:
    texts = (path.read_text() for path in sorted((ROOT / "sparkwal").rglob("*.py")))
    topic = re.compile(r"sparkwal help (\"[^\"]+\"|\w+)")
    named = (words for text in texts for words in topic.findall(text))
    return sorted({words.strip('"') for words in named} - {"lists", "operations"})


@pytest.mark.parametrize("topic", topics())
def test_every_topic_that_an_error_names_exists(topic: str) -> None:
    assert matching(topic)
