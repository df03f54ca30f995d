"""Every operation of torch's face against its definition, as functions that all workers of a job run together. Each
worker knows what the others bring, so each checks the whole answer."""

from __future__ import annotations

import os

import torch
from torch import Tensor

import shoal.adapters.hvd.torch as hvd

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


def brought(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a rank brings: small whole numbers, exact in every type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 2) % 5 + 1).to(dtype).view(shape)


def every(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([brought(rank, *shape, dtype=dtype) for rank in range(hvd.size())])


def same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert torch.equal(found, expected), (found, expected)


def basics() -> None:
    assert hvd.is_initialized() and hvd.rank() == int(os.environ["SHOAL_RANK"])
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (hvd.rank(), hvd.size(), 0, 1)
    assert hvd.is_homogeneous() and hvd.gloo_built() and not hvd.mpi_built() and not hvd.nccl_built()
    hvd.init()


def allreduce_by_every_operation() -> None:
    whole = every(4, 3)
    expected = {
        hvd.Sum: whole.sum(0),
        hvd.Average: whole.sum(0) / hvd.size(),
        hvd.Min: whole.amin(0),
        hvd.Max: whole.amax(0),
        hvd.Product: whole.prod(0),
    }
    for op, answer in expected.items():
        mine = brought(hvd.rank(), 4, 3)
        torch.testing.assert_close(hvd.allreduce(mine, op=op), answer)
        same(mine, brought(hvd.rank(), 4, 3))
        torch.testing.assert_close(hvd.allreduce_(mine, op=op), answer)
        torch.testing.assert_close(mine, answer)
    torch.testing.assert_close(hvd.allreduce(brought(hvd.rank(), 4, 3)), expected[hvd.Average])
    torch.testing.assert_close(hvd.allreduce(brought(hvd.rank(), 4, 3), average=False), expected[hvd.Sum])


def allreduce_of_every_type() -> None:
    for dtype in TYPES:
        found = hvd.allreduce(brought(hvd.rank(), 5, dtype=dtype), op=hvd.Sum)
        same(found, every(5, dtype=torch.int64).sum(0).to(dtype))
    scalar = hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum)
    same(scalar, torch.tensor(float(sum(range(1, hvd.size() + 1)))))
    whole = hvd.allreduce(torch.tensor([-(hvd.rank() + 1)]), op=hvd.Average)
    assert whole.tolist() == [int(-sum(range(1, hvd.size() + 1)) / hvd.size())], "whole numbers are cut towards zero"


def allreduce_of_many_sizes() -> None:
    for size in (0, 1, 17, 70_001, 900_003):
        same(hvd.allreduce(brought(hvd.rank(), size), op=hvd.Sum), every(size).sum(0))
    across = brought(hvd.rank(), 300, 200).t()
    hvd.allreduce_(across, op=hvd.Sum)
    same(across, every(300, 200).sum(0).t())


