"""The version of the installed package."""

from __future__ import annotations

import configparser
from pathlib import Path

import sparkwal


def test_the_version_is_the_packages() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    assert sparkwal.__version__ == config["metadata"]["version"]
