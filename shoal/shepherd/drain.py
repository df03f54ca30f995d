"""After a shepherd was killed: brings what is left in its spool, and its events, to the server, then says done."""

from __future__ import annotations

from shoal.contract import Task
from shoal.shepherd.events import Events
from shoal.shepherd.gang import Gang
from shoal.shepherd.journal import Journal
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.place import Place
from shoal.shepherd.progress import Board
from shoal.shepherd.ship import Shipper
from shoal.shepherd.spool import Spool


def drain(task: Task, place: Place, journal: Journal) -> int:
    """Returns the exit status, once the server has everything or says that the gang is over."""
    mailbox = Mailbox()
    events = Events(place.events, journal)
    events.load()
    spool = Spool(place.spool, [seat.name for seat in task.seats], task.log_limit, journal)
    shipper = Shipper(Gang(task, mailbox, journal), spool, events, Board(), mailbox, late=True)
    shipper.doubt()
    shipper.finish()
    shipper.run()
    place.tidy()
    return 0
