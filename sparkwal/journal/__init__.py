"""Keeps appends on this machine's disk, in order, until the log has them."""
