"""The loop that acts: admits jobs, gives them places, starts and ends gangs, and answers shepherds and people."""

from shoal.control.bell import Bell
from shoal.control.desk import Desk
from shoal.control.gangs import Gangs
from shoal.control.loop import Loop
from shoal.control.parts import Parts
from shoal.control.people import User

__all__ = ["Bell", "Desk", "Gangs", "Loop", "Parts", "User"]
