"""Spark's checkpoint in the log: carried by its records, rebuilt from them, held against them."""
