"""Libraries that only some calls need."""

from importlib.util import find_spec

from sparkwal.errors import OptionError


def need(library: str, install: str) -> None:
    """Raises OptionError where a library is not installed; call it before what takes long."""
    if find_spec(library) is None:
        raise OptionError(f"{library} is not installed for this Python: pip install '{install}'")


def need_pandas() -> None:
    """Raises OptionError."""
    need("pandas", "pandas>=2.2,<3")


def need_pyspark() -> None:
    """Raises OptionError."""
    need("pyspark", "sparkwal[spark]")
