"""Strategies under a virtual clock: the real arithmetic, seeded schedules, any number of workers in one process. For
tests of what must always hold, and for experiments larger than the machine."""
