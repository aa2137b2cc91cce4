"""Spark's source and sink: thin; every decision is the protocol's."""
