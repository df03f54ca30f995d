"""Lesson 5: a function as a distributed job.

    python examples/05_remote_function/fit.py

Called, the function runs on every worker of a job of its own, and what rank 0 returns comes back as plain data
(numbers, text, lists, dicts). `submit` returns the job at once instead, and `local` runs the function right here.
"""

import shoal


@shoal.remote(workers=2)
def mean_of_squares(count: int) -> dict[str, float]:
    """Each worker sums its own share; torch.distributed adds the shares up."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.arange(rank, count, size, dtype=torch.float64)
    total = (own**2).sum()
    dist.all_reduce(total)
    print(f"rank {rank} of {size} had {len(own)} numbers", flush=True)
    dist.destroy_process_group()
    return {"workers": size, "mean": total.item() / count}


if __name__ == "__main__":
    job = mean_of_squares.submit(1000)
    print(f"submitted {job.id} ({job.name})")
    answer = job.result(timeout=120)  # the same as mean_of_squares(1000), with the job at hand meanwhile
    print(f"{answer['workers']} workers say: the mean of the squares is {answer['mean']}")
    for line in job.logs(grep="numbers"):
        print(f"  {line.rank}: {line.text}")
