"""A journal on this machine's disk: what was accepted survives the process, in order."""
