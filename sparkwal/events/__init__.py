"""Typed events. The library emits them and configures no logging handlers.

Every event goes to the subscribers of this process and, as one line ``name key=value …``, to
``logging.getLogger("sparkwal")``: at WARNING if an operator should look, otherwise at INFO. With
Spark, most events happen in Spark's Python workers, which print warnings to their standard error.
"""

# ruff: noqa: F403
from sparkwal.events.emitting import *
from sparkwal.events.journaling import *
from sparkwal.events.maintenance import *
from sparkwal.events.writing import *
