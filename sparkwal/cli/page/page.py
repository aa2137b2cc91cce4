"""The whole page of a report: nothing that it needs lies elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from sparkwal.cli.page import sections
from sparkwal.cli.page.series import dense
from sparkwal.cli.page.text import safe, when


def page(document: dict[str, Any]) -> str:
    """The HTML of `history.document.document`."""
    style, script = _file("style.css"), _file("script.js")
    time, curves = dense(document)
    drawn = {
        key: {
            "start_ms": time.start_ms, "width_ms": time.width_ms, "slots": time.slots,
            "curves": [[curve.name, curve.look, curve.values] for curve in those],
        }
        for key, those in curves.items()
    }  # fmt: skip
    log = document["log"]
    # Nothing is loaded, and no text of the log becomes a script: only these two may run.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
        f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{safe(log["url"])} · sparkwal report</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{sections.header(document)}
<main>
{_joined(sections.every(document, time, curves))}
</main>
<footer>Made {when(document["made_ms"])} UTC by <code>sparkwal report</code>. All times are UTC. The
exact numbers stand in this file as JSON, in the element <code>#report</code>.</footer>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="report">{_data(document)}</script>
<script type="application/json" id="charts">{_data(drawn)}</script>
<script>{script}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files("sparkwal.cli.page").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(value: Any) -> str:
    """JSON that no text in it ends: neither a tag nor a comment begins."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)
