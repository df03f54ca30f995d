"""Partition strategies, one file each: who holds which part of the model."""
