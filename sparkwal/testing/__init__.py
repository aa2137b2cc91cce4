"""Tools for tests of programs that write or read a log, also with stores that fail.

- `memory.MemoryStore`: a store in memory, whose objects a test can inspect and damage.
- `proxy.S3Proxy`, `faults.Fault`: a proxy for any S3 server on plain HTTP. It counts requests,
  adds latency, loses replies, breaks connections, and answers 409, 429, 500 or 503.
- `servers`: starts ministack or moto (`pip install ministack`, `pip install 'moto[server]'`).
"""
