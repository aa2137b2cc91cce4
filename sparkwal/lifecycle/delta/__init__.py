"""A Delta table without a JVM: its transaction log, and what it takes of a log."""
