"""Every lesson, run for real as its first lines say, against a server on a home of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.interpreters import boosting, over_ours, preset

__all__ = ["boosting"]

ROOT = Path(__file__).parents[2]
SHOAL = (sys.executable, "-m", "shoal.cli")
SECRET = "a-secret-that-is-long-enough-for-a-webhook"

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


class World:
    """A home with a server on it, and what can be typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {"SHOAL_HOME": str(folder / "home"), "SHOAL_CACHE": str(folder / "cache"), "SHOAL_ALERT_SECRET": SECRET}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self.environment = {**kept, **own, "PYTHONUNBUFFERED": "1"}

    def shoal(self, *words: str, code: int = 0) -> str:
        return self.run(*SHOAL, *words, code=code)

    def python(self, *words: str, code: int = 0) -> str:
        return self.run(sys.executable, *words, code=code)

    def run(self, *words: str, code: int = 0) -> str:
        """What it printed; fails with all of it when it leaves with another code."""
        done = subprocess.run(words, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, f"{words} left with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("examples"))
    made.shoal("server", "start")
    try:
        yield made
    finally:
        made.shoal("server", "stop")


def test_01_hello_tells_every_rank_who_it_is_and_who_the_others_are(world: World) -> None:
    said = world.shoal("run", "--workers", "2", "--folder", "examples/01_hello", "--", "sh", "hello.sh")
    assert "worker-0 | hello from worker-0: rank 0 of 2" in said
    assert "worker-1 | hello from worker-1: rank 1 of 2" in said
    assert '"name": "worker-1", "role": "worker"' in said


def test_02_digits_learns_on_two_workers(world: World) -> None:
    said = world.shoal("run", "examples/02_digits/train.py", "--workers", "2", "--", "--epochs", "8")
    last = re.findall(r"worker-[01] \| progress 8/8 loss=\S+ accuracy=(\d\.\d+)", said)
    assert len(last) == 2 and float(last[0]) > 0.85


def test_03_job_file_has_two_roles_that_find_each_other(world: World) -> None:
    assert "tally" in world.shoal("plan", "examples/03_job_file/shoal.yaml")
    said = world.shoal("run", "examples/03_job_file/shoal.yaml")
    assert re.search(r"worker-0 \| [123] workers say: pi is about 3\.1", said)
    assert "tally-0  | worker-0 reported" in said


def test_03_flags_go_before_the_job_file(world: World) -> None:
    said = world.shoal("run", "examples/03_job_file/shoal.yaml", "--workers", "2", "--name", "pi-2")
    assert "2 workers say: pi is about 3.1" in said


def test_04_sdk_submits_follows_and_fetches(world: World) -> None:
    said = world.python("examples/04_sdk/sdk.py")
    assert "succeeded with exit code 0" in said
    assert "worker-1 said 'progress 5/5'" in said
    assert "it wrote ['rank-0.txt', 'rank-1.txt']" in said
    assert "steps succeeded" in said


def test_05_remote_function_returns_what_rank_0_returned(world: World) -> None:
    said = world.python("examples/05_remote_function/fit.py")
    assert "2 workers say: the mean of the squares is 332833.5" in said
    assert "worker-1: rank 1 of 2 had 500 numbers" in said


def test_06_inputs_come_from_the_pool_and_outputs_go_there(world: World) -> None:
    world.shoal("data", "put", "examples/06_inputs_outputs/words", "pool://me/words")
    said = world.shoal("run", "examples/06_inputs_outputs/shoal.yaml")
    assert "worker-0 | fish.txt: 8 words" in said and "worker-1 | shoal.txt: 5 words" in said
    assert "counts/counts-1.json" in world.shoal("data", "ls", "pool://me/")
    fetched = world.folder / "counts"
    world.shoal("data", "get", "pool://me/counts", str(fetched))
    assert '"fish": 4' in (fetched / "counts-0.json").read_text()


def test_07_a_killed_rank_is_tried_again_and_the_estimate_is_missed(world: World) -> None:
    said = world.shoal("run", "examples/07_retries_and_limits/retry.yaml")
    assert "attempt 1 of rank 1" in said and "attempt 2 of rank 1" in said and "rank 1 is done" in said
    shown = world.shoal("show", "flaky")
    assert "killed by signal 9" in shown and "overrun" in shown


def test_07_max_duration_stops_with_grace(world: World) -> None:
    said = world.shoal("run", "examples/07_retries_and_limits/limit.yaml", code=124)
    assert "asked to stop: saved after" in said and "max_duration" in said


def test_08_a_role_goes_on_without_a_rank_and_another_restarts_one(world: World) -> None:
    said = world.shoal("run", "examples/08_elastic_roles/shoal.yaml")
    assert "worker-0 goes on with worker-0, worker-1" in said
    assert "evaluator, try 2" in said
    shown = world.shoal("show", "elastic")
    assert re.search(r"worker-2 on \w+ exited with \d+.*; its role goes on without it", shown)
    assert "evaluator-0 ended and is started again (1)" in shown


def test_09_webhook_tells_of_a_failure_and_refuses_what_is_not_signed(world: World) -> None:
    with receiver(world) as (url, lines):
        world.shoal("alert", "set", url)
        world.shoal("alert", "test")
        assert "test: This is a test of your webhook." in next(lines)
        world.shoal("run", "--workers", "2", "--", "false", code=1)
        assert "failure: false failed: exit_code" in next(lines)
        forged = world.python("-c", FORGE, url)
        assert forged.strip() == "401" and "refused" in next(lines)
        world.shoal("alert", "rm")


FORGE = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], b'{"kind": "success"}', {"Shoal-Signature": "t=1,v1=00"})
try:
    urllib.request.urlopen(request, timeout=10)
