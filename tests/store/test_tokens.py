"""A cloud's token: got once, renewed before it ends or after a refusal, and kept out of logs."""

from __future__ import annotations

import logging
import os
import time

import pytest

from sparkwal.errors import OptionError
from sparkwal.store import azure_account, google
from sparkwal.store.azure import AzureStore
from sparkwal.store.config import S3Config
from sparkwal.store.google import GoogleStore
from sparkwal.store.rest import Request
from sparkwal.store.tokens import Token


class Issuer:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.issued = 0

    def __call__(self) -> tuple[str, float]:
        self.issued += 1
        return f"token-number-{self.issued}", time.time() + self.seconds


def test_a_token_is_kept_until_shortly_before_its_end() -> None:
    issuer = Issuer(seconds=3600)
    token = Token(issuer)
    assert [token.text(), token.text()] == ["token-number-1"] * 2
    token.forget()
    assert token.text() == "token-number-2"
    ending = Issuer(seconds=200)
    token = Token(ending)
    assert [token.text(), token.text()] == ["token-number-1", "token-number-2"]


def test_a_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = Token(Issuer(seconds=3600)).text()
    logging.getLogger("urllib3.connectionpool").debug("Authorization: Bearer %s", text)
    assert text not in caplog.text


def test_a_token_that_cannot_be_got_is_asked_for_again() -> None:
    def fails() -> tuple[str, float]:
        raise OptionError("none")

    token = Token(fails)
    for _ in range(2):
        with pytest.raises(OptionError):
            token.text()


@pytest.mark.process
def test_a_forked_child_gets_its_own_token() -> None:
    issuer = Issuer(seconds=3600)
    token = Token(issuer)
    token.text()
    child = os.fork()
    if not child:
        os._exit(token.text() != "token-number-2")
    assert os.waitpid(child, 0)[1] == 0
    assert token.text() == "token-number-1"


def test_requests_bear_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTION_STRING", "ACCOUNT_KEY", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setattr(azure_account, "TOKEN", Token(lambda: ("azure-token", 4e9)))
    monkeypatch.setattr(google, "TOKEN", Token(lambda: ("google-token", 4e9)))
    sent: list[Request] = []

    def send(request: Request, config: S3Config, sign: object) -> object:
        sent.append(sign(request))  # type: ignore[operator]
        raise OptionError("enough")

    monkeypatch.setattr("sparkwal.store.rest.send", send)
    for store in (
        AzureStore("logs@acct.dfs.core.windows.net", S3Config()),
        GoogleStore("logs", S3Config()),
    ):
        with pytest.raises(OptionError):
            store.get("k")
    shown = [request.headers["Authorization"] for request in sent]
    assert shown == ["Bearer azure-token", "Bearer google-token"]
    assert [request.url.partition("/logs")[0] for request in sent] == [
        "https://acct.blob.core.windows.net",
        "https://storage.googleapis.com/storage/v1/b",
    ]
