"""Finds an Iceberg table by pyiceberg's own configuration, and commits to it in one attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sparkwal.errors import (
    OptionError,
    SparkWalError,
    TableReadError,
    install_extra,
    require_library,
)
from sparkwal.lifecycle.table import TableConflict

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

_NAME = re.compile(r"iceberg://([^/?#@:\s]+)/([^/?#@:\s]+\.[^/?#@:\s.]+)")
_SECRET = re.compile("key|token|secret|password|credential|sas|uri", re.IGNORECASE)
# The user and the password of a URL, and its query, which may hold a signature.
_USER = re.compile(r"(\w+://)[^\s/@'\"]+@")
_QUERY = re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\")]*")

# A REST catalog that takes longer for an answer, or for a part of it, is taken for unreachable.
_ANSWER_SECONDS = 120


class OutcomeUnknown(Exception):
    """The catalog did not answer, or with another error than a conflict: it may have committed."""


class Place:
    """The place of a table: iceberg://CATALOG/NAMESPACE.TABLE.

    Raises:
        OptionError: it has another form, or pyiceberg is not installed.
    """

    def __init__(self, url: str) -> None:
        require_library("pyiceberg", install_extra("iceberg"))
        match = _NAME.fullmatch(url)
        if match is None:
            raise OptionError(
                "an Iceberg table is named iceberg://CATALOG/NAMESPACE.TABLE, and the catalog is "
                "configured for pyiceberg, in .pyiceberg.yaml or by PYICEBERG_CATALOG__…"
            )
        self.url = url
        self.catalog_name, self.identifier = match[1], match[2]

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog of pyiceberg's configuration."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.rest import RestCatalog

        catalog = load_catalog(self.catalog_name)
        if isinstance(catalog, RestCatalog):
            session = catalog._session
            # pyiceberg sets no limit, and a connection may break without a word.
            session.request = partial(session.request, timeout=_ANSWER_SECONDS)
        return catalog

    def load(self) -> Table | None:
        """Load the newest metadata of the table, or None if there is no table.

        Raises:
            TableReadError: the catalog or the metadata is unreadable.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.errors():
            try:
                return self.catalog.load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of pyiceberg.

        Raises:
            TableReadError: any error but those of sparkwal. Its message contains no secret.
        """
        try:
            yield
        except (SparkWalError, TableConflict, OutcomeUnknown):
            raise
        except Exception as error:  # each catalog and store has its own classes of errors
            raise TableReadError(f"{self.url} is unreadable: {self.text_of(error)}") from None

    def text_of(self, error: Exception) -> str:
        """The message of an error in one line, without secrets."""
        loaded = self.__dict__.get("catalog")
        properties: Mapping[str, Any] = loaded.properties if loaded is not None else {}
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        for name, value in properties.items():
            if value and _SECRET.search(name):
                text = text.replace(str(value), "***")
        return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))


def commit(place: Place, table: Table, transaction: Transaction) -> None:
    """Commit what a transaction staged, in one attempt.

    Args:
        place: that of the table.
        table: the table as the transaction began with it.
        transaction: it adds a snapshot to the main branch, or changes the schema.

    Raises:
        TableConflict: another writer committed first.
        OutcomeUnknown: it may be committed.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    # SAFETY(onto-looked-snapshot) §10: a range is committed onto the snapshot that was looked at
    own = transaction._requirements
    requirements = (*own, AssertTableUUID(uuid=table.metadata.table_uuid))
    try:
        # SAFETY(one-attempt) §10: pyiceberg's own commit moves a range onto a newer snapshot, and
        # then deletes files that a commit with a lost answer may name
        now = place.catalog.commit_table(table, requirements, transaction._updates)
    except CommitFailedException as error:
        raise TableConflict(f"{place.url}: {place.text_of(error)}") from None
    except Exception as error:
        raise OutcomeUnknown(place.text_of(error)) from None
    # The range is in the table. Metadata that is left over harms nobody.
    with suppress(Exception):
        place.catalog._delete_old_metadata(table.io, table.metadata, now.metadata)
