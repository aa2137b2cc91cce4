"""All questions that a store is asked, and what it means for a log where the store fails."""

from functools import partial

from sparkwal.store.conformance import objects, races, s3
from sparkwal.store.conformance.suite import Check

_OVERWRITE = "two writers overwrite each other's commits, and rows that were acknowledged are lost"
_NOT_FOUND = "the newest record is not found"
_limit = partial(Check, fatal=False)
QUICK = (
    Check("put-if-absent", objects.first_put_wins, _OVERWRITE),
    Check("put-if-absent, raced", races.put_if_absent, _OVERWRITE),
    Check("a slow put and a fast one", races.slow_and_fast, _OVERWRITE, s3=True),
)
# For `prove-store`.
CHECKS = (
    *QUICK,
    Check("endpoints", races.endpoints, "writers at different endpoints have two logs, not one"),
    Check("multipart, raced", races.multipart,
          "two writers of large records overwrite each other's commits"),
    Check("put-if-absent and a delete", races.against_delete,
          "after a collection two writers could both own a position"),
    _limit("conflicts (409)", races.conflicts),
    Check("GET and LIST after write", objects.after_write,
          "readers miss acknowledged records, and a new writer takes the places of the last ones"),
    Check("LIST order", objects.list_order, _NOT_FOUND),
    Check("LIST pages", objects.list_pages, _NOT_FOUND),
    Check("deletes", objects.deletes, "collected objects stay, and are paid for"),
    Check("ranges", objects.ranges, "readers get other bytes than they asked for"),
    Check("age", objects.age, "collection could delete what a writer still needs"),
    _limit("clock", s3.clock,
           "beyond 15 minutes S3 refuses every signed request, others sooner: set the clock",
           s3=True),
    _limit("checksums", s3.checksums,
           "a body damaged on its way is stored; the log's own CRC-32 finds it when it is read",
           s3=True),
    _limit("key characters", objects.key_characters,
           "keep to letters, digits, - and _ in paths and names"),
    Check("big object", objects.big_object, "large records do not come back as written"),
    _limit("file system", objects.file_system,
           "only a local disk, shared by the processes of one machine, may hold a log"),
)  # fmt: skip
# For `doctor`: a stream's store.
MACHINE = (
    Check("credentials", s3.credentials, s3=True, ends=True),
    Check("bucket", s3.bucket, s3=True, ends=True),
    _limit("permission", s3.permissions, s3=True, ends=True),
    *QUICK,
    *(each for each in CHECKS if each.name in ("endpoints", "clock", "file system")),
    _limit("lifecycle rules", s3.lifecycle_rules, s3=True),
    _limit("versioning", s3.versioning, s3=True),
    _limit("Object Lock", s3.object_lock, s3=True),
    _limit("encryption", s3.encryption, s3=True),
)
