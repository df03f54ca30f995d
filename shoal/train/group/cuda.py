"""A group whose tensors on GPUs travel by NCCL; everything else goes through the group underneath.

For workers that each have a GPU of their own. Several on one GPU cannot use NCCL among themselves: they stay with the
group underneath, which takes tensors through pinned host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from shoal.train import process_group
from shoal.train.group.dist import divide

if TYPE_CHECKING:
    from shoal.train.group.api import Group
    from shoal.train.world import World


class CudaGroup:
    """Implements `group.api.Group`. Collectives on GPUs are of all workers: who leaves must leave last."""

    def __init__(self, world: World, under: Group) -> None:
        self.rank, self.size = under.rank, under.size
        self._world, self._under = world, under
        process_group.join(world)

    def members(self) -> tuple[int, ...]:
        return self._under.members()

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        if not tensor.is_cuda:
            self._under.all_reduce(tensor, op)
            return
        whole = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
        with process_group.waiting(f"all-reduce of {whole.numel()} {whole.dtype}", process_group.others(self._world)):
            dist.all_reduce(whole)
        if op == "mean":
            divide(whole, self.size)
        if not tensor.is_contiguous():
            tensor.detach().copy_(whole)

    def begin_mean(self, tensor: Tensor) -> Future[Tensor]:
        """The same without waiting, for a contiguous tensor on a GPU."""
        tensor.div_(self.size)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        if not tensor.is_cuda:
            self._under.broadcast(tensor, source)
            return
        whole = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
        with process_group.waiting(f"broadcast of {whole.numel()} {whole.dtype}", process_group.others(self._world)):
            dist.broadcast(whole, source)
        if not tensor.is_contiguous():
            tensor.detach().copy_(whole)

    def gather(self, value: Any) -> list[Any]:
        return self._under.gather(value)

    def send(self, to: int, tensor: Tensor) -> None:
        self._under.send(to, tensor)

    def receive(self, source: int, out: Tensor) -> None:
        self._under.receive(source, out)

    def leave(self) -> None:
        """Gives up the process group; the group underneath stays whoever's it was. Once."""
        process_group.leave()


def have_one_each(parameters: Sequence[Tensor], group: Group) -> bool:
    """Whether every worker's parameters lie on a GPU that no other one uses. Collective."""
    device = next((one.device for one in parameters), torch.device("cpu"))
    mine = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    every = group.gather(mine)
    return all(every) and len(set(every)) == len(every) and dist.is_nccl_available()
