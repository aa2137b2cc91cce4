"""Typed events. The library configures no logging handlers; it only emits.

Every event goes to the subscribers of this process and, as one line ``name key=value …``, to
``logging.getLogger("sparkwal")``: at WARNING where an operator should look, else at INFO. With
Spark, most happen in Spark's Python workers; what is a warning shows up in their standard error.
"""

# ruff: noqa: F403
from sparkwal.events.emitting import *
from sparkwal.events.journaling import *
from sparkwal.events.maintenance import *
from sparkwal.events.writing import *
