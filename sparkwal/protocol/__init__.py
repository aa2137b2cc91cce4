"""The rules that make the log safe. Knows neither Spark nor boto3; PROTOCOL.md says why."""
