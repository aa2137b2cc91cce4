"""A real browser without a window, spoken to over pipes by the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESKTOP = (390, 844, 3, True), (1440, 900, 1, False)


def browser() -> str | None:
    """The path of a browser, or None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab.

    Attributes:
        problems: what the console was told of errors and warnings, exceptions and refusals by the
            policy among them.
        requested: URLs that were asked for.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._held = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, method: str) -> None:
        while self._next().get("method") != method:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            data = os.read(self._answers, 2**20)
            assert data, "the browser ended"
            self._held += data
        text, _, self._held = self._held.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.problems.append(str(params["args"]))
        elif message.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        return message

    def show(self, file: Path, screen: tuple[int, int, int, bool], dark: bool = False) -> None:
        """Load a file on a screen: width, height, pixels of the device in one, a phone's."""
        width, height, scale, mobile = screen
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=mobile)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=file.absolute().as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def hover(self, selector: str, share: float = 0.5) -> None:
        """Move the pointer to a place in an element, from its left."""
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(b => [b.left, b.top, b.width, b.height])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * share,
                  y=box[1] + box[3] / 2)  # fmt: skip

    def screenshot(self, file: Path, whole: bool = True) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def a_page(path: str, profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which is ended with it."""
    commands_in, commands = os.pipe()
    answers, answers_out = os.pipe()

    def pipes() -> None:
        # The browser reads from 3 and writes to 4; what is there now must not be overwritten.
        one, other = os.dup(commands_in), os.dup(answers_out)
        os.dup2(one, 3)
        os.dup2(other, 4)

    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [path, "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars",
         "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}", *root],
        close_fds=False, preexec_fn=pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(commands_in)
    os.close(answers_out)
    try:
        yield Page(commands, answers)
    finally:
        process.terminate()
        process.wait(30)
        os.close(commands)
        os.close(answers)
