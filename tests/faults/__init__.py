"""Spark applications and stores that fail on purpose, and the proof that nothing was lost."""
