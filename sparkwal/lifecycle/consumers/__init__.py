"""Readers with a name, and leases: what the log keeps for them."""