except urllib.error.HTTPError as refused:
    print(refused.code)
"""


@contextmanager
def receiver(world: World) -> Iterator[tuple[str, Iterator[str]]]:
    """The address of lesson 9's receiver, and its lines as they come."""
    words = [sys.executable, "examples/09_webhook/receiver.py", "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, env=world.environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        yield next(lines).split()[-1], lines
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def test_the_demo_ends_with_its_accuracy(world: World) -> None:
    said = world.python("examples/demo.py")
    assert re.fullmatch(r"accuracy (0\.9\d|1\.00)", said.splitlines()[-1])
    assert "Look again with:" in said


def test_10_strategies_is_the_plain_script_alone_and_the_same_script_under_a_parameter_server(world: World) -> None:
    alone = world.python("examples/10_strategies/train.py", "--epochs", "2")
    assert "rank 0 of 1" in alone
    options = ("--workers", "2", "--servers", "2", "--strategy", "ps-ssp:staleness=3")
    said = world.shoal("run", "examples/10_strategies/train.py", *options, "--", "--epochs", "8")
    reached = re.findall(r"rank (\d) of 2 under ps-ssp:staleness=3: accuracy ([\d.]+)", said)
    assert sorted(rank for rank, _ in reached) == ["0", "1"]
    assert all(float(accuracy) > 0.7 for _, accuracy in reached)


def test_10_strategies_compares_them_names_a_winner_and_says_whether_the_suggestion_held(world: World) -> None:
    drawing = world.folder / "compare.svg"
    asked = ("--workers", "2", "--strategy", "allreduce", "--strategy", "ps-async", "--draw", str(drawing), "--json")
    said = json.loads(world.shoal("compare", "examples/10_strategies/train.py", *asked, "--", "--epochs", "3"))
    assert said["winner"] in ("allreduce", "ps-async") and said["suggested"] in ("allreduce", "ps-async")
    assert said["suggested_in_all"] == 1
    assert [one["steps"] for one in said["courses"]] == [69, 69]  # 1,437 samples in batches of 32 by two workers
    assert all(one["sent"] > 0 and one["state"] == "succeeded" for one in said["courses"])
    assert drawing.read_text().count("<polyline") == 6


def test_11_click_through_learns_most_of_what_can_be_learned_from_rows_on_two_servers(world: World) -> None:
    options = ("--workers", "2", "--servers", "2", "--strategy", "ps-async")
    said = world.shoal("run", "examples/11_click_through/train.py", *options, "--", "--steps", "200")
    learned = [int(part) for part in re.findall(r"learned (\d+)% of what can be learned", said)]
    assert len(learned) == 2 and all(part > 75 for part in learned)


def test_12_horovod_script_trains_one_model_on_two_workers(world: World) -> None:
    said = world.shoal("run", "examples/12_horovod/train.py", "--framework", "horovod", "--workers", "2")
    last = re.findall(r"worker-[01] \| progress 8/8 loss=\S+ accuracy=(\d\.\d+)", said)
    assert len(last) == 2 and float(last[0]) > 0.85
    assert said.count("all replicas equal: True") == 2


def test_12_byteps_script_comes_to_the_known_weights(world: World) -> None:
    script = "examples/12_horovod/byteps_regression.py"
    said = world.shoal("run", script, "--framework", "horovod", "--workers", "2")
    distances = re.findall(r"rank [01] of 2: (\S+) from the known weights", said)
    assert len(distances) == 2 and all(float(one) < 0.01 for one in distances)


@pytest.mark.parametrize(("lesson", "framework"), [("13_xgboost", "xgboost"), ("14_lightgbm", "lightgbm")])
def test_13_and_14_two_workers_with_half_of_the_digits_each_grow_one_model_that_knows_all(
    world: World, boosting: str, lesson: str, framework: str
) -> None:
    options = ("--framework", framework, "--workers", "2", "--environment", boosting)
    said = world.shoal("run", f"examples/{lesson}/train.py", *options)
    assert re.search(r"rank 0 of 2 has \d+ images of \[0, 1, 2, 3, 4\]", said)
    assert re.search(r"rank 1 of 2 has \d+ images of \[5, 6, 7, 8, 9\]", said)
    reached = re.findall(r"rank [01]: accuracy ([\d.]+) on all digits, model (\w+)", said)
    assert len(reached) == 2 and len({model for _, model in reached}) == 1
    assert all(float(accuracy) > 0.9 for accuracy, _ in reached)


def test_13_xgboost_needs_no_script_for_a_file(world: World, boosting: str) -> None:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    names = [*(str(name).replace(" ", "_") for name in found.feature_names), "benign"]
    rows = [
        ",".join([*map(repr, map(float, row)), str(label)]) for row, label in zip(found.data, found.target, strict=True)
    ]
    file = world.folder / "cancer.csv"
    file.write_text("\n".join([",".join(names), *rows]) + "\n")
    asked = ("--data", str(file), "--label", "benign", "--valid", "0.2", "--params", "max_depth=4,eta=0.3,rounds=50")
    said = world.shoal("run", "--framework", "xgboost", *asked, "--workers", "2", "--environment", boosting)
    assert "569 rows for 2 workers, 30 columns; benign is one of 2 classes (0, 1)" in said
    kept = re.search(r"kept \d+ of \d+ rounds in model.json: train-logloss=\S+ valid-logloss=(\S+)", said)
    assert kept is not None and float(kept[1]) < 0.2


def test_14_lightgbm_is_the_plain_script_without_shoal(world: World, boosting: str) -> None:
    world.environment["PYTHONPATH"] = str(ROOT)
    try:
        said = world.run(boosting, "examples/14_lightgbm/train.py")
    finally:
        del world.environment["PYTHONPATH"]
    (ROOT / "model.txt").unlink()
    assert re.search(r"rank 0: accuracy 0\.9\d+ on all digits", said)


def test_15_sklearn_fits_on_both_workers_and_finds_what_one_process_finds(world: World) -> None:
    alone = world.python("examples/15_sklearn/grid.py", "--jobs", "1").splitlines()
    said = world.shoal("run", "examples/15_sklearn/grid.py", "--framework", "sklearn", "--workers", "2")
    spread = [line.removeprefix("chief-0 | ") for line in said.splitlines() if line.startswith("chief-0 | ")]
    assert alone[0] == "27 fits in 1 processes, this one too"
    assert spread[0] == "27 fits in 2 processes, this one not"
    assert spread[1:] == alone[1:] and len(alone) == 5


RELATIVES = ("lightning==2.6.6", "accelerate==1.15.0", "torchft==0.2.0", "deepspeed==0.19.8")
HERE = ("--folder", "examples/16_relatives", "--")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (4, (*HERE, "torchrun", "--nproc_per_node=2", "with_torch.py")),
        (2, (*HERE, "python", "-m", "torch.distributed.run", "--nproc-per-node", "1", "with_torch.py")),
        (2, ("examples/16_relatives/with_lightning.py",)),
        (2, ("examples/16_relatives/with_accelerate.py",)),
        (2, (*HERE, "accelerate", "launch", "--cpu", "--num_processes", "2", "with_accelerate.py")),
        (2, (*HERE, "deepspeed", "with_deepspeed.py", "--steps", "60")),
    ],
    ids=["torchrun", "torch.distributed.run", "lightning", "accelerate", "accelerate-launch", "deepspeed"],
)
def test_16_relatives_learn_together_what_none_of_them_sees_alone(
    world: World, size: int, words: tuple[str, ...]
) -> None:
    python = over_ours(*RELATIVES)
    first, rest = (words[:1], words[1:]) if words[0].startswith("examples") else ((), words)
    said = world.shoal("run", *first, "--workers", "2", "--environment", python, *rest)
    learned = dict(re.findall(rf"rank (\d) of {size} learned (\[.*\])", said))
    assert learned == {str(rank): "[1.0, -2.0, 3.0, -4.0]" for rank in range(size)}, said


