"""From a log to its rows, without Spark: ranges, pieces, rows, the proof of a whole log."""
