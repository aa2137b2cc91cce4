"""The types of options as keyword arguments. A wrong name fails mypy and pyright.

`python -m tests.docs.tables` writes this file from the classes of options. options.md describes
each option.
"""

from datetime import datetime
from os import PathLike
from typing import TypedDict


class StoreKeywords(TypedDict, total=False):
    endpoint: str
    region: str
    addressingStyle: str
    profile: str
    accessKeyId: str
    secretAccessKey: str
    sessionToken: str
    serverSideEncryption: str
    kmsKeyId: str
    bucketKeyEnabled: bool | str
    storageClass: str
    checksum: str
    requesterPays: bool | str
    expectedBucketOwner: str
    maxInFlightRequests: int | str
    targetPoolSize: int | str
    maxRetryAttempts: int | str
    hedge: bool | str
    retryBaseDelayMs: int | str
    sequencer: str
    tableLocation: str


class SourceKeywords(StoreKeywords, total=False):
    startingPosition: int | str
    endingPosition: int | str
    startingTimestamp: datetime | int | str
    endingTimestamp: datetime | int | str
    maxRowsPerTrigger: int | str
    maxBytesPerTrigger: int | str
    maxCommitsPerTrigger: int | str
    minPartitions: int | str
    failOnDataLoss: bool | str
    includeMetadata: bool | str
    verifyChecksums: bool | str
    verifyTexts: bool | str
    sequencers: str
    onCorruption: str
    consumer: str
    cursorInterval: int | str
    lease: int | str


class VerifyKeywords(StoreKeywords, total=False):
    fast: bool | str


class SinkKeywords(StoreKeywords, total=False):
    batchSizeThreshold: int | str
    batchTimeoutMs: int | str
    windowSize: int | str
    compression: str
    mergeSchema: bool | str
    planTtl: int | str
    inlineThreshold: int | str
    multipartThreshold: int | str
    checkpointMaxBytes: int | str
    txnAppId: str
    txnVersion: int | str
    takeOver: bool | str


class AppenderKeywords(StoreKeywords, total=False):
    batchSizeThreshold: int | str
    batchTimeoutMs: int | str
    windowSize: int | str
    compression: str
    mergeSchema: bool | str
    planTtl: int | str
    maxBufferedBytes: int | str
    softLimitBytes: int | str
    hardLimitBytes: int | str
    makeSegments: bool | str
    journal: str | PathLike[str]
    journalSync: str
    journalSyncInterval: int | str
    journalSegmentBytes: int | str
    journalMaxBytes: int | str
    journalSlots: int | str
    journalSentUpTo: int | str


class LifecycleKeywords(StoreKeywords, total=False):
    lateArriveWindowSeconds: int | str
    persistRowThreshold: int | str
    persistAgeThresholdSeconds: int | str
    persistBytesThreshold: int | str
    softLimitBytes: int | str
    hardLimitBytes: int | str
    retainSeconds: int | str
    retainBytes: int | str
    refusedRows: str
    gcGrace: int | str
    consumerExpiry: int | str
    tombstoneHorizon: int | str
    makeSegments: bool | str
