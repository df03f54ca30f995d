"""Leaves that know nothing of Shoal: standard library only, Python 3.9 or newer."""
