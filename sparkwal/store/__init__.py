"""Object stores behind one small interface. Knows nothing of the log's protocol."""
