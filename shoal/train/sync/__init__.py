"""Synchronisation strategies, one file each: what is exchanged around a step."""
