"""The policies of conf/iam/: each role's real work runs under its own, and needs all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.lifecycle.collecting import collection
from sparkwal.testing.proxy import S3Proxy, Sent
from sparkwal.testing.servers import Server, log_options, make_bucket, s3_client, start_ministack
from tests.docs.pages import ROOT
from tests.jobs.http_job import Job
from tests.security import iam
from tests.security.roles import CONSUMER, ROLES, Place, appended, furnish

# Role → its policies; the last is its own.
POLICIES = {
    "writer": ("writer",),
    "reader": ("reader",),
    "reader-of-all": ("reader", "reader-of-all"),
    "consumer": ("reader", "consumer"),
    "consumer-of-all": ("reader", "reader-of-all", "consumer-of-all"),
    "lease": ("reader", "lease"),
    "compactor": ("reader", "compactor"),
    "collector": ("reader", "collector"),
    "operator": ("reader", "reader-of-all", "operator"),
}
READERS = ("reader", "reader-of-all", "consumer", "consumer-of-all")
WITH_SPARK = ("writer", "reader", "reader-of-all")
PREFIX = "team/wal"


@pytest.fixture(scope="module")
def enforcing() -> Iterator[Server]:
    with start_ministack(enforces=True) as server:
        yield server


@pytest.fixture
def bucket(enforcing: Server) -> str:
    name = f"wal-{uuid.uuid4().hex}"
    make_bucket(enforcing.url, name)
    return name


def user(url: str, name: str, policies: list[iam.Policy]) -> dict[str, str]:
    """The keys of a new user, as a log's options."""
    client = s3_client(url, "iam")
    client.create_user(UserName=name)
    for number, each in enumerate(policies):
        client.put_user_policy(
            UserName=name, PolicyName=str(number), PolicyDocument=json.dumps(each)
        )
    made = client.create_access_key(UserName=name)["AccessKey"]
    return {"accessKeyId": made["AccessKeyId"], "secretAccessKey": made["SecretAccessKey"]}


def marks(role: str) -> list[pytest.MarkDecorator]:
    shared = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
    # Those of readers take longest.
    return shared * (role in WITH_SPARK) + [pytest.mark.slow] * (role in READERS)


