"""The format of a log's objects: keys, headers, Arrow files, schemas. It makes no requests."""
