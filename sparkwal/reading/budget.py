"""The limits of one microbatch of a stream."""

from __future__ import annotations

from sparkwal.format.header import CommitHeader
from sparkwal.options.reading import SourceOptions


class Budget:
    """What one microbatch may hold, over all the logs it reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rows = self._size = self._count = 0
        self.spent = False

    def takes(self, header: CommitHeader) -> bool:
        """Whether this commit still fits. The first one does: a commit is never split."""
        self._rows += header.rows
        self._size += header.bytes
        self._count += 1
        over = (
            self._rows > (self._options.max_rows or self._rows)
            or self._size > (self._options.max_bytes or self._size)
            or self._count > (self._options.max_commits or self._count)
        )
        self.spent = over and self._count > 1
        return not self.spent