def allreduce_with_scales() -> None:
    found = hvd.allreduce(brought(hvd.rank(), 6), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    torch.testing.assert_close(found, every(6).sum(0) * 2)
    found = hvd.allreduce(brought(hvd.rank(), 6), op=hvd.Average, prescale_factor=0.5, postscale_factor=2.0)
    torch.testing.assert_close(found, every(6).mean(0))
    found = hvd.allreduce(brought(hvd.rank(), 6), op=hvd.Sum, compression=hvd.Compression.fp16)
    same(found, every(6).sum(0))


def allreduce_in_opposite_orders() -> None:
    names = [f"layer.{number}" for number in range(30)]
    order = names if hvd.rank() % 2 else list(reversed(names))
    handles = {name: hvd.allreduce_async(torch.full((3,), hvd.rank() + 1.0), name=name, op=hvd.Sum) for name in order}
    for name in names:
        same(hvd.synchronize(handles[name]), torch.full((3,), float(sum(range(1, hvd.size() + 1)))))
    assert all(hvd.poll(handle) for handle in handles.values())


def grouped_allreduce() -> None:
    mine = [brought(hvd.rank(), 3), brought(hvd.rank(), 2, 2), brought(hvd.rank(), 4, dtype=torch.float64)]
    expected = [every(3).sum(0), every(2, 2).sum(0), every(4, dtype=torch.float64).sum(0)]
    for found in (hvd.grouped_allreduce(mine, op=hvd.Sum), hvd.grouped_allreduce_(mine, op=hvd.Sum), mine):
        for one, answer in zip(found, expected, strict=True):
            same(one, answer)


def allgather_of_different_rows() -> None:
    found = hvd.allgather(brought(hvd.rank(), hvd.rank() + 1, 2))
    same(found, torch.cat([brought(rank, rank + 1, 2) for rank in range(hvd.size())]))
    none = hvd.allgather(brought(hvd.rank(), 0 if hvd.rank() == 0 else 3, 2))
    assert none.shape == (3 * (hvd.size() - 1), 2)
    two = hvd.grouped_allgather([brought(hvd.rank(), 2), brought(hvd.rank(), 1, 3)])
    same(two[0], every(2).view(-1))
    same(two[1], every(1, 3).view(-1, 3))


def broadcast_from_every_root() -> None:
    for root in range(hvd.size()):
        mine = brought(hvd.rank(), 5)
        same(hvd.broadcast(mine, root), brought(root, 5))
        same(mine, brought(hvd.rank(), 5))
        same(hvd.broadcast_(mine, root), brought(root, 5))
        same(mine, brought(root, 5))


def alltoall_with_and_without_splits() -> None:
    size, me = hvd.size(), hvd.rank()
    found = hvd.alltoall(torch.arange(size * 2.0) + 100 * me)
    same(found, torch.cat([torch.arange(me * 2.0, me * 2.0 + 2) + 100 * rank for rank in range(size)]))
    splits = [rank + 1 for rank in range(size)]
    rows = torch.cat([torch.full((count, 2), float(me * 10 + rank)) for rank, count in enumerate(splits)])
    found, received = hvd.alltoall(rows, splits=torch.tensor(splits))
    same(found, torch.cat([torch.full((me + 1, 2), float(rank * 10 + me)) for rank in range(size)]))
    assert received.tolist() == [me + 1] * size
    large = hvd.alltoall(torch.full((size * 400_000,), float(me)))
    same(large, torch.arange(float(size)).repeat_interleave(400_000))


def reducescatter_of_uneven_rows() -> None:
    size, me = hvd.size(), hvd.rank()
    for rows in (size, 2 * size + 1, 7):
        parts = torch.tensor_split(every(rows, 2).sum(0), size)
        same(hvd.reducescatter(brought(me, rows, 2), op=hvd.Sum), parts[me])
    two = hvd.grouped_reducescatter([brought(me, size), brought(me, 2 * size)], op=hvd.Average)
    torch.testing.assert_close(two[1], torch.tensor_split(every(2 * size).mean(0), size)[me])


def adasum() -> None:
    if hvd.size() == 3:
        try:
            hvd.allreduce(torch.ones(2), op=hvd.Adasum)
        except NotImplementedError as refused:
            assert "power of 2" in str(refused)
            return
        raise AssertionError("three workers cannot be combined in pairs")
    mine = torch.tensor([1.0, 0.0]) if hvd.rank() == 0 else torch.tensor([0.0, 3.0])
    same(hvd.allreduce(mine, op=hvd.Adasum), torch.tensor([1.0, 3.0]))
    same(hvd.allreduce(torch.tensor([2.0, 4.0]), op=hvd.Adasum), torch.tensor([2.0, 4.0]))


def objects() -> None:
    mine = {"rank": hvd.rank(), "long": "x" * 100_000 * (hvd.rank() + 1)}
    assert hvd.broadcast_object(mine, root_rank=1)["rank"] == 1
    assert [one["rank"] for one in hvd.allgather_object(mine)] == list(range(hvd.size()))


def gradients_pass_through() -> None:
    size = hvd.size()
    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum).mul(hvd.rank() + 1.0).sum().backward()
    same(leaf.grad, torch.full((3,), float(sum(range(1, size + 1)))))  # type: ignore[arg-type]
    leaf = torch.ones(hvd.rank() + 1, 2, requires_grad=True)
    hvd.allgather(leaf).sum().backward()
    same(leaf.grad, torch.ones(hvd.rank() + 1, 2))  # type: ignore[arg-type]
    leaf = torch.ones(2, requires_grad=True)
    hvd.broadcast(leaf, 0).sum().backward()
    same(leaf.grad, torch.full((2,), 1.0 if hvd.rank() == 0 else 0.0))  # type: ignore[arg-type]
    leaf = torch.ones(size, requires_grad=True)
    (hvd.alltoall(leaf) * (hvd.rank() + 1.0)).sum().backward()
    same(leaf.grad, torch.arange(1.0, size + 1))  # type: ignore[arg-type]


