"""`format("weaselwal")`: what Spark instantiates for reading and for writing."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.options.parsing import nearest, parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.reading.floor import Pinned
from sparkwal.spark.logs import log_schema
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.sink import BatchWriter, StreamWriter
from sparkwal.spark.source import BatchReader, StreamReader
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.path import absolute

T = TypeVar("T", bound=StoreOptions)
# How this library hands a `Pinned` to a read that Spark makes: no option of a user's.
PINNED = "sparkwal_pinned"


class WeaselWalDataSource(PickledByValue, DataSource):
    """A write-ahead log on object storage as a Spark source and sink.

    df.writeStream.format("weaselwal").option("checkpointLocation", …).start("s3://bucket/wal")
    spark.read.format("weaselwal").option("startingPosition", 120).load("s3://bucket/wal")

    Names of options are not case-sensitive; sizes take 1mb or bytes, times 500ms or
    milliseconds. A wrong one raises OptionError before anything is read or written.

    Options: reading and writing

    - path (text; required): where the log is: s3://bucket/prefix, file:///folder or a
      folder
    - endpoint (text): URL of an S3-compatible server
    - region (text): AWS region
    - profile (text): named profile of the AWS configuration
    - accessKeyId (secret): access key; with secretAccessKey
    - secretAccessKey (secret): never printed or stored
    - sessionToken (secret): of temporary credentials
    - serverSideEncryption (choice; the bucket's): of every object that is written:
      AES256, aws:kms or aws:kms:dsse
    - kmsKeyId (text; the bucket's, or AWS' own): with aws:kms or aws:kms:dsse: the
      key's id or ARN
    - bucketKeyEnabled (boolean; the bucket's): with aws:kms: one key of the bucket for
      many objects, which makes far fewer requests to KMS
    - storageClass (choice; STANDARD): of every object that is written; archives, which
      have to be restored first, are none
    - checksum (choice; none): crc32: S3 checks what it stores, and keeps the checksum;
      a bucket with Object Lock takes nothing without
    - requesterPays (boolean; false): the bucket's requests are paid by who makes them
    - expectedBucketOwner (account): S3 refuses all requests if the bucket is another
      account's
    - maxInFlightRequests (number; 50): requests under way at once, 1…1000
    - targetPoolSize (number; 2 × maxInFlightRequests): connections kept open; at least
      maxInFlightRequests
    - maxRetryAttempts (number; 3): retries of one request before the query fails
    - hedge (boolean; true): send a late request once more on another connection, and
      take the first answer
    - retryBaseDelayMs (time; 100): first backoff; doubles, with full jitter
    - sequencer (name; the log at the path itself): the independent log of this name
      under the path

    Options: writing

    - batchSizeThreshold (size; 1mb): a frame (Arrow record batch) closes at this size
    - batchTimeoutMs (time; 1ms): a frame closes at this age of its first row
    - windowSize (number; 1000): numbers for each position, a power of ten 1000…1000000;
      one microbatch has fewer partitions than this; fixed by a log's first record
    - compression (choice; zstd): of the rows: zstd, lz4 or none
    - mergeSchema (boolean; false): let this query add nullable columns to the log, or
      leave some out (null)
    - planTtl (time; 10min): a plan older than this is checked against the log before it
      is used; at most 40min
    - inlineThreshold (size; 64kb; with a windowSize above 1000 less, 64mb /
      windowSize): a partition up to this size (of Arrow, before compression) travels
      through the driver inside the commit record; 0: never
    - multipartThreshold (size; 16mb): an object beyond this size is uploaded in parts;
      at least 5mb
    - checkpointMaxBytes (size; 16mb): of a checkpoint on the driver's disk a commit
      record carries at most this, compressed
    - txnAppId (text): batch writes: with txnVersion, makes the append idempotent
    - txnVersion (number): batch writes: a number that grows with every append of
      txnAppId; the last one again is skipped if its rows are the same

    Options: reading

    - startingPosition (position; earliest): earliest (the log's floor: what was
      compacted is not read), latest or the first position to read
    - endingPosition (number; the head): batch reads: the last position to read,
      inclusive
    - startingTimestamp (moment): read commits at or after this time: ISO 8601 (UTC
      unless it says otherwise) or milliseconds since 1970
    - endingTimestamp (moment): batch reads: read commits at or before this time
    - maxRowsPerTrigger (number): streams: at most this many rows in a microbatch; a
      commit is never split
    - maxBytesPerTrigger (size): streams: at most this many stored bytes in a
      microbatch; a commit is never split
    - maxCommitsPerTrigger (number): streams: at most this many commits in a microbatch
    - minPartitions (number; what its size is worth): split the read into at least this
      many tasks where the log's frames allow it
    - failOnDataLoss (boolean; true): false: go on where positions were collected or are
      missing
    - includeMetadata (boolean; false): add _wal_position, _wal_timestamp,
      _wal_partition, _wal_leader_id, _wal_batch_id, _wal_query_id
    - verifyChecksums (boolean; true): check the CRC-32 of all that is read
    - sequencers (*): *: read all logs under the path, each in its own order with its
      own offset
    - onCorruption (choice; fail): at a damaged object: fail, or stop: end the replay
      before it
    - consumer (name): streams: a name, this stream's own; the log keeps what it has not
      read yet
    - cursorInterval (time; 1min): streams with a consumer: publish at most this often
      how far it is
    - lease (time): batch reads: the log keeps for this long what the read needs
    """

    # How many tasks the session runs at once; Spark does not hand it to a reader.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        return "weaselwal"

    @classmethod
    def with_parallelism(cls, tasks: int) -> type[WeaselWalDataSource]:
        """The same data source for a session that runs so many tasks at once."""
        return type(cls.__name__, (cls,), {"parallelism": tasks, "__doc__": cls.__doc__})

    def _options(self, kind: type[T]) -> T:
        if not self.options.get("path"):
            for name in self.options:
                if nearest(name, ["path"]):
                    raise OptionError(f"unknown option {name!r}; did you mean 'path'?")
            raise OptionError(
                'option path is missing: give it to load, save or start ("s3://bucket/wal"). '
                "A catalog's table has none, because Spark hands it to no Python data source: "
                "use CREATE TEMPORARY VIEW … USING weaselwal OPTIONS (path '…')"
            )
        options = parse(kind, {n: text for n, text in self.options.items() if n != PINNED})
        # Here, on the driver: executors have working directories of their own.
        return replace(options, path=absolute(options.path))

    def schema(self) -> StructType:
        with readable_errors():
            # Spark sets this only for a table that is about to be created.
            if "provider" in self.options:
                raise OptionError(
                    "a log cannot be a table of the catalog: Spark hands a table's path to no "
                    "Python data source. Use CREATE TEMPORARY VIEW … USING weaselwal OPTIONS "
                    "(path '…'), or spark.read"
                )
            return log_schema(self._options(SourceOptions))

    def reader(self, schema: StructType) -> BatchReader:
        with readable_errors():
            text = self.options.get(PINNED)
            pinned = Pinned.of(text) if text else None
            return BatchReader(self._options(SourceOptions), schema, self.parallelism, pinned)

    def streamReader(self, schema: StructType) -> StreamReader:
        with readable_errors():
            return StreamReader(self._options(SourceOptions), schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with readable_errors():
            if overwrite:
                raise OptionError(
                    'a log is never overwritten: use mode("append"), or write to a new path'
                )
            return BatchWriter(self._options(SinkOptions), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Called again for every commit, in another worker: it must do nothing but this.
        with readable_errors():
            tracking = [name for name in self.options if "asyncprogresstracking" in name.lower()]
            if tracking:
                raise OptionError(
                    f"option {tracking[0]}: with asynchronous progress tracking a restarted query "
                    "may give a batch id to other rows, which the log would take for rows that "
                    "it has: remove the option"
                )
            if overwrite:
                raise OptionError(
                    'a log only grows: use outputMode("append"); to store the results of '
                    "complete mode write them with foreachBatch, or append the aggregate's "
                    "input and aggregate when reading"
                )
            options = self._options(SinkOptions)
            if options.txn_app_id is not None:
                raise OptionError(
                    "txnAppId and txnVersion are for df.write; a stream is exactly-once by its "
                    "checkpoint: remove them"
                )
            return StreamWriter(options, schema, self.options.get("checkpointLocation", ""))
