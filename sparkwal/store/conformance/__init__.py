"""Is a store fit for a log? One suite, for `prove-store`, `doctor` and the proof at first write."""
