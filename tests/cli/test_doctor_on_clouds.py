"""The doctor of a log on Azure or Google: Azurite, fake-gcs-server, and documented replies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.store import azure_account, rest
from sparkwal.store import google as google_store
from sparkwal.store.azure import AzureStore
from sparkwal.store.azure_account import account_of
from sparkwal.store.base import all_entries
from sparkwal.store.config import S3Config
from sparkwal.store.conformance.checks import MACHINE
from sparkwal.store.conformance.suite import Finding, Trial, prove
from sparkwal.store.google import GoogleStore
from sparkwal.store.rest import Request
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy
from tests.cli.test_doctor import asked, said, to_do
from tests.store import azurite, fake_gcs
from tests.store.test_azure import SECRET, Server
from tests.store.test_google import Server as GoogleServer

Log = tuple[str, dict[str, str]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path(sparkwal.__file__).parents[1]), prepend=os.pathsep)
    for name in os.environ:
        if name.startswith(("AZURE_", "STORAGE_EMULATOR", "GOOGLE_")):
            monkeypatch.delenv(name)


def written(path: str, options: Any) -> Log:
    with sparkwal.Appender(path, pa.schema([("v", pa.int64())]), producer_id="p", **options) as wal:
        wal.append([{"v": 1}]).result()
    return path, options


@pytest.fixture
def on_azure(azurite_proxy: S3Proxy) -> Log:
    container = azurite.new_container(azurite_proxy.url)
    path = f"abfss://{container}@{azurite.ACCOUNT}.dfs.core.windows.net/log"
    return written(path, azurite.options(azurite_proxy.url))


@pytest.fixture
def google_proxy(fake_gcs_url: str) -> Iterator[S3Proxy]:
    with S3Proxy(fake_gcs_url) as proxy:
        yield proxy


@pytest.fixture
def on_google(google_proxy: S3Proxy) -> Log:
    path = f"gs://{fake_gcs.new_bucket(google_proxy.url)}/log"
    return written(path, fake_gcs.options(google_proxy.url))


def test_a_sound_log_on_azure_needs_no_action(on_azure: Log) -> None:
    path, options = on_azure
    store = AzureStore(path.split("/")[2], azurite.config(options["endpoint"].rpartition("/")[0]))
    before = [*all_entries(store, "")]
    code, lines = asked(path, options)
    assert (code, to_do(lines)) == (0, [])
    assert said(lines, "credentials") == "provider 'the option secretAccessKey'"
    assert said(lines, "bucket").endswith("is there")
    assert said(lines, "permission") == "no action that a writer needs is denied"
    assert "one winner each" in said(lines, "put-if-absent, raced")
    assert "from this machine's" in said(lines, "clock")
    for about, what in (("versioning", "off"), ("soft delete", "off"), ("namespace", "flat")):
        assert said(lines, about) == what
    assert said(lines, "immutability") == "no policy and no hold"
    # Only Azure's management shows them.
    assert "exclude log/" in said(lines, "lifecycle rules")
    assert [*all_entries(store, "")] == before
    assert azurite.KEY not in str(lines)


def test_a_sound_log_on_google_needs_no_action(on_google: Log) -> None:
    path, options = on_google
    store = GoogleStore(path.split("/")[2], fake_gcs.config(options["endpoint"]))
    before = [*all_entries(store, "")]
    code, lines = asked(path, options)
    assert (code, to_do(lines)) == (0, [])
    assert "a server of tests takes none" in said(lines, "credentials")
    assert said(lines, "permission") == "no action that a writer needs is denied"
    assert "from this machine's" in said(lines, "clock")
    for about, what in (("versioning", "off"), ("soft delete", "off"), ("namespace", "flat")):
        assert said(lines, about) == what
    assert said(lines, "lifecycle rules") == "none deletes or archives objects of the log"
    assert [*all_entries(store, "")] == before


def test_soft_delete_of_azure_is_reported(on_azure: Log, azurite_url: str) -> None:
    path, options = on_azure

    def keeps(days: str) -> None:
        config = azurite.config(azurite_url)
        account, _ = account_of("any", config)
        query = {"restype": "service", "comp": "properties"}
        body = (
            f"<StorageServiceProperties><DeleteRetentionPolicy>{days}"
            "</DeleteRetentionPolicy></StorageServiceProperties>"
        )
        change = Request("PUT", f"{account.blobs}/", query, {}, body.encode())
        assert rest.send(change, config, account.sign).status == 202

    keeps("<Enabled>true</Enabled><Days>7</Days>")
    try:
        code, lines = asked(path, options)
    finally:
        keeps("<Enabled>false</Enabled>")
    assert (code, said(lines, "soft delete").partition(":")[0]) == (0, "7 days")


def test_a_missing_container_or_bucket_is_named(on_azure: Log, on_google: Log) -> None:
    for path, options, what in (
        (f"abfss://absent@{azurite.ACCOUNT}.dfs.core.windows.net/log", on_azure[1], "container"),
        ("gs://absent-bucket/log", on_google[1], "bucket"),
    ):
        code, lines = asked(path, options)
        assert code == 1
        about = [each for each in to_do(lines) if each[0] == "bucket"]
        assert [f"create the {what}" in text for _, text in about] == [True]


@pytest.mark.parametrize("kind", ["PUT", "GET", "DELETE"])
def test_a_missing_permission_is_named(
    on_azure: Log, on_google: Log, azurite_proxy: S3Proxy, google_proxy: S3Proxy, kind: str
) -> None:
    words = {"PUT": ("write", "create"), "GET": ("read", "get"), "DELETE": ("delete", "delete")}
    for (path, options), proxy, word in zip(
        (on_azure, on_google), (azurite_proxy, google_proxy), words[kind], strict=True
    ):
        proxy.faults = [Fault("error", kind=kind, status=403)]
        code, lines = asked(path, options)
        assert code == 1
        text = next(text for about, text in to_do(lines) if about == "permission")
        assert f"{word} on {path.partition('://')[0][:2]}" in text or f"{word} on http" in text


def test_a_reader_has_nothing_to_do(
    on_azure: Log, on_google: Log, azurite_proxy: S3Proxy, google_proxy: S3Proxy
) -> None:
    for (path, options), proxy in ((on_azure, azurite_proxy), (on_google, google_proxy)):
        proxy.faults = [Fault("error", kind=kind, status=403) for kind in ("PUT", "DELETE")]
        code, lines = asked(path, options)
        assert (code, to_do(lines)) == (0, [])
        assert "enough for a reader" in said(lines, "permission")


# -- replies, as the documents have them


def finding(store: AzureStore | GoogleStore, about: str) -> Finding:
    # The first check raises its errors, and that of a file system says nothing here.
    checks = [check for check in MACHINE if check.name in ("file system", about)]
    return [*prove([store], "log", Trial(), checks)][0]


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> GoogleServer:
    return GoogleServer(monkeypatch)


def test_settings_of_azure_are_reported(azure: Server) -> None:
    azure.answers(200, x_ms_account_kind="StorageV2", x_ms_is_hns_enabled="true")
    assert finding(azure.store, "namespace").found.startswith("hierarchical")
    azure.answers(200, x_ms_has_immutability_policy="true", x_ms_has_legal_hold="true")
    held = finding(azure.store, "immutability")
    assert held.found == "a policy and a legal hold: collected objects stay until it ends"
    azure.answers(403, "<Error><Code>AuthorizationPermissionMismatch</Code></Error>")
    unasked = finding(azure.store, "soft delete")
    assert (unasked.outcome, unasked.found) == ("unknown", "no permission to ask")
    azure.answers(201)
    azure.answers(200, x_ms_version_id="2026")
    # The end of the trial lists what to remove.
    azure.answers(403, "<Error><Code>AuthorizationFailure</Code></Error>")
    assert "cost money" in finding(azure.store, "versioning").found


def test_settings_of_google_are_reported(google: GoogleServer) -> None:
    for about, settings, found in (
        ("versioning", {"versioning": {"enabled": True}}, "enabled: objects"),
        ("soft delete", {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "7 days"),
        ("soft delete", {"softDeletePolicy": {"retentionDurationSeconds": "0"}}, "off"),
        ("immutability", {"retentionPolicy": {"retentionPeriod": "86400"}}, "a retention of 1 day"),
        ("namespace", {"hierarchicalNamespace": {"enabled": True}}, "hierarchical"),
    ):
        google.answers(200, settings)
        assert finding(google.store, about).found.startswith(found)
        assert google.requests[-1].url.endswith("/b/logs")
    google.fails(403, "forbidden", "no storage.buckets.get access")
    assert finding(google.store, "versioning").found == "no permission to ask"


@pytest.mark.parametrize(
    ("action", "condition", "harmful"),
    [
        ("Delete", {"age": 30}, True),
        ("SetStorageClass", {"age": 30, "matchesPrefix": ["lo"]}, True),
        ("Delete", {"age": 30, "matchesPrefix": ["other/"]}, False),
        ("Delete", {"numNewerVersions": 3}, False),
        ("Delete", {"isLive": False}, False),
        ("AbortIncompleteMultipartUpload", {"age": 1}, False),
    ],
)
def test_a_rule_of_google_that_takes_objects_of_the_log_is_named(
    google: GoogleServer, action: str, condition: dict[str, Any], harmful: bool
) -> None:
    rule = {"action": {"type": action}, "condition": condition}
    google.answers(200, {"lifecycle": {"rule": [rule]}})
    found = finding(google.store, "lifecycle rules")
    assert (found.outcome == "limit") is harmful
    assert ("exclude log/" in found.found) is harmful


def test_a_clock_of_google_that_is_off_is_reported(google: GoogleServer) -> None:
    date = formatdate(time.time() - 3600, usegmt=True)
    google.answers(200, {"kind": "storage#objects"}, Date=date)
    late = finding(google.store, "clock")
    assert (late.outcome, late.found.startswith("the store's clock is -3")) == ("limit", True)


def test_a_clock_of_azure_that_is_off_is_reported(azure: Server) -> None:
    azure.answers(200, Date=formatdate(time.time() + 3600, usegmt=True))
    early = finding(azure.store, "clock")
    assert (early.outcome, early.found.startswith("the store's clock is +3")) == ("limit", True)


# -- credentials


def source(**variables: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        account, _ = account_of("c@acct.dfs.core.windows.net", S3Config())
        return account.credentials()


def test_the_source_of_azures_credentials_is_named_and_no_secret() -> None:
    assert source(AZURE_STORAGE_ACCOUNT_KEY=SECRET) == "AZURE_STORAGE_ACCOUNT_KEY"
    connection = f"AccountName=acct;AccountKey={SECRET}"
    found = source(AZURE_STORAGE_CONNECTION_STRING=connection)
    assert found == "AZURE_STORAGE_CONNECTION_STRING"
    sas = "sv=2023&se=2999-01-01T00%3A00%3A00Z&sig=hush"
    found = source(AZURE_STORAGE_SAS_TOKEN=sas)
    assert found == "AZURE_STORAGE_SAS_TOKEN, until 2999-01-01T00:00:00Z"


def test_the_source_of_an_identity_of_azure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure_account.TOKEN, "text", lambda: "hush")
    assert source() == "a managed identity or az login"
    federated = source(AZURE_FEDERATED_TOKEN_FILE="/var/run/token")
    assert federated == "the workload identity of AZURE_FEDERATED_TOKEN_FILE"
    service = source(AZURE_CLIENT_ID="i", AZURE_TENANT_ID="t", AZURE_CLIENT_SECRET="hush")
    assert service == "the service principal of AZURE_CLIENT_ID"


def test_the_source_of_googles_credentials_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(google_store.TOKEN, "text", lambda: "hush")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    store = GoogleStore("logs", S3Config())
    assert store.credentials() == "the account of the machine"
    (tmp_path / "application_default_credentials.json").touch()
    assert store.credentials() == "gcloud auth application-default login"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json")
    assert store.credentials() == "the file that GOOGLE_APPLICATION_CREDENTIALS names"


def test_a_signature_that_ended_is_named() -> None:
    sas = "sv=2023&se=2020-01-01&sig=hush"
    with pytest.raises(OptionError, match="ended at 2020-01-01: make another") as ended:
        source(AZURE_STORAGE_SAS_TOKEN=sas)
    assert "hush" not in str(ended.value)


def test_no_credentials_of_azure_end_the_checks(azure: Server) -> None:
    store = AzureStore("logs@acct.dfs.core.windows.net", S3Config(endpoint="http://10.0.0.1:1"))
    (found,) = prove([store], "log", Trial(), MACHINE)
    assert (found.check, "no TLS" in found.found) == ("credentials", True)
