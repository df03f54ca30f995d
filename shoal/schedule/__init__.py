"""Who starts where, and why the others wait. Pure: (queue, nodes, held) → decision."""

from shoal.schedule.decide import Decision, Start, Waiting, Why, decide
from shoal.schedule.fit import Room, check_possible, place

__all__ = ["Decision", "Room", "Start", "Waiting", "Why", "check_possible", "decide", "place"]
