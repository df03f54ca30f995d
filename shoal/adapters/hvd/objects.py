"""Python objects between workers: pickled, and never unpickled without the proof that a worker of this job sent them.

The proof is an HMAC with the attempt's secret in front of the bytes: between machines they may travel over streams that
prove nothing themselves.
"""

from __future__ import annotations

import hmac
import pickle
from typing import Any

import numpy as np

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import ALLGATHER, BROADCAST, Ask
from shoal.adapters.hvd.names import name_of
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.errors import NotAllowed

_PROOF = 32  # bytes


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on all workers."""
    named = name_of("object", name, process_set.process_set_id)
    mine = basics.rank() == root_rank
    sealed = _sealed(obj) if mine else np.zeros(0, np.uint8)
    length = np.array([sealed.size], np.int64)
    _broadcast(length, root_rank, f"{named}.size", process_set)
    if not mine:
        sealed = np.empty(int(length[0]), np.uint8)
    _broadcast(sealed, root_rank, f"{named}.bytes", process_set)
    return obj if mine else _opened(sealed.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Everybody's object, in the order of ranks."""
    named = name_of("objects", name, process_set.process_set_id)
    sealed = _sealed(obj)
    sizes = _gather(np.array([sealed.size], np.int64), f"{named}.size", process_set)
    whole = _gather(sealed, f"{named}.bytes", process_set).tobytes()
    ends = np.cumsum(sizes).tolist()
    return [_opened(whole[end - int(size) : end]) for size, end in zip(sizes, ends, strict=True)]


def _broadcast(array: Any, root: int, name: str, process_set: ProcessSet) -> None:
    ask = Ask(BROADCAST, name, (array.dtype.name,), (array.shape,), root=root)
    basics.engine(process_set).do(ask, [array])


def _gather(array: Any, name: str, process_set: ProcessSet) -> Any:
    ask = Ask(ALLGATHER, name, (array.dtype.name,), (array.shape,))
    return basics.engine(process_set).do(ask, [array])[0]


def _sealed(obj: Any) -> Any:
    data = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return np.frombuffer(bytearray(_proof(data) + data), np.uint8)


def _opened(sealed: bytes) -> Any:
    proof, data = sealed[:_PROOF], sealed[_PROOF:]
    if not hmac.compare_digest(proof, _proof(data)):
        raise NotAllowed("an object came that no worker of this job sent; it was not opened")
    return pickle.loads(data)  # noqa: S301, proven above


def _proof(data: bytes) -> bytes:
    return hmac.new(basics.secret() or b"alone", data, "sha256").digest()
