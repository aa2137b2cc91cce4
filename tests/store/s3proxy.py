"""S3Proxy as a process: an S3 server over a backend that it keeps in memory.

    with start_s3proxy(NEW) as server:
        make_bucket(server.url, "wal")

Ivy downloads its jars (10 MB) from Maven Central the first time.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from sparkwal.testing.servers import Server, start_server
from tests.jars import JAVA, JVM, Module, fetch

# The one looks whether a key is free and writes later; the other does both at once.
OLD, NEW = "3.1.0", "4.0.0"
# Jars for other clouds; the remaining ones keep objects in memory.
_CLOUDS = (
    "com.amazonaws",
    "com.azure",
    "com.google.api",
    "com.google.api.grpc",
    "com.google.apis",
    "com.google.auth",
    "com.google.cloud",
    "com.google.cloud.opentelemetry",
    "com.google.http-client",
    "com.google.oauth-client",
    "com.microsoft.azure",
    "io.grpc",
    "io.netty",
    "io.opencensus",
    "io.projectreactor",
    "io.projectreactor.netty",
    "net.java.dev.jna",
    "org.apache.sshd",
    "org.conscrypt",
)
_PROPERTIES = """\
s3proxy.authorization=none
s3proxy.endpoint=http://127.0.0.1:{port}
jclouds.provider=transient-nio2
jclouds.identity=local
jclouds.credential=local
"""


def start_s3proxy(version: str) -> Server:
    """Start it on a free port. Raises ServerError, also where its jars cannot be had."""
    jars = os.pathsep.join(_jars(version))
    return start_server(
        [JAVA, *JVM, "-cp", jars, "org.gaul.s3proxy.Main", "--properties", "conf"],
        {"conf": _PROPERTIES},
    )


@cache
def _jars(version: str) -> tuple[str, ...]:
    modules = (
        Module("org.gaul", "s3proxy", version),
        # 4.0.0 needs it and does not name it.
        Module("com.fasterxml.jackson.core", "jackson-annotations", "2.21"),
    )
    with tempfile.TemporaryDirectory(prefix="sparkwal-ivy-") as home:
        return tuple(fetch(modules, Path(home), transitive=True, without=_CLOUDS))
