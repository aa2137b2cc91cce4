"""A log's life after its rows were written: into a table, and out of the log."""
