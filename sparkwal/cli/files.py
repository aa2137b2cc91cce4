"""Files that commands write."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sparkwal.cli.exits import Failed, Refused


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, where a link leads to; a pipe or a device is written
    as it is.

    Raises Refused for a place where no file can be, Failed where the disk does not take it.
    """
    temporary = None
    try:
        path = path.resolve()
        # There is nothing to rename over a pipe.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            opened = path.open("wb")
        else:
            temporary = path.with_name(f".sparkwal-{uuid.uuid4().hex}")
            opened = temporary.open("xb")
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        raise Refused(f"-o {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        with opened:
            yield opened
            if temporary is not None:
                opened.flush()
                os.fsync(opened.fileno())
        if temporary is not None:
            temporary.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(f"-o {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
