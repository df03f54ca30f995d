"""Python objects between workers: pickled, and never unpickled without the proof that a worker of this job sent them.

The proof is an HMAC with the attempt's secret in front of the bytes: between machines they may travel over streams that
prove nothing themselves.
"""

from __future__ import annotations

import hmac
import pickle
from typing import Any

import numpy as np

from shoal.adapters.hvd import arrays, basics
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
    arrays.broadcast([length], root_rank, f"{named}.size", process_set)
    if not mine:
        sealed = np.empty(int(length[0]), np.uint8)
    arrays.broadcast([sealed], root_rank, f"{named}.bytes", process_set)
    return obj if mine else _opened(sealed.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Everybody's object, in the order of ranks."""
    named = name_of("objects", name, process_set.process_set_id)
    sealed = _sealed(obj)
    sizes = arrays.gather([np.array([sealed.size], np.int64)], f"{named}.size", process_set)[0]
    whole = arrays.gather([sealed], f"{named}.bytes", process_set)[0].tobytes()
    ends = np.cumsum(sizes).tolist()
    return [_opened(whole[end - int(size) : end]) for size, end in zip(sizes, ends, strict=True)]


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
