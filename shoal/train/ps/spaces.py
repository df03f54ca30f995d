"""All spaces of one server: made by the first hello, found again by a process that takes over."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from pathlib import Path

from shoal.errors import BadRequest, NotFound
from shoal.train.errors import BadCheckpoint, NoRoom
from shoal.train.ps.copies import Copies
from shoal.train.ps.place import Place
from shoal.train.ps.served import Served, shard_for
from shoal.train.ps.shard import Shard
from shoal.train.wire.frames import Meta
from shoal.train.world import WORKER

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,63}")  # it becomes part of the names of files

_log = logging.getLogger("shoal.train")


class Spaces:
    """By name. Methods may be called from any thread."""

    def __init__(self, place: Place, copies: Copies) -> None:
        self.place, self._copies = place, copies
        self._spaces: dict[str, Served] = {}
        self._lost: frozenset[int] = frozenset()  # workers that the roster has given up
        self._lock = threading.RLock()

    def find(self, name: object) -> Served:
        """NotFound for one that nobody has said hello to."""
        served = self._spaces.get(str(name))
        if served is None:
            raise NotFound(f"{self.place.name} has no space {name!r}; say hello to it first")
        return served

    def make(self, meta: Meta) -> Served:
        """The space, made by the first who says hello to it: from a copy where there is one, else empty."""
        name = str(meta.get("space"))
        if not NAME.fullmatch(name):
            raise BadRequest(f"{name!r} is no name of a space; use letters, digits and dots, such as 0.0")
        with self._lock:
            if name not in self._spaces:
                shard = self._fresh(name, meta)
                served = Served(name, shard, shard.path, self.place)
                served.offered = shard.recipe
                self._copies.restore(name, served)
                self._serve(name, served)
            return self._spaces[name]

    def _fresh(self, name: str, meta: Meta) -> Shard:
        """An empty shard, in shared memory while there is room in it."""
        file = f"shard-{name}-s{self.place.index}"
        try:
            return shard_for(meta, self.place.shared / file, self.place)
        except NoRoom as short:
            _log.warning("%s: space %s lies on disk, which is slower: %s", self.place.name, name, short.message)
            self.place.spill.mkdir(mode=0o700, parents=True, exist_ok=True)
            return shard_for(meta, self.place.spill / file, self.place)

    def _serve(self, name: str, served: Served) -> None:
        served.start()
        served.lost(self._lost)
        self._spaces[name] = served
        self._copies.follow(name, served)

    def _folders(self) -> tuple[Path, Path]:
        return self.place.shared, self.place.spill

    def recover(self) -> list[str]:
        """Takes over what a process before left in shared memory; says what it found, in words."""
        found = []
        for path in sorted(one for folder in self._folders() for one in folder.glob(f"shard-*-s{self.place.index}")):
            name = path.name[len("shard-") : -len(f"-s{self.place.index}")]
            try:
                shard = Shard.open(path)
            except BadCheckpoint as broken:  # its maker died over it
                path.unlink()
                found.append(f"space {name} unfinished, and threw it away ({broken.message})")
                continue
            served = Served(name, shard, path, self.place)
            served.berths.find()
            self._serve(name, served)
            state = "an update half done" if served.space.recovering else "whole"
            found.append(f"space {name} at version {served.shard.version}, {state}")
        return found

    def spaces(self) -> dict[str, Served]:
        with self._lock:
            return dict(self._spaces)

    def give_up_on_absent(self) -> None:
        """Members that did not call again after a restart are lost."""
        for name, served in self.spaces().items():
            absent = served.space.absent()
            if absent:
                told = ", ".join(f"{WORKER}-{one}" for one in absent)
                _log.warning("space %s: %s did not come back after the restart", name, told)
                served.space.give_up_on(absent)

    def lost(self, workers: frozenset[int]) -> None:
        """The roster says that these are gone, also those that never called."""
        self._lost = workers
        for served in self.spaces().values():
            served.lost(workers)

    def refuse(self, why: str) -> None:
        """No worker is served any more; who waits is told why."""
        for served in self.spaces().values():
            served.space.refuse(why)

    def close(self) -> None:
        """Nothing happens here any more."""
        for served in self.spaces().values():
            served.space.close()
        shutil.rmtree(self.place.spill, ignore_errors=True)