@pytest.mark.s3
@pytest.mark.parametrize("role", [pytest.param(each, marks=marks(each)) for each in POLICIES])
def test_a_roles_policies_allow_its_requests_and_no_others(
    role: str, enforcing: Server, bucket: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    spark = request.getfixturevalue("spark") if role in WITH_SPARK else None
    places = {"BUCKET": bucket, "PREFIX": PREFIX, "NAME": CONSUMER}
    policies = [iam.policy(each, **places) for each in POLICIES[role]]
    path, root = f"s3://{bucket}/{PREFIX}", log_options(enforcing.url)
    furnish(Place(path, root, tmp_path / "furnish"))
    seen: list[iam.Call] = []

    def watch(sent: Sent, status: int) -> None:
        seen.extend(iam.calls(sent, status))

    with S3Proxy(enforcing.url) as proxy:
        proxy.watch = watch
        keys = user(enforcing.url, f"{role}-{uuid.uuid4().hex}", policies)
        # The server refuses what the policies do not allow.
        ROLES[role](Place(path, {**log_options(proxy.url), **keys}, tmp_path, spark))
        assert not [each for each in proxy.requests if each.status == 403]

    def allowed(call: iam.Call, own: iam.Policy) -> bool:
        return any(iam.allows(each, call) for each in (*policies[:-1], own))

    # It does not ask, as AWS does, whether a key that is missing may be listed.
    assert [each for each in seen if not allowed(each, policies[-1])] == []
    unused = [
        name
        for name, less in iam.smaller(policies[-1])
        if all(allowed(each, less) for each in seen)
    ]
    assert unused == []
    bucket_policy = iam.policy(
        "bucket-policy",
        BUCKET=bucket,
        PREFIX=PREFIX,
        COLLECTOR="arn:aws:iam::1:role/collector",
        COMPACTOR="arn:aws:iam::1:role/compactor",
    )
    refused = [each for each in seen if iam.denies(bucket_policy, said_by(each, role))]
    assert refused == []


@pytest.mark.s3
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.capability("DELTA")
def test_a_compaction_into_a_table_needs_the_policy_of_the_table(
    enforcing: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(sparkwal.__file__).parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    places = {"BUCKET": bucket, "PREFIX": PREFIX, "TABLE": "team/lake"}
    policies = [iam.policy(each, **places) for each in ("reader", "compactor", "table")]
    path, root = f"s3://{bucket}/{PREFIX}", log_options(enforcing.url)
    seen: list[iam.Call] = []

    def watch(sent: Sent, status: int) -> None:
        # S3A also requests the folders above the table, and continues without them.
        if status != 403:
            seen.extend(iam.calls(sent, status))

    file = tmp_path / "options"
    with S3Proxy(enforcing.url) as proxy:
        proxy.watch = watch
        keys = user(enforcing.url, f"lake-{uuid.uuid4().hex}", policies)
        given = {**log_options(proxy.url), **keys}
        file.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))
        for value in (0, 9, 1):
            appended(Place(path, root, tmp_path), root, "p", value)
            done = subprocess.run(
                [
                    sys.executable,
                    str(ROOT / "jobs" / "compact.py"),
                    path,
                    f"s3a://{bucket}/team/lake",
                    *("--key", "v", "--sequence-by", "v", "--delete-when", "v = 9"),
                    "--now",
                    "--no-collect",
                    "--options-file",
                    str(file),
                ],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
        current = sparkwal.Log(path, **given).current()
        assert sorted(current.to_pandas()["v"]) == [0, 1]
    assert [each for each in seen if not any(iam.allows(one, each) for one in policies)] == []
    unused = [
        name
        for name, less in iam.smaller(policies[-1])
        if all(any(iam.allows(one, each) for one in (*policies[:-1], less)) for each in seen)
    ]
    assert unused == []

    # A reader of table and log as one, and a collector, only read the table.
    monkeypatch.setattr(
        collection, "_old_floors", lambda logs, grace_ms, ages: [one.state.floor for one in logs]
    )
    names = ("reader", "collector", "table-reader")
    policies = [iam.policy(each, **places) for each in names]
    seen.clear()
    with S3Proxy(enforcing.url) as proxy:
        proxy.watch = watch
        readers = {**log_options(proxy.url), **user(enforcing.url, "readers", policies)}
        file.write_text("".join(f"{name} = {value}\n" for name, value in readers.items()))
        current = sparkwal.Log(path, **readers).current()
        assert sorted(current.to_pandas()["v"]) == [0, 1]
        collected = CliRunner().invoke(
            main, ["collect", path, "--delete", "--json", "--options-file", str(file)]
        )
        assert collected.exit_code == 0, collected.output
        assert not [each for each in proxy.requests if each.status == 403]
    assert any("/_delta_log/" in each.resource for each in seen)
    assert [each for each in seen if not any(iam.allows(one, each) for one in policies)] == []
    assert not any(
        each.action != "s3:GetObject" and "/team/lake" in each.resource
        for each in seen
        if each.action != "s3:ListBucket"
    )


@pytest.mark.s3
@pytest.mark.process
def test_rows_over_http_need_the_policy_of_a_writer(
    enforcing: Server, bucket: str, tmp_path: Path
) -> None:
    writer = iam.policy("writer", BUCKET=bucket, PREFIX=PREFIX)
    path, root = f"s3://{bucket}/{PREFIX}", log_options(enforcing.url)
    appended(Place(path, root, tmp_path), root, "p", 1)
    seen: list[iam.Call] = []

    def watch(sent: Sent, status: int) -> None:
        seen.extend(iam.calls(sent, status))

    file = tmp_path / "options"
    with S3Proxy(enforcing.url) as proxy:
        proxy.watch = watch
        options = {**log_options(proxy.url), **user(enforcing.url, "http", [writer])}
        file.write_text("".join(f"{name} = {value}\n" for name, value in options.items()))
        job = Job("--log", path, "--options-file", file)
        assert job.post(b'{"v":2}\n')[0] == 200
        assert job.stop() == 0
        assert not [each for each in proxy.requests if each.status == 403]
    assert any(each.action == "s3:PutObject" for each in seen)
    assert [each for each in seen if not iam.allows(writer, each)] == []


def said_by(call: iam.Call, role: str) -> iam.Call:
    who = {"aws:PrincipalArn": f"arn:aws:iam::1:role/{role}", "aws:SecureTransport": "true"}
    return iam.Call(call.action, call.resource, {**call.context, **who})


@pytest.mark.s3
def test_the_server_enforces_the_policies(enforcing: Server, bucket: str, tmp_path: Path) -> None:
    path, root = f"s3://{bucket}/{PREFIX}", log_options(enforcing.url)
    appended(Place(path, root, tmp_path), root, "p", 1)
    read = iam.policy("reader", BUCKET=bucket, PREFIX=PREFIX)
    reader = {**root, **user(enforcing.url, f"reader-{uuid.uuid4().hex}", [read])}
    assert len(sparkwal.Log(path, **reader).to_pandas()) == 1
    with pytest.raises(sparkwal.OptionError, match="AccessDenied"):
        appended(Place(path, reader, tmp_path), reader, "p", 2)
    with pytest.raises(sparkwal.OptionError, match="AccessDenied"):
        sparkwal.Log(f"s3://{bucket}/other/wal", **reader).head()
    wrong = {**reader, "secretAccessKey": "wrong"}
    with pytest.raises(sparkwal.OptionError, match="SignatureDoesNotMatch"):
        sparkwal.Log(path, **wrong).head()


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:DeleteObject"])
@pytest.mark.parametrize("name", ["other", "daily2", "lease-1"])
def test_a_consumer_changes_no_other_consumer(action: str, name: str) -> None:
    own = iam.policy("consumer", BUCKET="b", PREFIX=PREFIX, NAME=CONSUMER)
    consumers = f"arn:aws:s3:::b/{PREFIX}/consumers"
    assert iam.allows(own, iam.Call(action, f"{consumers}/{CONSUMER}"))
    assert not iam.allows(own, iam.Call(action, f"{consumers}/{name}"))


PUT = {"s3:ObjectCreationOperation": "true"}
IF_ABSENT = {**PUT, "s3:if-none-match": "*"}
IF_SAME = {**PUT, "s3:if-match": "an ETag"}
PART = {"s3:ObjectCreationOperation": "false"}


@pytest.mark.parametrize("key", ["batches/1", "lifecycle/1", "sequencers/a/batches/1", "txns/a"])
def test_the_bucket_policy_refuses_overwrites_and_deletes_in_the_log(key: str) -> None:
    policy = iam.policy("bucket-policy", BUCKET="b", PREFIX=PREFIX, COLLECTOR="arn:collector")

    def denied(action: str, **context: str) -> bool:
        who = {"aws:PrincipalArn": "arn:writer", "aws:SecureTransport": "true"}
        resource = f"arn:aws:s3:::b/{PREFIX}/{key}"
        return iam.denies(policy, iam.Call(action, resource, {**who, **context}))

    assert denied("s3:PutObject", **PUT) and not denied("s3:PutObject", **IF_ABSENT)
    assert not denied("s3:PutObject", **PART)
    collects = {"aws:PrincipalArn": "arn:collector"}
    assert denied("s3:PutObject", **PUT, **collects)
    assert denied("s3:PutObject", **IF_SAME) and not denied("s3:PutObject", **IF_SAME, **collects)
    assert denied("s3:DeleteObject") and denied("s3:DeleteObjectVersion")
    assert not denied("s3:DeleteObject", **{"aws:PrincipalArn": "arn:collector"})
    assert denied("s3:GetObject", **{"aws:SecureTransport": "false"})


@pytest.mark.parametrize("key", ["segments/1", "sequencers/a/segments/1"])
def test_the_bucket_policy_lets_only_compactor_and_collector_change_segments(key: str) -> None:
    policy = iam.policy(
        "bucket-policy", BUCKET="b", PREFIX=PREFIX, COLLECTOR="arn:collector", COMPACTOR="arn:both"
    )

    def denied(action: str, who: str) -> bool:
        context = {**PUT, "aws:PrincipalArn": who, "aws:SecureTransport": "true"}
        return iam.denies(policy, iam.Call(action, f"arn:aws:s3:::b/{PREFIX}/{key}", context))

    assert denied("s3:PutObject", "arn:writer") and denied("s3:DeleteObject", "arn:both")
    assert not denied("s3:PutObject", "arn:both") and not denied("s3:PutObject", "arn:collector")
    assert not denied("s3:DeleteObject", "arn:collector") and not denied("s3:GetObject", "arn:x")


def test_no_policy_allows_other_paths() -> None:
    assert {each.stem for each in iam.files()} == {
        *POLICIES,
        "table",
        "table-reader",
        "bucket-policy",
    }
    table = "TABLE(_tombstones|_refused)?"
    place = f"arn:aws:s3:::BUCKET(/{table}|/(PREFIX|{table})/.+)?"
    for file in iam.files():
        text = file.read_text()
        document: dict[str, Any] = json.loads(text)
        assert text == json.dumps(document, indent=2) + "\n"
        for statement in document["Statement"]:
            for resource in iam.listed(statement["Resource"]):
                assert re.fullmatch(place, resource)