def test_16_a_replica_of_torchft_is_lost_and_healed(world: World) -> None:
    said = world.shoal("run", "examples/16_relatives/torchft.yaml", "--environment", over_ours(*RELATIVES))
    assert "group 1 is lost at step 30" in said
    assert len(re.findall(r"rank [01] of 2 learned \[1\.0, -2\.0, 3\.0, -4\.0\]", said)) == 2


FLAGS_OF_OLD = ("--job_name={role}", "--task_index={index}", "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}")


def learned_together(world: World, lesson: str, environment: str, *words: str, in_step: bool = True) -> str:
    """Two workers, each blind to half of the features, learn all of them, and the same; where nobody waits for the
    others, the last one to end has."""
    framework = environment.partition("-")[0]
    options = ("--framework", framework, "--workers", "2", "--environment", preset(environment))
    said = world.shoal("run", f"examples/{lesson}", *options, *words)
    off = [float(distance) for distance in re.findall(r"furthest weight off by ([\d.]+)", said)]
    assert off and (max if in_step else min)(off) < 0.01, said
    assert len(set(re.findall(r"weights (-?\d.*)", said))) <= 1, said
    return said


@pytest.mark.parametrize(
    ("script", "words"),
    [("mirrored.py", ("--strategy", "allreduce")), ("old_style.py", ("--strategy", "ps-sync", "--", *FLAGS_OF_OLD))],
)
def test_17_tensorflow_workers_learn_all_features_together(world: World, script: str, words: tuple[str, ...]) -> None:
    learned_together(world, f"17_tensorflow/{script}", "tensorflow-2.21", *words)


