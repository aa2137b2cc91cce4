"""All objects below a prefix of a store."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparkwal.store.base import Store, all_entries


@dataclass(frozen=True)
class Folder:
    """A folder, as `sparkwal.lifecycle.table.SearchedObjects`.

    Attributes:
        store: the store.
        prefix: the prefix, with its last "/"; "" for all of the store.
        until: what ends an object, by its name below the prefix.
    """

    store: Store
    prefix: str
    until: Callable[[str], str]

    def names(self) -> Sequence[str]:
        """List the objects. See `SearchedObjects.names`."""
        keys = (entry.key for entry in all_entries(self.store, self.prefix))
        return [key.removeprefix(self.prefix) for key in keys if not key.endswith("/")]

    def url(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.store.url}/{self.prefix}{name}"

    def read(self, name: str) -> bytes:
        """Read an object. See `SearchedObjects.read`."""
        return self.store.get(self.prefix + name)

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Find uploads that did not end. See `SearchedObjects.unread`."""
        after = ""
        while True:
            page = self.store.unfinished(self.prefix, after)
            for upload in page.uploads:
                name = upload.key.removeprefix(self.prefix)
                ends = "sparkwal collect --delete, or the bucket's rule for such uploads"
                yield self.url(name), "it is an upload that did not end", ends
            after = page.after
            if not after:
                return
