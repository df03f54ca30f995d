"""What a job brings and leaves: its code and inputs as tar streams to the nodes, its outputs into a pool."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from shoal.control.parts import Parts
from shoal.errors import BadSpec, NotFound
from shoal.job.life import JobRecord
from shoal.job.spec import JobSpec
from shoal.storage.chunks import CHUNK
from shoal.storage.digests import Digests, FileDigest, tree_digest
from shoal.storage.folders import open_inside
from shoal.storage.manifest import Entry, Manifest
from shoal.storage.tars import plain_files, tar_folder

DIGESTS = "digests"  # the ending of the file that remembers the digests of a job's files
_remembering = threading.Lock()  # around writing such files
OUTPUTS = "outputs"  # the folder of the job's copy whose content goes to `outputs:`


def code_of(parts: Parts, record: JobRecord) -> Iterator[bytes]:
    """The uploaded folder, as one tar stream."""
    if record.manifest is None:
        return iter(())
    return load_manifest(parts, record.owner, record.manifest).tar(partial(parts.chunks.open, record.owner))


def load_manifest(parts: Parts, owner: str, manifest: str) -> Manifest:
    return Manifest.parse(json.loads(parts.store.manifest(owner, manifest)))


@dataclass(frozen=True, slots=True)
class Given:
    """What an input was: the digest of its paths and contents."""

    digest: str
    files: int
    bytes: int


Tell = Callable[[Given], None]


def input_of(parts: Parts, record: JobRecord, name: str, tell: Tell) -> Iterator[bytes]:
    """One input as a tar stream whose paths are relative to the input's folder.

    `tell` hears what exactly it was: at once from a pool, whose digests are known, else when it has been read.
    """
    address = record.spec.brought.get(name)
    if address is None:
        raise NotFound(f"the job has no input {name!r}; it has: {', '.join(record.spec.brought) or 'none'}")
    scheme, _, rest = address.partition("://")
    place, _, path = rest.partition("/")
    if scheme == "job":
        return _job_tree(parts, parts.store.find(place, record.owner), path, tell)
    owner = pool_owner(place, record.owner)
    tree = _pool_tree(parts, owner, path)
    tell(Given(tree.content_digest(), len(tree.entries), tree.size))
    return tree.tar(partial(parts.chunks.open, owner))


def _job_tree(parts: Parts, source: JobRecord, path: str, tell: Tell) -> Iterator[bytes]:
    """What another job left. Digests are remembered beside its folder: what did not change is not digested again."""
    known = Digests(parts.home.work / f".{source.id}.{DIGESTS}", keep=True)

    def sent(files: list[FileDigest]) -> None:
        with _remembering, suppress(OSError):  # a full disk costs only the memory
            known.save()
        tell(Given(tree_digest(files), len(files), sum(file.size for file in files)))

    return tar_folder(Path(source.in_place or parts.home.work / source.id), path, known, sent)


def check_addresses(parts: Parts, spec: JobSpec, owner: str) -> None:
    """BadSpec for an input or output that names a foreign pool or job, or an input that holds nothing."""
    for name, address in spec.brought.items():
        scheme, _, rest = address.partition("://")
        place, _, path = rest.partition("/")
        try:
            if scheme == "pool":
                _pool_tree(parts, pool_owner(place, owner), path)
            elif scheme == "job":
                parts.store.find(place, owner)
        except NotFound as missing:
            raise BadSpec(f"inputs.{name}: {missing.message}") from None
    if spec.outputs is not None:
        try:
            _output_place(spec.outputs, owner)
        except (NotFound, BadSpec) as wrong:
            raise BadSpec(f"outputs: {wrong.message}") from None


def pool_owner(pool: str, user: str) -> str:
    """Until pools are shared there is one per user: `me`, or his own name."""
    if pool not in ("me", user):
        raise NotFound(f"there is no pool {pool!r} for you; yours is pool://me/")
    return user


def collect_outputs(parts: Parts, record: JobRecord) -> int:
    """Copies the job's outputs folder into the pool that `outputs:` names; returns how many files went."""
    if record.spec.outputs is None:
        return 0
    owner, prefix = _output_place(record.spec.outputs, record.owner)
    work = Path(record.in_place or parts.home.work / record.id)
    if (work / OUTPUTS).is_symlink():
        raise BadSpec(f"{OUTPUTS!r} is a symbolic link, which could lead anywhere; write into a folder of that name")
    entries = [_store_file(parts, owner, work, name, prefix) for name in plain_files(work, OUTPUTS)]
    if entries:
        parts.store.put_files(owner, [entry.model_dump() for entry in entries], parts.store.now())
    return len(entries)


def _output_place(address: str, user: str) -> tuple[str, str]:
    """Whose pool, and where in it; NotFound for a pool that is not his, BadSpec for a path that cannot be."""
    place, _, prefix = address.removeprefix("pool://").partition("/")
    owner, inside = pool_owner(place, user), prefix.strip("/")
    if inside:
        Entry(path=inside)
    return owner, inside


def _store_file(parts: Parts, owner: str, work: Path, name: str, prefix: str) -> Entry:
    digests, size = [], 0
    with open_inside(work, name) as file:
        while piece := file.read(CHUNK):
            digest = sha256(piece).hexdigest()
            parts.chunks.put(owner, digest, piece)
            digests.append(digest)
            size += len(piece)
        status = os.fstat(file.fileno())
    path = "/".join(part for part in (prefix, name.removeprefix(f"{OUTPUTS}/")) if part)
    return Entry(path=path, size=size, mode=status.st_mode & 0o777, mtime=status.st_mtime, chunks=tuple(digests))


def _pool_tree(parts: Parts, owner: str, prefix: str) -> Manifest:
    """Every file at or below `prefix`, with paths relative to it; a single file keeps its name."""
    inside = prefix.strip("/")
    entries: list[Entry] = []
    cursor: str | None = None
    while True:
        page = parts.store.files(owner, inside, limit=1000, cursor=cursor)
        entries.extend(_relative(Entry.model_validate(raw), inside) for raw in page.items)
        cursor = page.next
        if cursor is None:
            break
    if not entries:
        raise NotFound(f"pool://me/{inside} holds nothing; see 'shoal data ls pool://me/'")
    return Manifest(entries=tuple(entries))


def _relative(entry: Entry, prefix: str) -> Entry:
    if not prefix:
        return entry
    inner = entry.path.removeprefix(prefix).lstrip("/")
    return entry.model_copy(update={"path": inner or entry.path.rsplit("/", 1)[-1]})
