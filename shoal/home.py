"""Where Shoal keeps its things on a machine: the folders under SHOAL_HOME, and the note of the running server."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal._lib.ids import short_id

HOME_VARIABLE = "SHOAL_HOME"
CACHE_VARIABLE = "SHOAL_CACHE"
ENVIRONMENTS = "environments"  # in the cache folder: virtual environments, shared between jobs
DATABASE_VARIABLE = "SHOAL_DATABASE"  # the address of a server's database, which may hold a password


def cache_folder() -> Path:
    """SHOAL_CACHE, else the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "shoal"


@dataclass(frozen=True)
class ServerNote:
    """What server.json says: enough to reach the running server, nothing secret."""

    url: str
    pid: int
    version: str
    started_at: float
    fingerprint: str | None = None


@dataclass(frozen=True)
class Home:
    """The folders and files under one SHOAL_HOME. Knows names, creates on demand, owner-only."""

    root: Path

    @classmethod
    def here(cls) -> Home:
        return cls(Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".shoal").expanduser().absolute())

    @property
    def database(self) -> Path:
        return self.root / "home.db"

    @property
    def note_file(self) -> Path:
        return self.root / "server.json"

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def config_file(self) -> Path:
        return self.root / "config.toml"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    def log_size(self) -> int:
        """Bytes of the server's log by now; 0 before there is one."""
        return self.server_log.stat().st_size if self.server_log.exists() else 0

    @property
    def lock_file(self) -> Path:
        return self.root / "server.lock"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def gangs(self) -> Path:
        return self.root / "gangs"

    @property
    def people(self) -> Path:
        """One folder per user, the HOME of his jobs where they do not run under the server's own user."""
        return self.root / "people"

    @property
    def public(self) -> Path:
        """What every shepherd may read, whoever it runs as: the shepherd itself, the library, where the server is."""
        return self.root / "public"

    @property
    def public_note(self) -> Path:
        return self.public / "server.json"

    def create(self) -> None:
        for folder in (self.root, self.blobs, self.logs, self.work, self.gangs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_readable(self.public)

    def identity(self) -> str:
        """A name that is this home's alone, made once: the server that holds the home's lock may act under it again."""
        path = self.root / "identity"
        if not path.exists():
            draft = path.with_name(f".identity.{os.getpid()}")
            write_private(draft, short_id(20))
            with suppress(FileExistsError):  # another process was first: its name is the home's
                path.hardlink_to(draft)
            draft.unlink()
        return path.read_text().strip()

    def write_note(self, note: ServerNote) -> None:
        write_private(self.note_file, json.dumps(asdict(note)))
        make_readable(self.public)
        write_private(self.public_note, json.dumps(asdict(note)), mode=0o644)

    def read_note(self) -> ServerNote | None:
        """The last server's note, or None; the server it names may have died since."""
        try:
            return ServerNote(**json.loads(self.note_file.read_text()))
        except FileNotFoundError:
            return None

    def read_token(self) -> str | None:
        try:
            return self.token_file.read_text().strip() or None
        except FileNotFoundError:
            return None


def make_readable(folder: Path) -> None:
    """A folder that everyone may look into who can reach it, whatever the umask says."""
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a file only its owner can read, unless `mode` says otherwise, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchmod(descriptor, mode)
    fresh.replace(path)
