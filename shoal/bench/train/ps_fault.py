"""What a death costs under `ps-async`: of a worker, and of the process that serves.

`python -m shoal.bench.train.ps_fault worker|server` prints one JSON line: milliseconds from SIGKILL until the server
counts the worker out, and steps of the others that were lost; or until the workers' pushes are answered again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

from shoal.bench.train.gang import Gang, gang

WORKERS = 3
KILLS = 3
ROOM = 5.0  # seconds around a kill in which the longest pause of a worker is looked for
LIMIT = 60.0  # seconds for a server to come back, and for its next spare to be warm
PAUSE = 0.002  # seconds between two looks


def main() -> None:
    kind = sys.argv[1]
    if "SHOAL_RANK" in os.environ:
        work(kind)
        return
    with gang(["-m", "shoal.bench.train.ps_fault", kind], "ps-async", WORKERS) as here:
        here.start()
        for rank in range(WORKERS):
            here.next(f"worker-{rank}")  # it trains
        print(json.dumps(kill_worker(here) if kind == "worker" else kill_server(here)), flush=True)


def kill_worker(here: Gang) -> dict[str, Any]:
    from shoal.train.wire.link import Link
    from shoal.train.world import World

    world = World.read(here.variables["worker-0"])
    server = world.servers[0]
    link = Link.open(server.host, server.port, world.secret, service="ps", me="worker-0", peer=server.name)
    victim = WORKERS - 1
    time.sleep(0.5)
    began = time.perf_counter()
    here.kill(f"worker-{victim}")
    while victim in link.ask({"kind": "status"}).meta["spaces"]["0.0"]["members"]:
        time.sleep(PAUSE)
    found = (time.perf_counter() - began) * 1000
    link.close()
    said = [end(here, rank) for rank in range(victim)]
    return {"ms": found, "lost": sum(one["asked"] - one["taken"] for one in said)}


def kill_server(here: Gang) -> dict[str, Any]:
    kills = []
    for number in range(KILLS):
        warm(here, number + 1)
        serving, until = here.serving(), time.monotonic() + LIMIT
        kills.append(time.time())
        os.kill(serving, signal.SIGKILL)
        while here.serving() == serving and time.monotonic() < until:
            time.sleep(PAUSE)
        time.sleep(ROOM / 5)
    said = [end(here, rank) for rank in range(WORKERS)]
    return {"ms": median(max(longest(one["times"], kill) for one in said) for kill in kills)}


def warm(here: Gang, count: int) -> None:
    """Returns when so many spares have been warm: what is measured is not how long torch takes to import."""
    until = time.monotonic() + LIMIT
    while here.log("server-0").read_text().count("is warm") < count and time.monotonic() < until:
        time.sleep(PAUSE)


def end(here: Gang, rank: int) -> dict[str, Any]:
    """Asks a worker to end, and what it has to say."""
    here.processes[f"worker-{rank}"].send_signal(signal.SIGTERM)
    return here.said(f"worker-{rank}")[-1]


def longest(times: list[float], kill: float) -> float:
    """The longest pause between two steps about then, in milliseconds."""
    near = [one for one in times if kill - 1 < one < kill + ROOM]
    return max((after - before) * 1000 for before, after in pairwise(near))


def work(kind: str) -> None:
    """Steps until it is told to end. Each gradient is 1, so the weights tell how many pushes were taken."""
    import torch

    from shoal import train

    torch.set_num_threads(1)
    over: list[int] = []
    with train.start() as run:
        signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
        model = torch.nn.ParameterList([torch.zeros(100_000) for _ in range(1 if kind == "server" else run.size)])
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-20)
        run.wrap(model, optimizer)
        own, times = model[run.rank % len(model)], []
        for one in model:
            one.grad = torch.zeros_like(one)
        assert own.grad is not None
        own.grad.fill_(1.0)
        optimizer.step()
        print(json.dumps({"ready": True}), flush=True)
        while not over:
            time.sleep(0.002)
            optimizer.step()
            times.append(time.time())
        taken = round(-float(own.detach()[0]) * 2**20)
    print(json.dumps({"asked": 1 + len(times), "taken": taken, "times": times}), flush=True)


if __name__ == "__main__":
    main()
