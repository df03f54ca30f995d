"""Gets ready what a launch needs: processes, code, inputs, environment, roster; in a thread: a stop is to be heard."""

from __future__ import annotations

import time
from pathlib import Path
from queue import SimpleQueue
from typing import List, Optional

from shoal.contract import Process
from shoal.errors import GangOver, ServerAway
from shoal.shepherd.environment import NotReady, Outfitter
from shoal.shepherd.gang import Gang, Launch, Refused, pause
from shoal.shepherd.journal import Journal
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.place import Place, fill_once
from shoal.shepherd.unpack import BadArchive, unpack
from shoal.shepherd.wire import WireError

# Over a minute of a server that answers and then breaks off: it has lost a part of the thing, and will not find it.
_MOST_BROKEN = 20


class Fetcher:
    """Answers each wish with a letter: `prepared` (processes, member), or `unprepared` with what to tell the user."""

    def __init__(self, gang: Gang, place: Place, outfitter: Outfitter, mailbox: Mailbox, journal: Journal) -> None:
        self._gang = gang
        self._outfitter = outfitter
        self._place = place
        self._mailbox = mailbox
        self._journal = journal
        self._wishes: SimpleQueue[Optional[str]] = SimpleQueue()
        self._broken = 0  # downloads of one thing that broke off, in a row

    def prepare(self, member: str = "") -> None:
        """For all seats, or for one that starts again."""
        self._wishes.put(member)

    def renew_roster(self) -> None:
        self._wishes.put(None)

    def abandon(self) -> None:
        """Nobody is to be started any more: what takes minutes is given up."""
        self._outfitter.abandon()

    def tidy(self) -> None:
        self._outfitter.tidy()

    def run(self) -> None:
        try:
            while True:
                member = self._wishes.get()
                if member is None:
                    self._renew_roster()
                else:
                    self._prepare(member)
        except GangOver as over:
            self._mailbox.put("over", why=over.message)

    def _prepare(self, member: str) -> None:
        try:
            processes = self._fetch()
        except (Refused, NotReady) as refused:
            self._mailbox.put("unprepared", member=member, message=str(refused))
        except (BadArchive, OSError) as error:
            self._mailbox.put("unprepared", member=member, message=f"the node could not be made ready: {error}")
        else:
            wanted = [each for each in processes if member in ("", each.name)]
            self._mailbox.put("prepared", member=member, processes=wanted)

    def _fetch(self) -> List[Process]:
        launch: Launch = self._gang.again(self._gang.launch)
        if launch.code:
            self._fill("code", self._place.work)
        self._place.work.mkdir(parents=True, exist_ok=True)
        for name in launch.inputs:
            self._fill(f"inputs/{name}", self._place.inputs / name)
        outfit = self._outfitter.fit(launch.environment)
        self._fetch_roster()
        return [outfit.put_on(each) for each in launch.processes]

    def _renew_roster(self) -> None:
        """Again until the disk takes it: the ranks live on with the old one meanwhile."""
        tries = 0
        while True:
            try:
                return self._fetch_roster()
            except OSError as error:
                self._journal.note(f"the new roster cannot be written: {error}")
                time.sleep(pause(tries))
                tries += 1

    def _fetch_roster(self) -> None:
        self._place.write_roster(self._gang.again(self._gang.roster))

    def _fill(self, what: str, folder: Path) -> None:
        self._broken = 0
        try:
            fill_once(folder, lambda: self._gang.again(lambda: self._download(what, folder)))
        except Refused as refused:
            raise Refused(f"{what.replace('inputs/', 'input ', 1)} cannot be had: {refused}") from refused

    def _download(self, what: str, folder: Path) -> None:
        answer = self._gang.open_tar(what)
        try:
            unpack(answer, folder)
            answer.read()
        except WireError as error:
            self._broken += 1
            if self._broken >= _MOST_BROKEN:
                raise Refused(f"it broke off {self._broken} times, last: {error}") from error
            raise ServerAway(f"{what} broke off: {error}") from error
        finally:
            self._gang.close_tar(answer)
