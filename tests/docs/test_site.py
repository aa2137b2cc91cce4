"""The site: built as the checks build it, and looked at."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import sparkwal
from tests.docs.pages import PAGES, ROOT
from tests.docs.site import BUILT, TOOLS, build

pytestmark = pytest.mark.process

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def copy(folder: Path) -> Path:
    """All that the site is made from."""
    for name in ("sparkwal", "conf", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for page in PAGES:
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, folder / page)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy(tmp_path_factory.mktemp("tree"))
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder / BUILT


def test_each_public_name_has_a_place_in_the_reference(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="([\w.]+)"', text))
    assert {f"sparkwal.{name}" for name in sparkwal.__all__} <= anchors
    assert {"sparkwal.Ticket.result", "sparkwal.Lifecycle.run_once"} <= anchors


def test_a_page_leads_from_a_public_name_to_the_reference(site: Path) -> None:
    text = (site / "operations.html").read_text()
    assert 'href="reference/errors.html#sparkwal.FencedError"' in text


def test_the_page_of_the_appender_explains_rejected_rows(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference/appender.html").read_text())
    assert "Ticket.result of that append raises OptionError" in " ".join(text.split())


def test_search_needs_no_server(site: Path) -> None:
    """A page that is opened as a file may load scripts, and neither JSON nor a worker."""
    assert (site / "search/search_index.js").read_text().startswith("var __index = ")
    text = (site / "reference/log.html").read_text()
    assert '<script src="../conf/iframe-worker.js"' in text
    assert (site / "conf/iframe-worker.js").exists()


def test_no_page_names_a_script_or_style_of_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"https?:", page.read_text()
        )


def test_a_notebook_is_a_page(site: Path) -> None:
    text = (site / "notebooks/lake.html").read_text()
    assert 'src="data:image/png;base64,' in text and "<table" in text
    assert 'href="../lifecycle.html' in text
    assert 'href="notebooks/explore.html"' in (site / "index.html").read_text()


def test_the_tools_of_programs_have_a_reference(site: Path) -> None:
    for title, (_, names) in TOOLS.items():
        text = (site / f"reference/{title.lower()}.html").read_text()
        assert [name for name in names if f'id="sparkwal.{name}"' not in text] == []


@contextmanager
def served(site: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of the site, and what its pages tried to load from elsewhere."""
    reports: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            allowed = "default-src 'self' data: 'unsafe-inline'; report-uri /elsewhere"
            self.send_header("Content-Security-Policy", allowed)
            super().end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reports.append(json.loads(body)["csp-report"]["blocked-uri"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    handler = partial(Handler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", reports
        server.shutdown()


@pytest.mark.parametrize("page", ["index.html", "concepts.html", "reference/appender.html"])
def test_a_page_loads_nothing_from_elsewhere(page: str, site: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is on PATH: {', '.join(BROWSERS)}")
    with served(site) as (address, elsewhere):
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000"]
        command += ["--dump-dom", f"{address}/{page}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 'data-md-component="search"' in shown
    assert elsewhere == []


@pytest.mark.slow
def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    tree = copy(tmp_path)
    page = tree / "sparkwal/docs/stores.md"
    links = "[a](gone.md) [b](options.md#gone) [c][sparkwal.gone] [d](../../jobs/gone.py)"
    page.write_text(page.read_text() + links)
    built = build(tree)
    assert built.returncode != 0
    for target in ("'gone.md'", "'options.md#gone'", "'sparkwal.gone'", "jobs/gone.py"):
        assert re.search(rf"WARNING.*{re.escape(target)}", built.stderr), built.stderr
