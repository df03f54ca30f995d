"""Files to and from the server: `pool://me/…`, the caller's own pool, and `job://ID/…`, what a job left.

Both ways go on where they broke off: a put sends only chunks that are missing, a get keeps partial files as `.part`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from shoal.client.folder import leads_out
from shoal.client.http import Api
from shoal.client.upload import AT_ONCE, Packed, Progress, pack, pack_file, send
from shoal.errors import BadSpec, NotFound, ShoalError


class Address(NamedTuple):
    """`scheme://place/path`, the path without slashes at its ends."""

    scheme: str
    place: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}/{self.path}"


class File(NamedTuple):
    """One file on the server; `path` from the root of its pool or job."""

    path: str
    size: int
    mtime: float = 0.0
    mode: int | None = None
    link: str | None = None


def parse_address(text: str, *schemes: str) -> Address:
    """BadSpec unless it is an address of one of these kinds (`pool` and `job` unless told otherwise)."""
    scheme, mark, rest = text.partition("://")
    place, _, path = rest.partition("/")
    allowed = schemes or ("pool", "job")
    if not mark or scheme not in allowed or not place:
        forms = " or ".join({"pool": "pool://me/PATH", "job": "job://ID/PATH"}[one] for one in allowed)
        raise BadSpec(f"{text!r} is not an address that can be used here; write {forms}")
    if ".." in path.split("/"):
        raise BadSpec(f"{text!r} climbs out with '..'; write the path without it")
    return Address(scheme, place, path.strip("/"))


def put(api: Api, source: str | Path, address: str, progress: Progress | None = None) -> str:
    """Sends a file or a folder's content into a pool; the address it then has.

    A folder's content goes below the address. A file becomes the address itself, or keeps its name below one that ends
    with a slash.
    """
    to = parse_address(address, "pool")
    path = Path(source).expanduser()
    if not path.exists():
        raise BadSpec(f"there is no {path}; check the path")
    if path.is_dir():
        _commit(api, to, to.path, lambda: pack(path, ignore=False), progress)
        return str(to)
    if not to.path or address.endswith("/"):
        to = to._replace(path=f"{to.path}/{path.name}".lstrip("/"))
    folder, _, name = to.path.rpartition("/")
    _commit(api, to, folder, lambda: pack_file(path, name), progress)
    return str(to)


def get(api: Api, address: str, target: str | Path = ".", progress: Progress | None = None) -> Path:
    """Fetches a file or everything below an address; where it now lies.

    A folder's content goes into `target`. A single file becomes `target`, or goes into it where that is a folder.
    Nothing is ever written outside `target`.
    """
    source = parse_address(address)
    root = Path(target).expanduser()
    files = list(_files(api, source))
    if not files and source.path:
        raise NotFound(f"{source} holds nothing; see what there is with 'shoal data ls'")
    if len(files) == 1 and files[0].path == source.path:
        name = PurePosixPath(source.path).name
        whole = root / name if root.is_dir() or str(target).endswith("/") else root
        _fetch_all(api, source, [(files[0], whole.parent, whole.name)], progress)
        return whole
    root.mkdir(parents=True, exist_ok=True)
    skip = len(source.path) + 1 if source.path else 0
    _fetch_all(api, source, [(file, root, file.path[skip:]) for file in files], progress)
    return root


def ls(api: Api, address: str) -> Iterator[File]:
    """Every file at or below the address."""
    return _files(api, parse_address(address))


def rm(api: Api, address: str) -> int:
    """Removes a file or everything below an address from a pool; how many files went."""
    at = parse_address(address, "pool")
    if not at.path:
        raise BadSpec(f"{address!r} names the whole pool; name the file or folder to remove")
    answer = api.request("DELETE", _pool(at), params={"prefix": at.path}) or {}
    return int(answer.get("files") or 0)


def _commit(api: Api, to: Address, prefix: str, packing: Any, progress: Progress | None) -> None:
    def finish(packed: Packed) -> None:
        api.request("POST", _pool(to), json={"prefix": prefix, "entries": packed.entries}, again=True)

    send(api, packing, finish, progress)


def _pool(at: Address) -> str:
    return f"/pools/{quote(at.place, safe='')}/files"


def _files(api: Api, at: Address) -> Iterator[File]:
    if at.scheme == "pool":
        for raw in _pages(api, _pool(at), {"prefix": at.path}):
            yield _file(raw)
        return
    try:
        yield from _below(api, at, at.path)
    except NotFound:
        if not at.path:
            raise
        # Only folders are listed: it may be a file of its parent.
        found = [raw for raw in _listing(api, at, at.path.rpartition("/")[0]) if raw["path"] == at.path]
        if not found:
            raise
        yield from map(_file, found)


def _below(api: Api, at: Address, folder: str) -> Iterator[File]:
    for raw in _listing(api, at, folder):
        if raw.get("dir"):
            yield from _below(api, at, str(raw["path"]))
        elif raw.get("link") is None:
            yield _file(raw)


def _listing(api: Api, at: Address, folder: str) -> Iterator[dict[str, Any]]:
    return _pages(api, f"/jobs/{quote(at.place, safe='')}/files", {"path": folder})


def _pages(api: Api, path: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = api.request("GET", path, params={**params, "cursor": cursor})
        yield from page["files"]
        cursor = page.get("next")
        if not cursor:
            return


def _file(raw: dict[str, Any]) -> File:
    return File(
        str(raw["path"]), int(raw.get("size") or 0), float(raw.get("mtime") or 0), raw.get("mode"), raw.get("link")
    )


def _fetch_all(api: Api, source: Address, wanted: list[tuple[File, Path, str]], progress: Progress | None) -> None:
    total, done, lock = sum(file.size for file, _, _ in wanted), 0, threading.Lock()

    def more(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            if progress is not None:
                progress(done, total)

    more(0)
    places = [(file, place_inside(root, name)) for file, root, name in wanted]
    with ThreadPoolExecutor(AT_ONCE, "shoal-download") as pool:
        tasks = [pool.submit(_fetch, api, source, file, place, more) for file, place in places if file.link is None]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    # Links come last, and each is looked at again: nothing is written through one that was just made.
    for file, root, name in wanted:
        if file.link is not None:
            _make_link(file, place_inside(root, name))


def place_inside(root: Path, name: str) -> Path:
    """Where a file of that name goes below the folder; ShoalError for a name or a link that leads out of it."""
    parts = name.split("/")
    place = root.joinpath(*parts)
    bad = not name or "\0" in name or any(part in ("", ".", "..") for part in parts)
    if bad or not place.parent.resolve().is_relative_to(root.resolve()):
        raise ShoalError(
            f"{name!r} would be written outside {root}; nothing was: fetch into an empty folder", path=name
        )
    return place


def _fetch(api: Api, source: Address, file: File, place: Path, more: Any) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if _have(file, place):
        more(file.size)
        return
    part = place.with_name(f"{place.name}.{_tag(file)}.part")
    start = part.stat().st_size if part.exists() else 0
    more(start)
    kind = "pools" if source.scheme == "pool" else "jobs"
    path = f"/{kind}/{quote(source.place, safe='')}/file"
    with part.open("ab") as out:
        for piece in api.get_bytes(path, {"path": file.path}, start):
            out.write(piece)
            more(len(piece))
    if file.mode is not None:
        part.chmod(file.mode & 0o777)
    os.utime(part, (file.mtime, file.mtime))
    part.replace(place)


def _tag(file: File) -> str:
    """Tells partial files of different versions apart: what was begun of an older one is not continued."""
    return sha256(f"{file.path}\0{file.size}\0{file.mtime}".encode()).hexdigest()[:8]


def _have(file: File, place: Path) -> bool:
    if not place.is_file() or place.is_symlink():
        return False
    status = place.stat()
    return status.st_size == file.size and file.mtime > 0 and abs(status.st_mtime - file.mtime) < 0.001


def _make_link(file: File, place: Path) -> None:
    target = file.link or ""
    if leads_out(file.path, target):
        raise ShoalError(f"{file.path!r} is a link to {target!r}, which is outside; it was not made", path=file.path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(target)
