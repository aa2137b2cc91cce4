"""Modules that the jobs share."""
