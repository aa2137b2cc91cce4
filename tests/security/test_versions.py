"""Buckets that keep what is deleted: a collection makes markers, which can be taken back."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal.format import keys
from sparkwal.testing.servers import log_options, make_bucket, s3_client
from tests.security.roles import Place, appended, collect, furnish

RETAINED = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
# The commit of `furnish` with rows in objects of their own.
DATA = [keys.data(3, 1000, partition) for partition in range(2)]


def versions(client: Any, bucket: str, kind: str) -> set[str]:
    found = client.list_object_versions(Bucket=bucket, Prefix="log/batches/")
    return {each["Key"] for each in found.get(kind, [])}


@pytest.mark.parametrize("locked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_collection_of_a_bucket_with_versions_can_be_undone(
    ministack_url: str, tmp_path: Path, locked: bool
) -> None:
    bucket, client = f"kept-{uuid.uuid4().hex}", s3_client(ministack_url)
    if locked:
        client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
        client.put_object_lock_configuration(
            Bucket=bucket,
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": RETAINED},
        )
    else:
        make_bucket(ministack_url, bucket)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    options = {**log_options(ministack_url), "checksum": "crc32" if locked else "none"}
    place = Place(f"s3://{bucket}/log", options, tmp_path)
    furnish(place)
    collect(place)
    names = {f"log/batches/{keys.encode(number)}" for number in DATA}
    assert versions(client, bucket, "DeleteMarkers") == names
    assert versions(client, bucket, "Versions") > names
    # The remains do not disturb later writers.
    appended(place, options, "a", 7)
    assert sparkwal.Log(place.path, **options).to_pandas()["v"].tolist()[-1] == 7
    found = client.list_object_versions(Bucket=bucket, Prefix="log/batches/")
    for each in found["Versions"] if locked else []:
        with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
            client.delete_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
    for marker in found["DeleteMarkers"]:
        client.delete_object(Bucket=bucket, Key=marker["Key"], VersionId=marker["VersionId"])
    report = sparkwal.verify(place.path, **options)
    assert report.ok, report.problems


def test_a_slot_whose_record_was_deleted_is_free_again(ministack_url: str, tmp_path: Path) -> None:
    """As in a bucket without versions: If-None-Match looks at the newest version."""
    bucket, client = f"kept-{uuid.uuid4().hex}", s3_client(ministack_url)
    make_bucket(ministack_url, bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    put = {"Bucket": bucket, "Key": "k", "IfNoneMatch": "*"}
    client.put_object(**put, Body=b"1")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(**put, Body=b"2")
    client.delete_object(Bucket=bucket, Key="k")
    client.put_object(**put, Body=b"3")
