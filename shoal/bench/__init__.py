"""Measurements of Shoal on this machine, next to its peers: `shoal bench`. A new figure is one line in `catalogue`."""

from shoal.bench.catalogue import BENCHES
from shoal.bench.figure import Figure, Target
from shoal.bench.report import main

__all__ = ["BENCHES", "Figure", "Target", "main"]
