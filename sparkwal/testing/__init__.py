"""Tools to test what writes or reads a log, also against stores that fail.

They need nothing beyond the base installation, except the servers of others.

- `memory.MemoryStore`: a store in memory; its objects can be looked at and damaged.
- `proxy.S3Proxy`, `faults.Fault`: in front of any S3 server on plain HTTP: counts requests,
  adds latency, loses replies, breaks connections, answers 409, 429, 500 or 503. Also a
  command: `python -m sparkwal.testing.proxy --upstream http://127.0.0.1:4566`.
- `servers`: starts ministack or moto (`pip install ministack`, `pip install 'moto[server]'`)
  as a process, makes buckets, and gives the options that reach it.
- `wire`: the HTTP that the proxy passes on.
"""
