"""The rules that make the log safe; PROTOCOL.md gives the reasons. Imports neither Spark nor
boto3."""
