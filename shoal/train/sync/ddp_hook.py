"""torch's DistributedDataParallel over a group of ours: its buckets go through `Group.all_reduce` while backward runs.

DDP knows when a bucket of gradients is complete; we carry it. `Line` is what DDP takes for a process group (it asks it
for a broadcast when it cuts its buckets anew, and for a sum when it looks for unused parameters). `Buckets` is its
communication hook: where cores are free a thread carries the buckets in the order in which they come, beside backward;
where every core has a worker of its own a bucket is carried at once, because there is nothing to overlap with.

An error of the group is kept and raised at the step: out of backward it would come as a RuntimeError without its name.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from shoal.train.group.cuda import CudaGroup

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from shoal.train.compress.api import Reducer
    from shoal.train.group.api import Group


class Line(ProcessGroup):
    """A process group for DDP's small talk."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self._group = group

    def getBackendName(self) -> str:  # noqa: N802
        return "shoal"

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> Any:  # type: ignore[override]
        for tensor in tensors:
            self._group.broadcast(tensor, options.rootRank)
        return _done(tensors)

    def allreduce(self, tensors: Sequence[Tensor], options: Any = None) -> Any:  # type: ignore[override]
        for tensor in tensors:
            self._group.all_reduce(tensor)
        return _done(tensors)


class Buckets:
    """The communication hook. `told` is called when the last bucket of a backward has been taken over."""

    def __init__(
        self,
        group: Group,
        reducer: Reducer | None,
        names: Callable[[Tensor], str],
        told: Callable[[], None],
        beside: bool,
    ) -> None:
        self._group, self._reducer, self._names, self._told = group, reducer, names, told
        self._courier = _Courier() if beside else None
        self._stream: torch.cuda.Stream | None = None
        self._error: BaseException | None = None
        self.sent = 0  # bytes that compression let through

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        buffer, job = bucket.buffer(), self._job(bucket)
        if bucket.is_last():
            self._told()
        if isinstance(self._group, CudaGroup) and self._reducer is None:
            return self._group.begin_mean(buffer)
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        order = functools.partial(self._carry, job, buffer, future, self._mark(buffer))
        if self._courier is None:
            order()
        else:
            self._courier.put(order)
        return future

    def _carry(
        self, job: Callable[[], None], buffer: Tensor, future: Future[Tensor], ready: torch.cuda.Event | None
    ) -> None:
        """On a GPU, in a stream of its own beside the one that backward is in."""
        with nullcontext() if ready is None else torch.cuda.stream(self._stream):
            if ready is not None:
                ready.wait()
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error
            future.set_result(buffer)

    def _mark(self, buffer: Tensor) -> torch.cuda.Event | None:
        """When the bucket is complete, for a stream that does not follow backward's; None where all is in order."""
        if self._courier is None or not buffer.is_cuda:
            return None
        self._stream = self._stream or torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return ready

    def check(self) -> None:
        """Raises what went wrong in the last backward, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        if self._courier is not None:
            self._courier.close()

    def _job(self, bucket: GradBucket) -> Callable[[], None]:
        buffer, reducer = bucket.buffer(), self._reducer
        if reducer is None:
            return lambda: self._group.all_reduce(buffer, "mean")
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        named = [(self._names(parameter), gradient) for parameter, gradient in pairs]

        def squeeze() -> None:
            self.sent += reducer.mean(named, self._group)

        return squeeze


class _Courier:
    """One thread that does things in order."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="shoal-buckets", daemon=True)
        self._thread.start()

    def put(self, order: Callable[[], None]) -> None:
        self._orders.put(order)

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.no_grad():
            while (order := self._orders.get()) is not None:
                order()


def cores_to_spare(workers_here: int) -> bool:
    """Whether a thread beside backward finds a core: more of them than the workers of this machine compute on."""
    return len(os.sched_getaffinity(0)) > workers_here * torch.get_num_threads()


def _done(tensors: Sequence[Tensor]) -> Any:
    future: Future[Any] = Future()
    future.set_result(list(tensors))
    return _create_work_from_future(future)
