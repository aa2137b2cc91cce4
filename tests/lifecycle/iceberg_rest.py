"""Iceberg's own REST catalog as a process, over a catalog in a file and tables on this disk.

    with start_catalog(folder) as server:
        settings = {"type": "rest", "uri": server.url}

Ivy downloads its jars (40 MB) from Maven Central the first time.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from sparkwal.testing.servers import Server, start_server
from tests.jars import JAVA, JVM, SPARK_JARS, Module, fetch

_ICEBERG = "1.11.0"
_JETTY = "12.1.14"


def start_catalog(folder: Path) -> Server:
    """Start it on a free port. Raises ServerError, also where its jars cannot be had."""
    classpath = os.pathsep.join(jars())
    settings = {
        "CATALOG_REST_PORT": "{port}",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    command = [JAVA, *JVM, "-cp", classpath, "org.apache.iceberg.rest.RESTCatalogServer"]
    return start_server(command, {}, "/v1/config", settings)


@cache
def jars() -> tuple[str, ...]:
    """The jars of the server and of Iceberg's library. Raises ServerError without them."""
    modules = (
        # The server is among Iceberg's tests.
        Module("org.apache.iceberg", "iceberg-core", _ICEBERG, ("", "tests")),
        Module("org.apache.iceberg", "iceberg-open-api", _ICEBERG, ("test-fixtures",)),
        Module("org.eclipse.jetty.ee10", "jetty-ee10-servlet", _JETTY),
        Module("org.eclipse.jetty.compression", "jetty-compression-server", _JETTY),
        Module("org.eclipse.jetty.compression", "jetty-compression-gzip", _JETTY),
        Module("org.xerial", "sqlite-jdbc", "3.54.1.0"),
    )
    with tempfile.TemporaryDirectory(prefix="sparkwal-ivy-") as home:
        found = fetch(modules, Path(home), transitive=True)
    hadoop = SPARK_JARS.glob("hadoop-client-*.jar")
    return (*found, *map(str, hadoop))
