"""Keeps secrets out of the logs of the libraries that send requests."""

import logging
import re
from collections.abc import Iterable

# At DEBUG these libraries log requests with signatures and the tokens of temporary credentials.
_LOGGERS = ("azure", "botocore", "google", "msal", "urllib3")
# A token in a header, a dict, a canonical request, or http.client's error about a header; and a
# signature.
_SIGNED = re.compile(
    r"""(x-amz-security-token['"]?\s*[:=]\s*b?['"]?|[Ss]ignature=|(?<=Signature:\n)"""
    r"""|[?&]sig=|Invalid header value b?['"])[^\s'",]+""",
    re.IGNORECASE,
)
# Shorter secrets are the keys of test servers: common words, which must stay in the log.
_SHORTEST = 8
_secrets: frozenset[str] = frozenset()


def _concealing(record: logging.LogRecord) -> bool:
    """A filter that replaces secrets in records, and drops no record."""
    message = record.getMessage()
    hidden = _SIGNED.sub(r"\1***", message)
    for secret in _secrets:
        hidden = hidden.replace(secret, "***")
    if hidden != message:
        record.msg, record.args = hidden, ()
    return True


def conceal(secrets: Iterable[str]) -> None:
    """Keep these secrets, all tokens and all signatures out of these logs in this process.

    A filter gets the records of one logger only, so call this again after a library has imported
    more modules.
    """
    global _secrets
    _secrets |= {secret for secret in secrets if len(secret) >= _SHORTEST}
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _LOGGERS:
            logging.getLogger(name).addFilter(_concealing)
