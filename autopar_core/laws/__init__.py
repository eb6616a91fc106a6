"""Seconds of operations and collectives on a system: pure functions of arrays."""
