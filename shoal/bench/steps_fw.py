"""What supervision costs each framework: steps a second under Shoal and under the framework's own launcher, in turn.

Both gangs live at the same time and take turns, block by block (`scripts/fw/turns.py`): a start is no part of it, and
what the machine does besides hits both alike. Where a framework has no launcher, its processes are started with the
variables or arguments that its manual names.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from shoal._lib.ports import free_ports
from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import Pairs, measure
from shoal.bench.plain import Crew
from shoal.bench.presets import python_of
from shoal.bench.site import SCRIPTS, Site, site
from shoal.client.jobs import Job
from shoal.errors import StartFailed

PAIRS = 31
BLOCK = 0.4  # seconds of one turn
FIRST = 20  # steps of the turns that warm up and tell how many make a block
LIMIT = 180.0  # seconds for a gang to come up, or for one turn

Launch = Callable[[Crew], None]


@dataclass(frozen=True)
class Turns:
    """The folder through which two gangs are told whose turn it is."""

    folder: Path

    def told(self, side: str) -> dict[str, str]:
        return {"BENCH_TURNS": str(self.folder), "BENCH_SIDE": side}

    def wait_for(self, side: str) -> None:
        _wait(lambda: all((self.folder / f"{side}.{rank}.ready").exists() for rank in range(2)), f"{side} to start")

    def take(self, side: str, numbers: Iterator[int], steps: int) -> float:
        """Steps a second of that side's next turn."""
        number = next(numbers)
        draft = self.folder / f"{side}.{number}.order"
        draft.write_text(str(steps))
        draft.rename(self.folder / f"{side}.{number}.go")
        done = self.folder / f"{side}.{number}.done"
        _wait(done.exists, f"turn {number} of {side}")
        return float(done.read_text())

    def end(self) -> None:
        (self.folder / "end").touch()


def measured(name: str, preset: str, peer: str, launch: Launch) -> list[Figure]:
    """The figure of one framework. `launch` starts the same script on two workers without Shoal."""
    python = python_of(preset)
    with site() as running, ExitStack() as ends:
        turns = Turns(Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="shoal-turns-"))))
        script = _lay_out(running, name)
        crew = ends.enter_context(Crew(python, script, turns.told("theirs")))
        ends.callback(turns.end)
        launch(crew)
        job = running.submit(script, framework=name, workers=2, environment=python, env=turns.told("ours"))
        pairs = _compare(turns, job, crew)
        turns.end()
        job.wait(LIMIT)
    note = f"ours {median(pairs.ours):.1f} steps/s; {pairs.spread}"
    theirs = f"{peer} {median(pairs.theirs):.1f} steps/s"
    return [Figure(f"fw.{name}.steps", pairs.ratio, Target("≥", 0.99, "×"), theirs, note)]


def _compare(turns: Turns, job: Job, crew: Crew) -> Pairs:
    try:
        turns.wait_for("theirs")
        turns.wait_for("ours")
    except StartFailed as late:
        said = "\n".join(line.text for line in job.logs())
        raise StartFailed(f"{late}; Shoal's said:\n{said[-1500:]}\nthe others:\n{crew.said()[-1500:]}") from late
    ours, theirs = partial(turns.take, "ours", count()), partial(turns.take, "theirs", count())
    warm = [(ours(FIRST), theirs(FIRST)) for _ in range(2)]
    steps = max(FIRST, int(BLOCK * min(warm[-1])))
    return measure(PAIRS, lambda: ours(steps), lambda: theirs(steps))


def _lay_out(running: Site, name: str) -> Path:
    target = running.folder / f"fw-{name}" / f"steps_{name}.py"
    target.parent.mkdir()
    for source in (target.name, "turns.py"):
        shutil.copyfile(SCRIPTS / "fw" / source, target.parent / source)
    return target


def _wait(true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > until:
            raise StartFailed(f"waited {LIMIT:g} s for {what}")
        time.sleep(0.002)


# -- each framework's own way ------------------------------------------------------------------------------------------


def pytorch() -> list[Figure]:
    return measured("pytorch", "pytorch-2.13", "torchrun", _torchrun)


def horovod() -> list[Figure]:
    """Horovod's own launcher needs Horovod, which builds with no torch of today: the same hvd under torchrun."""
    return measured("horovod", "pytorch-2.13", "torchrun", _torchrun_with_packages)


def tensorflow() -> list[Figure]:
    return measured("tensorflow", "tensorflow-2.21", "TF_CONFIG by hand", _tf_config)


def mxnet() -> list[Figure]:
    return measured("mxnet", "mxnet-1.9", "DMLC_* by hand", _dmlc)


def paddle() -> list[Figure]:
    return measured("paddle", "paddle-3.3", "paddle.distributed.launch", _paddle_launch)


def jax() -> list[Figure]:
    return measured("jax", "jax-0.10", "initialize() by hand", _coordinator)


def xgboost() -> list[Figure]:
    return measured("xgboost", "xgboost-3.2", "RabitTracker by hand", _tracker)


def lightgbm() -> list[Figure]:
    return measured("lightgbm", "lightgbm-4.7", "machines by hand", _machines)


def _torchrun(crew: Crew, **variables: str) -> None:
    options = ["--nproc-per-node", "2", "--master-port", str(free_ports(1)[0])]
    crew.start("-m", "torch.distributed.run", *options, str(crew.script), **variables)


def _torchrun_with_packages(crew: Crew) -> None:
    package = Path(__file__).parents[1]
    _torchrun(crew, PYTHONPATH=f"{package / 'adapters' / 'horovod_path'}:{package.parent}")


def _paddle_launch(crew: Crew) -> None:
    options = ["--nproc_per_node", "2", "--log_dir", str(crew.script.parent / "log")]
    crew.start("-m", "paddle.distributed.launch", *options, str(crew.script))


def _tf_config(crew: Crew) -> None:
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for rank in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        crew.start(str(crew.script), TF_CONFIG=json.dumps(config))


def _dmlc(crew: Crew) -> None:
    root = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]), "DMLC_INTERFACE": "lo"}
    counts = {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "2", "DMLC_NODE_HOST": "127.0.0.1"}
    for role in ("scheduler", "server"):
        crew.start("-c", "import mxnet", **root, **counts, DMLC_ROLE=role)
    for _ in range(2):
        crew.start(str(crew.script), **root, **counts, DMLC_ROLE="worker")


def _coordinator(crew: Crew) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for rank in range(2):
        crew.start(str(crew.script), BENCH_COORDINATOR=address, BENCH_RANK=str(rank))


def _tracker(crew: Crew) -> None:
    port = free_ports(1)[0]
    serve = (
        "from xgboost.tracker import RabitTracker; "
        f"t = RabitTracker(n_workers=2, host_ip='127.0.0.1', port={port}); t.start(); t.wait_for()"
    )
    crew.start("-c", serve)
    for rank in range(2):
        tracker = {"DMLC_TRACKER_URI": "127.0.0.1", "DMLC_TRACKER_PORT": str(port), "DMLC_TASK_ID": str(rank)}
        crew.start(str(crew.script), **tracker)


def _machines(crew: Crew) -> None:
    ports = free_ports(2)
    machines = ",".join(f"127.0.0.1:{port}" for port in ports)
    for port in ports:
        crew.start(str(crew.script), BENCH_MACHINES=machines, BENCH_PORT=str(port))
