"""Checks whether a store is fit for a log: for `prove-store`, `doctor` and the first write."""
