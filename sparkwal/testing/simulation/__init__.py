"""The real protocol code against a simulated world: every interleaving of a small
configuration, and seeded runs of larger ones."""
