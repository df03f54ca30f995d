"""Local SGD and gossip as real processes: shared memory and TCP, a worker that is killed, one that comes back."""

from __future__ import annotations

import signal

import pytest

from tests.train.support import Running, run_world

pytestmark = pytest.mark.real

LOCAL = """
    import torch
    from shoal import train

    torch.manual_seed(0)
    with train.start() as run:
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        model, optimizer = run.wrap(model, optimizer)
        goal = torch.randn(20, 1, generator=torch.Generator().manual_seed(5))
        data = torch.Generator().manual_seed(run.rank)
        for number in range({steps}):
            inputs = torch.randn(16, 20, generator=data)
            loss = (model(inputs) - inputs @ goal).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.should_stop()  # another thing that workers agree on, while rounds run beside it
    print("end", float(sum(one.double().sum() for one in model.state_dict().values())))
"""


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        ("local-sgd:every=8,fragments=2,delay=2,outer=nesterov", 1),
        ("local-sgd:every=4,slowmo=0.5,compress=topk", 2),
    ],
)
def test_all_workers_end_with_the_same_model(strategy: str, nodes: int) -> None:
    result = run_world(LOCAL.format(steps=30), workers=3, strategy=strategy, nodes=nodes, timeout=100).check()
    ends = {result.lines(name, "end")[0] for name in result.stdout}
    assert len(ends) == 1, result.told()


def test_workers_with_less_to_do_leave_and_the_others_go_on() -> None:
    script = LOCAL.format(steps="10 + 7 * run.rank")
    result = run_world(script, workers=3, strategy="local-sgd:every=4,delay=1", timeout=100).check()
    assert all(result.lines(name, "end") for name in result.stdout)


GOSSIP = """
    import threading, torch
    from shoal import train

    torch.manual_seed(0)
    with train.start() as run:
        model = torch.nn.Linear(20, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        model, optimizer = run.wrap(model, optimizer)
        goal = torch.randn(20, 1, generator=torch.Generator().manual_seed(5))
        data = torch.Generator().manual_seed(run.rank)
        pause = threading.Event()
        print("began", flush=True)
        left = 240  # steps, counted from when everybody is there: a latecomer drags the others back
        while left:
            left -= bool({go_on})
            inputs = torch.randn(16, 20, generator=data)
            loss = (model(inputs) - inputs @ goal).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss < 0.05:
                (run.world.outputs / f"near-{{run.rank}}").touch()
            pause.wait(0.005)  # a step has a length, so that the workers run side by side
        print("averaged", sum(by * count for by, count in run.seeing.staleness.items()), flush=True)
    with torch.no_grad():
        print("far", (model.weight.t() - goal).norm().item(), flush=True)
"""


def far(result: object, name: str) -> float:
    return float(result.lines(name, "far")[-1].split()[1])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("strategy", "nodes"), [("gossip", 2), ("gossip:mode=push,topology=one-peer", 1)])
def test_workers_that_gossip_learn_together(strategy: str, nodes: int) -> None:
    result = run_world(GOSSIP.format(go_on="True"), workers=3, strategy=strategy, nodes=nodes, timeout=100).check()
    for name in result.stdout:
        assert far(result, name) < 0.5, result.told()
        assert int(result.lines(name, "averaged")[0].split()[1]) > 0, "nobody averaged with it"


@pytest.mark.parametrize("strategy", ["gossip", "gossip:mode=push"])
def test_a_worker_that_is_killed_is_missed_by_nobody(strategy: str) -> None:
    def kill(running: Running) -> None:
        for name in running.commands:
            running.wait_for(name, "began")
        running.kill("worker-1")
        (running.outputs / "killed").touch()

    # Counted from when all who are left have learned: on a busy machine one of them may have hardly begun.
    marks = ("killed", "near-0", "near-2", "near-3")
    script = GOSSIP.format(go_on=f"all((run.world.outputs / mark).exists() for mark in {marks})")
    result = run_world(script, workers=4, strategy=strategy, during=kill, timeout=100)
    others = ("worker-0", "worker-2", "worker-3")
    assert result.returncodes == {"worker-1": -signal.SIGKILL, **dict.fromkeys(others, 0)}, result.told()
    assert all(far(result, name) < 0.5 for name in others), result.told()


def test_a_worker_that_comes_back_takes_what_the_others_have_learnt() -> None:
    def kill_and_start(running: Running) -> None:
        for name in running.commands:
            running.wait_for(name, "began")
        running.kill("worker-0")
        running.start("worker-0")
        running.wait_for("worker-0", "began[^$]*began")
        (running.outputs / "back").touch()

    script = GOSSIP.format(go_on="(run.world.outputs / 'back').exists()")
    result = run_world(script, workers=3, strategy="gossip", during=kill_and_start, timeout=100).check()
    assert all(far(result, name) < 0.5 for name in result.stdout), result.told()


def test_a_worker_that_is_stopped_for_a_while_holds_nobody_up() -> None:
    def stop(running: Running) -> None:
        for name in running.commands:
            running.wait_for(name, "began")
        running.signal("worker-1", signal.SIGSTOP)
        running.wait(["worker-0", "worker-2"])
        running.signal("worker-1", signal.SIGCONT)

    run_world(
        GOSSIP.format(go_on="True"), workers=3, strategy="gossip:topology=complete", during=stop, timeout=100
    ).check()
