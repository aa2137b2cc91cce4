"""Tools to test what writes or reads a log, also against stores that fail.

- `memory.MemoryStore`: a store in memory; its objects can be looked at and damaged.
- `proxy.S3Proxy`, `faults.Fault`: in front of any S3 server on plain HTTP: counts requests,
  adds latency, loses replies, breaks connections, answers 409, 429, 500 or 503.
- `servers`: starts ministack or moto (`pip install ministack`, `pip install 'moto[server]'`).
"""
