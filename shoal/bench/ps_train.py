"""The parameter servers of the training library: against torch RPC, memcpy and TensorFlow's, with a slow worker, and
through the death of a worker or a server. What is measured runs as scripts of their own, in `bench/train`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from statistics import median

from shoal.bench import train
from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import measure
from shoal.bench.peer import run_script
from shoal.bench.presets import python_of
from shoal.errors import StartFailed

MEGABYTES, ROUNDS, RPC_ROUNDS = 100, 25, 10
DENSE_PAIRS = 3
WIDTH, BATCH, STEPS = 2048, 32, 600
TENSORFLOW = "tensorflow-2.21"
TENSORFLOW_PAIRS = 3
SLOW = 5
STRAGGLER_PAIRS = 3
LIMIT = 400.0  # seconds for one run of a peer


def ps_dense() -> list[Figure]:
    """Push and pull of 100 MB by two workers: against torch RPC, and against copying as many bytes."""
    found: list[dict[str, float]] = []

    def ours() -> float:
        found.append(run_script("shoal.bench.train.ps_dense", MEGABYTES, ROUNDS))
        return 1 / found[-1]["seconds"]

    pairs = measure(
        DENSE_PAIRS, ours, lambda: 1 / run_script("shoal.bench.train.ps_rpc", MEGABYTES, RPC_ROUNDS)["seconds"]
    )
    here, there = 1000 / median(pairs.ours), 1000 / median(pairs.theirs)
    copies = [2 * one["copy"] / one["seconds"] for one in found]  # a push and a pull move the bytes twice
    rate = MEGABYTES / 1000 / median(one["copy"] for one in found)
    return [
        Figure("ps.rpc", pairs.ratio, Target("≥", 4, "×"), f"torch RPC {there:.0f} ms", f"ours {here:.0f} ms"),
        Figure("ps.memcpy", median(copies), Target("≥", 0.4, "×"), f"memcpy {rate:.1f} GB/s in two at once"),
    ]


def ps_tensorflow() -> list[Figure]:
    """Steps a second of a dense model: against TensorFlow's ParameterServerStrategy."""
    python = python_of(TENSORFLOW)
    shape = [str(number) for number in (WIDTH, BATCH, STEPS)]
    pairs = measure(
        TENSORFLOW_PAIRS,
        lambda: float(run_script("shoal.bench.train.ps_steps", "dense", *shape)["steps_per_s"]),
        lambda: tensorflow(python, shape),
    )
    peer = f"TensorFlow {median(pairs.theirs):.0f} steps/s"
    note = f"ours {median(pairs.ours):.0f} steps/s; {pairs.spread}"
    return [Figure("ps.tensorflow", pairs.ratio, Target("≥", 3, "×"), peer, note)]


def straggler_async() -> list[Figure]:
    """Four workers, one of them five times slower: samples a second against nobody slow."""
    pairs = measure(STRAGGLER_PAIRS, lambda: _steps("slow", SLOW), lambda: _steps("slow", 1))
    peer = f"nobody slow {median(pairs.theirs):.0f} steps/s"
    return [Figure("straggler.async", pairs.ratio, Target("≥", 0.75, "×"), peer, "0.80 is the limit")]


def fault_worker() -> list[Figure]:
    """From the death of a worker until the server counts it out, and what the others lost by it."""
    found = run_script("shoal.bench.train.ps_fault", "worker")
    return [
        Figure("fault.worker", found["ms"], Target("<", 500, "ms")),
        Figure("fault.worker.lost", found["lost"], Target("≤", 0, "steps")),
    ]


def fault_server() -> list[Figure]:
    """From the death of the process that serves until pushes are answered again."""
    found = run_script("shoal.bench.train.ps_fault", "server")
    return [Figure("fault.server", found["ms"], Target("<", 2000, "ms"))]


def tensorflow(python: str, shape: list[str]) -> float:
    script = Path(train.__file__).parent / "ps_tensorflow.py"
    done = subprocess.run(
        [str(python), str(script), *shape],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        raise StartFailed(
            f"TensorFlow's side ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return float(json.loads(found[-1])["steps_per_s"])


def _steps(*arguments: object) -> float:
    return float(run_script("shoal.bench.train.ps_steps", *arguments)["steps_per_s"])