@pytest.mark.parametrize("strategy", ["allreduce", "ps-async"])
def test_17_tensorflow_fits_with_keras_2_under_either_strategy(world: World, strategy: str) -> None:
    words = ("--strategy", strategy, "--env", "TF_USE_LEGACY_KERAS=1")
    learned_together(world, "17_tensorflow/keras_fit.py", "tensorflow-2.21", *words)


def test_17_in_a_tensorflow_ps_job_the_weights_live_on_the_server(world: World) -> None:
    words = ("--strategy", "ps-async", "--servers", "1")
    said = learned_together(world, "17_tensorflow/parameter_server.py", "tensorflow-2.21", *words)
    assert "the weights live on /job:ps/replica:0/task:0" in said


@pytest.mark.parametrize(("strategy", "store"), [("ps-sync", "dist_sync"), ("ps-async", "dist_async")])
def test_18_mxnet_workers_learn_all_features_together(world: World, strategy: str, store: str) -> None:
    words = ("--strategy", strategy, "--", "--kvstore", store, "--steps", "300")
    said = learned_together(world, "18_mxnet/train.py", "mxnet-1.9", *words, in_step=strategy == "ps-sync")
    assert all(f"worker-{rank}    | rank {rank} of 2" in said for rank in range(2)), said


@pytest.mark.parametrize("words", [(), ("--", "--fleet")])
def test_19_paddle_workers_learn_all_features_together(world: World, words: tuple[str, ...]) -> None:
    learned_together(world, "19_paddle/train.py", "paddle-3.3", *words)


def test_19_paddle_with_servers_says_which_build_lacks_them(world: World) -> None:
    options = ("--framework", "paddle", "--strategy", "ps-sync", "--workers", "2")
    said = world.shoal("run", "examples/19_paddle/train.py", *options, "--environment", preset("paddle-3.3"), code=2)
    assert "this Paddle 3.3.1" in said and "built without parameter servers" in said


def test_20_jax_workers_learn_all_features_together(world: World) -> None:
    learned_together(world, "20_jax/train.py", "jax-0.10")
