"""What a folder contains: paths, modes, symbolic links, and the chunks each file is made of.

A manifest is a value. One that could write outside the folder it is unpacked into cannot be made: every path and every
link is followed through the manifest's own links before it is accepted. Folders are implied by the files in them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shoal import errors
from shoal.storage.chunks import CHUNK, DIGEST
from shoal.storage.digests import FileDigest, file_digest, tree_digest

MAX_PATH = 4096  # bytes, as Linux has it
MAX_NAME = 255  # bytes of one part of a path
MAX_ENTRIES = 1_000_000  # a manifest is held in memory whole
_MAX_LINKS = 40  # followed in one path, as Linux does
_BLOCK = 512  # bytes of a tar block

OpenChunk = Callable[[str], BinaryIO]


class Entry(BaseModel):
    """One file or symbolic link. Raises errors.BadSpec that names the path and the reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size: Annotated[int, Field(ge=0, lt=2**53)] = 0
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    mtime: Annotated[float, Field(ge=0, lt=2**33, allow_inf_nan=False)] = 0.0
    chunks: tuple[str, ...] = ()
    link: str | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> Entry:
        reason = _path_fault(self.path) or _content_fault(self)
        if reason:
            raise _refused(self.path, reason)
        return self

    def digest(self) -> str:
        """Of what it contains or where it points, whatever its name and times."""
        return file_digest(self.chunks if self.link is None else ("link ", self.link))

    def read(self, open_chunk: OpenChunk, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`, a piece per chunk. errors.BadChunk for a chunk of the wrong size."""
        stop = self.size if stop is None else min(stop, self.size)
        for number in range(start // CHUNK, len(self.chunks)):
            begin = number * CHUNK
            if begin >= stop:
                return
            with open_chunk(self.chunks[number]) as file:
                piece = file.read(CHUNK + 1)
            if len(piece) != min(CHUNK, self.size - begin):
                raise errors.BadChunk(
                    f"chunk {number} of {self.path!r} has {len(piece)} bytes, not {min(CHUNK, self.size - begin)}; "
                    f"upload the file again",
                    path=self.path,
                    digest=self.chunks[number],
                )
            yield piece[max(0, start - begin) : stop - begin]


class Manifest(BaseModel):
    """A folder's content, in the order of paths. Equal content gives an equal digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entries: Annotated[tuple[Entry, ...], Field(max_length=MAX_ENTRIES)] = ()

    @field_validator("entries")
    @classmethod
    def _belong_together(cls, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        check(entries)
        return tuple(sorted(entries, key=lambda entry: entry.path))

    @classmethod
    def parse(cls, raw: Any) -> Manifest:
        """From what came over the wire; whatever is wrong with it is errors.BadSpec."""
        try:
            return cls.model_validate(raw)
        except ValidationError as fault:
            raise _bad_form(fault) from None

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.entries)

    @property
    def chunks(self) -> set[str]:
        """The digests of every chunk it takes."""
        return {digest for entry in self.entries for digest in entry.chunks}

    def find(self, path: str) -> Entry:
        """The entry of that path; errors.NotFound."""
        for entry in self.entries:
            if entry.path == path:
                return entry
        raise errors.NotFound(f"the manifest has no file {path!r}; list its folder to see what there is", path=path)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return sha256(self.model_dump_json().encode()).hexdigest()

    def content_digest(self) -> str:
        """Of paths and contents alone, so that the same files sent at another time are the same."""
        return tree_digest(FileDigest(entry.path, entry.size, entry.digest()) for entry in self.entries)

    def tar(self, open_chunk: OpenChunk) -> Iterator[bytes]:
        """The folder as a tar stream, a chunk in memory at a time. Links come last: no file is written through one."""
        for entry in sorted(self.entries, key=lambda entry: entry.link is not None):
            yield _tar_header(entry)
            yield from entry.read(open_chunk)
            if entry.size % _BLOCK:
                yield bytes(_BLOCK - entry.size % _BLOCK)
        yield bytes(2 * _BLOCK)


def check(entries: Iterable[Entry]) -> None:
    """errors.BadSpec unless all paths differ, none runs through a file or a link, and every link stays inside."""
    by_path: dict[str, Entry] = {}
    for entry in entries:
        if by_path.setdefault(entry.path, entry) is not entry:
            raise _refused(entry.path, "it occurs twice")
    links = {path: entry.link for path, entry in by_path.items() if entry.link is not None}
    for path in by_path:
        through = next((parent for parent in _parents(path) if parent in by_path), None)
        if through is not None:
            kind = "symbolic link" if through in links else "file"
            raise _refused(path, f"it lies below {through!r}, which is a {kind}")
    for path in links:
        reason = _link_fault(path, links)
        if reason:
            raise _refused(path, reason)


def _path_fault(path: str) -> str | None:
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    parts = raw.split(b"/")
    if not raw or b"\0" in raw:
        return "it is empty or has a NUL character"
    if parts[0] == b"":
        return "it is absolute; paths are relative to the folder"
    if any(part in (b"", b".", b"..") for part in parts):
        return "it has a part that is empty, '.' or '..'"
    if len(raw) > MAX_PATH or max(map(len, parts)) > MAX_NAME:
        return f"it is longer than {MAX_PATH} bytes, or a part of it than {MAX_NAME}"
    return None


def _content_fault(entry: Entry) -> str | None:
    if entry.link is not None and (entry.size or entry.chunks):
        return "a symbolic link has no content"
    if entry.link is None and len(entry.chunks) != -(-entry.size // CHUNK):
        return f"{len(entry.chunks)} chunks of {CHUNK} bytes cannot make {entry.size} bytes"
    if not all(map(DIGEST.fullmatch, entry.chunks)):
        return "a chunk is named by something other than 64 lower-case hex digits"
    return None


def _link_fault(path: str, links: Mapping[str, str]) -> str | None:
    target = links[path]
    if not target or "\0" in target or _encoded_length(target) > MAX_PATH:
        return f"its target is empty, not UTF-8, has a NUL character or is longer than {MAX_PATH} bytes"
    if target.startswith("/"):
        return f"it points to {target!r}, which is absolute; make it relative, or leave it out with .shoalignore"
    if not _stays_inside(path, links):
        return f"it points to {target!r}, outside the folder; copy the target in, or leave it out with .shoalignore"
    return None


def _encoded_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return MAX_PATH + 1


def _stays_inside(path: str, links: Mapping[str, str]) -> bool:
    """Follows the link as the kernel would: '..' behind a link to a folder is that folder's parent, not the link's."""
    here: list[str] = []
    left = path.split("/")[::-1]
    followed = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return False
            here.pop()
            continue
        here.append(part)
        target = links.get("/".join(here))
        if target is not None:
            followed += 1
            if target.startswith("/"):
                return False
            if followed > _MAX_LINKS:
                return True  # the kernel gives up there too: it leads nowhere
            here.pop()
            left.extend(target.split("/")[::-1])
    return True


def _parents(path: str) -> Iterator[str]:
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _refused(path: str, reason: str) -> errors.BadSpec:
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    problem = {"field": "path", "value": shown, "message": reason}
    return errors.BadSpec(f"the folder cannot contain {shown!r}: {reason}", [problem])


def _bad_form(fault: ValidationError) -> errors.BadSpec:
    problems = [
        {"field": ".".join(map(str, each["loc"])), "value": repr(each["input"])[:100], "message": each["msg"]}
        for each in fault.errors(include_url=False, include_context=False)[:20]
    ]
    first = problems[0]
    return errors.BadSpec(f"the manifest's {first['field']} is {first['value']}: {first['message']}", problems)


def _tar_header(entry: Entry) -> bytes:
    member = tarfile.TarInfo(entry.path)
    member.mode = entry.mode
    # tarfile writes an extra header for a time with a fraction; whole seconds spare it.
    member.mtime = int(entry.mtime) if entry.mtime == int(entry.mtime) else entry.mtime
    if entry.link is None:
        member.size = entry.size
    else:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
