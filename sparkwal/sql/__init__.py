"""Any question about a log in SQL, answered by DuckDB."""
