"""Shoal's process on a node: joins the gang, starts and watches its ranks there, carries logs, samples and heartbeats.

Stands alone: standard library only, Python 3.9 or newer; it travels to a node as one file.
"""
