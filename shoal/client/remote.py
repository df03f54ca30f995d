"""A function as a job: `@shoal.remote(workers=4)` on it, and calling it runs it on every rank.

The function and its arguments travel by cloudpickle in a folder of their own with a small runner; only the job's own
processes unpickle them, never the server. What rank 0 returns comes back as JSON.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from shoal.client.aio import AsyncJob
from shoal.client.connect import current
from shoal.client.jobs import Job
from shoal.errors import BadSpec

if TYPE_CHECKING:
    from shoal.client.http import Api

P = ParamSpec("P")
R = TypeVar("R")

RUNNER = "run_function.py"
CALL = "call.pkl"
ABOUT = "call.json"

_registry = threading.Lock()  # cloudpickle's list of modules is one for the whole process


class RemoteFunction(Generic[P, R]):
    """A function that runs as a job. Called, it waits and returns the result; `submit` returns the job at once.

    An `async def` stays one: calling it gives something to await.
    """

    def __init__(self, function: Callable[P, R], api: Api | None, keys: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._api = api
        self._keys = keys

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if inspect.iscoroutinefunction(self._function):
            return cast(R, self._awaited(*args, **kwargs))
        result: R = self.submit(*args, **kwargs).result()
        return result

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJob:
        """The job at once, for asynchronous programs."""
        return AsyncJob(await asyncio.to_thread(self.submit, *args, **kwargs))

    async def _awaited(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await (await self.asubmit(*args, **kwargs)).result()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        from shoal.client.draft import draft

        with tempfile.TemporaryDirectory(prefix="shoal-function-") as folder:
            _write(Path(folder), self._function, args, kwargs)
            keys = {"name": _name(self._function), **self._keys}
            ready = replace(draft(RUNNER, folder=folder, **keys), written_in=_written_in(self._function))
            api = self._api or current()
            return Job(api, ready.send(api))

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here, without a job."""
        return self._function(*args, **kwargs)


@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...


@overload
def remote(
    *, workers: int | str = 1, api: Api | None = None, **keys: Any
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...


def remote(
    function: Callable[..., Any] | None = None, /, *, workers: int | str = 1, api: Api | None = None, **keys: Any
) -> Any:
    """Makes a function run as a job, on `workers` ranks; `keys` are those of the job file, except what it runs."""
    wrong = sorted({"script", "command", "args", "roles", "folder", "in_place"} & keys.keys())
    if wrong:
        raise BadSpec(f"{', '.join(wrong)}: a remote function brings its own; leave it out, or use shoal.submit")
    settings = {"workers": workers, **keys}
    if function is not None:
        return RemoteFunction(function, api, settings)
    return lambda wrapped: RemoteFunction(wrapped, api, settings)


def _write(folder: Path, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = getattr(function, "__qualname__", repr(function))
    (folder / CALL).write_bytes(_pickle(name, function, args, kwargs))
    (folder / ABOUT).write_text(json.dumps({"function": name, "python": list(sys.version_info[:2])}))
    source = Path(__file__).with_name(RUNNER)
    (folder / RUNNER).write_bytes(source.read_bytes())


def _pickle(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        with _by_value(_own_modules(function)):
            pickled: bytes = cloudpickle.dumps((function, args, kwargs))
    except Exception as wrong:
        # Whatever an object's own __reduce__ raises comes out here; the user must learn which call it was.
        raise BadSpec(
            f"{name} or its arguments cannot be sent: {wrong}; open files, locks and connections inside the function,"
            " and pass paths and plain values"
        ) from wrong
    return pickled


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """What the function uses of these modules goes along: the job's processes could not import them."""
    import cloudpickle

    with _registry:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _written_in(function: Callable[..., Any]) -> Path | None:
    """The folder of the file it was written in; None for one typed at a prompt."""
    file = Path(getattr(getattr(function, "__code__", None), "co_filename", ""))
    return file.resolve().parent if file.is_file() else None


def _own_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """The user's own modules: those that lie where the function's module does and were not installed."""
    home = sys.modules.get(function.__module__)
    file = getattr(home, "__file__", None)
    root = Path(file).resolve().parents[function.__module__.count(".")] if file else Path.cwd()
    return [module for name, module in list(sys.modules.items()) if _is_own(name, module, root)]


def _is_own(name: str, module: ModuleType, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or name == "__main__" or name.split(".")[0] == "shoal" or module.__name__ != name:
        return False
    parts = Path(file).parts
    return (
        Path(file).is_relative_to(root) and not {"site-packages", "dist-packages"} & set(parts) and not _standard(file)
    )


def _standard(file: str) -> bool:
    return Path(file).is_relative_to(Path(json.__file__).parents[1])


def _name(function: Callable[..., Any]) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", getattr(function, "__name__", "function")).strip("-._")
    return plain[:63] or "function"
