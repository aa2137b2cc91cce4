"""What botocore logs of its requests, without what must stay secret.

At DEBUG it logs each request whole: the token of temporary credentials in clear, and signatures.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

_NAMES = ("botocore", "urllib3")
# As a header, as an entry of a dict, in a canonical request; and the signature.
_SIGNED = re.compile(
    r"""(x-amz-security-token['"]?\s*[:=]\s*b?['"]?|[Ss]ignature=|(?<=Signature:\n))[^\s'",]+""",
    re.IGNORECASE,
)
# Keys of test servers are words that stand everywhere.
_SHORTEST = 8


class _Concealing(logging.Filter):
    """Changes records; drops none."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: frozenset[str] = frozenset()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        hidden = _SIGNED.sub(r"\1***", said)
        for secret in self.secrets:
            hidden = hidden.replace(secret, "***")
        if hidden != said:
            record.msg, record.args = hidden, ()
        return True


_concealing = _Concealing()


def conceal(secrets: Iterable[str]) -> None:
    """Keep these values, all tokens and all signatures out of what botocore logs in this process.
    Call it again once more of botocore was imported: a filter sees one logger's records only."""
    long = {secret for secret in secrets if len(secret) >= _SHORTEST}
    if not long <= _concealing.secrets:
        _concealing.secrets |= long
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _NAMES:
            logging.getLogger(name).addFilter(_concealing)
