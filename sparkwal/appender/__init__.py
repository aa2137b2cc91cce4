"""The log for any Python process: append rows, learn when they are durable."""
