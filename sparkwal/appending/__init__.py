"""Inside `sparkwal.Appender`: rows, batches, the persistence thread, its subscribers."""
