"""Typed events. The library configures no logging handlers; it only emits.

Every event goes to the subscribers of this process and, as one line
``name key=value …``, to ``logging.getLogger("sparkwal")``: at WARNING where an
operator should look, else at INFO. With Spark, most happen in Spark's Python
workers; what is a warning shows up in their standard error.

The docstring of each class below is its meaning in `docs/events.md`.
"""

from __future__ import annotations

from sparkwal.events.emitting import Event as Event
from sparkwal.events.emitting import emit as emit
from sparkwal.events.emitting import is_wanted as is_wanted
from sparkwal.events.emitting import subscribe as subscribe
from sparkwal.events.journal import Checkpointed as Checkpointed
from sparkwal.events.journal import CursorRejected as CursorRejected
from sparkwal.events.journal import JournalFull as JournalFull
from sparkwal.events.journal import JournalOpened as JournalOpened
from sparkwal.events.journal import Quarantined as Quarantined
from sparkwal.events.journal import Replayed as Replayed
from sparkwal.events.journal import ReplayStarted as ReplayStarted
from sparkwal.events.journal import ReplayStopped as ReplayStopped
from sparkwal.events.journal import SegmentRemoved as SegmentRemoved
from sparkwal.events.journal import StoreAway as StoreAway
from sparkwal.events.journal import StoreBack as StoreBack
from sparkwal.events.journal import TailTruncated as TailTruncated
from sparkwal.events.lifecycle import Collected as Collected
from sparkwal.events.lifecycle import CompactionDone as CompactionDone
from sparkwal.events.lifecycle import CompactionPlanned as CompactionPlanned
from sparkwal.events.lifecycle import CompactionRetried as CompactionRetried
from sparkwal.events.lifecycle import CompactionSuspended as CompactionSuspended
from sparkwal.events.lifecycle import CompactionWaits as CompactionWaits
from sparkwal.events.lifecycle import ConsumerNotPublished as ConsumerNotPublished
from sparkwal.events.lifecycle import ConsumerShared as ConsumerShared
from sparkwal.events.lifecycle import CurrentRead as CurrentRead
from sparkwal.events.lifecycle import FloorMoved as FloorMoved
from sparkwal.events.lifecycle import LeaseLeftBehind as LeaseLeftBehind
from sparkwal.events.lifecycle import SizeLimit as SizeLimit
from sparkwal.events.writing import Aborted as Aborted
from sparkwal.events.writing import Accepted as Accepted
from sparkwal.events.writing import Adopted as Adopted
from sparkwal.events.writing import AnotherQuery as AnotherQuery
from sparkwal.events.writing import CheckpointRebuilt as CheckpointRebuilt
from sparkwal.events.writing import CheckpointTooLarge as CheckpointTooLarge
from sparkwal.events.writing import CheckpointUsed as CheckpointUsed
from sparkwal.events.writing import Durable as Durable
from sparkwal.events.writing import Fenced as Fenced
from sparkwal.events.writing import HandedOver as HandedOver
from sparkwal.events.writing import HandoverAsked as HandoverAsked
from sparkwal.events.writing import HandoverLeftBehind as HandoverLeftBehind
from sparkwal.events.writing import Hedged as Hedged
from sparkwal.events.writing import HintNotSaved as HintNotSaved
from sparkwal.events.writing import LeaderClaimed as LeaderClaimed
from sparkwal.events.writing import Missed as Missed
from sparkwal.events.writing import OtherPython as OtherPython
from sparkwal.events.writing import PlainHttp as PlainHttp
from sparkwal.events.writing import Planned as Planned
from sparkwal.events.writing import ProofLeftBehind as ProofLeftBehind
from sparkwal.events.writing import Recovered as Recovered
from sparkwal.events.writing import Rejected as Rejected
from sparkwal.events.writing import RemoteCheckpoint as RemoteCheckpoint
from sparkwal.events.writing import ReplayNotCompared as ReplayNotCompared
from sparkwal.events.writing import Retried as Retried
from sparkwal.events.writing import SkippedReplay as SkippedReplay
from sparkwal.events.writing import SlowCheckpointFiles as SlowCheckpointFiles
from sparkwal.events.writing import Stopped as Stopped
from sparkwal.events.writing import UploadLeftBehind as UploadLeftBehind