def process_sets() -> None:
    size, me = hvd.size(), hvd.rank()
    even = hvd.add_process_set([rank for rank in range(size) if rank % 2 == 0])
    last = hvd.add_process_set(hvd.ProcessSet([size - 1]))
    assert even.included() == (me % 2 == 0) and last.included() == (me == size - 1)
    if even.included():
        ranks = even.ranks
        assert (even.size(), even.rank()) == (len(ranks), ranks.index(me))
        found = hvd.allreduce(torch.tensor([me + 1.0]), op=hvd.Sum, process_set=even)
        assert found.item() == sum(rank + 1 for rank in ranks)
        same(hvd.allgather(torch.tensor([me]), process_set=even), torch.tensor(ranks))
        same(hvd.broadcast(torch.tensor([me]), ranks[-1], process_set=even), torch.tensor([ranks[-1]]))
    else:
        try:
            hvd.allreduce(torch.ones(1), process_set=even)
        except ValueError as outside:
            assert "is not in ProcessSet" in str(outside)
        else:
            raise AssertionError("an operation of others")
    try:
        hvd.add_process_set(even.ranks)
    except ValueError as twice:
        assert "there already" in str(twice)
    assert hvd.remove_process_set(even) and not hvd.remove_process_set(even)
    assert hvd.remove_process_set(last) and not hvd.remove_process_set(hvd.global_process_set)


def join_with_uneven_data() -> None:
    """The later the rank the more batches; who is done brings zeros, and an average divides by all."""
    for batch in range(hvd.rank() + 1):
        found = hvd.allreduce(torch.tensor([1.0, 1.0]), name=f"batch.{batch}", op=hvd.Average)
        same(found, torch.full((2,), (hvd.size() - batch) / hvd.size()))
    assert hvd.join() == hvd.size() - 1
    same(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(hvd.size())]))


def barrier() -> None:
    hvd.barrier()


def mismatch_is_an_error_on_all() -> None:
    try:
        hvd.allreduce(torch.ones(2 + hvd.rank() % 2), name="odd")
    except hvd.HorovodInternalError as wrong:
        assert "with shapes" in str(wrong)
    else:
        raise AssertionError("one brings 2 elements, another 3")
    same(hvd.allreduce(torch.ones(2), name="odd", op=hvd.Sum), torch.full((2,), float(hvd.size())))


def sync_batch_norm() -> None:
    """As one batch norm over the batches of all."""
    whole = torch.randn(4 * hvd.size(), 3, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours, plain = hvd.SyncBatchNorm(3, dtype=torch.float64), torch.nn.BatchNorm1d(3, dtype=torch.float64)
    mine = whole[4 * hvd.rank() : 4 * hvd.rank() + 4].clone().requires_grad_()
    every_one = whole.clone().requires_grad_()
    found, expected = ours(mine), plain(every_one)
    torch.testing.assert_close(found, expected[4 * hvd.rank() : 4 * hvd.rank() + 4])
    (found**3).sum().backward()
    (expected**3).sum().backward()
    assert every_one.grad is not None and mine.grad is not None
    torch.testing.assert_close(mine.grad, every_one.grad[4 * hvd.rank() : 4 * hvd.rank() + 4])
    torch.testing.assert_close(ours.running_var, plain.running_var)
    torch.testing.assert_close(ours.running_mean, plain.running_mean)


def shutdown_and_again() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))


CHECKS = (
    basics,
    allreduce_by_every_operation,
    allreduce_of_every_type,
    allreduce_of_many_sizes,
    allreduce_with_scales,
    allreduce_in_opposite_orders,
    grouped_allreduce,
    allgather_of_different_rows,
    broadcast_from_every_root,
    alltoall_with_and_without_splits,
    reducescatter_of_uneven_rows,
    adasum,
    objects,
    gradients_pass_through,
    process_sets,
    join_with_uneven_data,
    barrier,
    mismatch_is_an_error_on_all,
    sync_batch_norm,
    shutdown_and_again,
)

ELSEWHERE = tuple(check for check in CHECKS if check is not basics)  # on several machines the numbers are others


def main(checks: tuple[object, ...] = CHECKS) -> None:
    hvd.init()
    for check in checks:
        check()  # type: ignore[operator]
        print(f"ok {check.__name__}", flush=True)  # type: ignore[attr-defined]
