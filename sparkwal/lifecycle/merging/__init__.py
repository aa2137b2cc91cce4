"""Rows of one key in Arrow: which of them counts, and what a delete condition says of it."""
