"""Trainings without a script, for real: two workers against one, early stops, kills, stops, pools, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.client.draft import draft
from shoal.client.jobs import Job
from tests.support.live import Live, eventually

ROOT = Path(__file__).parents[3]
FRAMEWORKS = ("xgboost", "lightgbm")

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PREDICT = """
import csv, json, sys
framework, model, rows = sys.argv[1:4]
rows = list(csv.reader(open(rows)))[1:]
features = [[float(cell) for cell in row[:-1]] for row in rows]
if framework == "xgboost":
    import xgboost
    booster = xgboost.Booster(model_file=model)
    said = booster.predict(xgboost.DMatrix(features, feature_names=booster.feature_names))
else:
    import lightgbm
    said = lightgbm.Booster(model_file=model).predict(features)
print(json.dumps({"said": said.tolist(), "right": [float(row[-1]) for row in rows]}))
"""


def submit(live: Live, framework: str, python: str, data: Path | str, **keys: Any) -> Job:
    job = draft({"framework": framework, "data": str(data), "environment": python, "resources": {"cpu": 1}, **keys})
    return Job(live.api, job.send(live.api))


def trained(live: Live, *asked: Any, **keys: Any) -> Path:
    """The outputs of a training that went well."""
    job = submit(live, *asked, **keys)
    live.wait_state(job, "succeeded", "failed", seconds=120)
    assert job.state == "succeeded", f"{job.message}\n" + "\n".join(live.lines(job))
    return outputs(live, job)


def outputs(live: Live, job: Job) -> Path:
    return live.home.work / job.id / "outputs"


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def predict(python: str, framework: str, folder: Path, rows: Path) -> tuple[list[Any], list[float]]:
    model = folder / report(folder)["model"]
    words = [python, "-c", PREDICT, framework, str(model), str(rows)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["said"], told["right"]


def furthest(one: list[Any], other: list[Any]) -> float:
    pairs = zip(one, other, strict=True)
    return max(abs(a - b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_workers_that_each_lack_half_of_the_classes_grow_the_trees_of_one(
    live: Live, boosting: str, digits: Path, framework: str
) -> None:
    params = {"max_depth": 3, "learning_rate": 0.3, "rounds": 10}
    keys = {"label": "digit", "params": params}
    both = trained(live, framework, boosting, digits, workers=2, **keys)
    said, right = predict(boosting, framework, both, digits)
    known = [max(range(10), key=row.__getitem__) == label for row, label in zip(said, right, strict=True)]
    assert sum(known) / len(known) > 0.93
    if framework == "xgboost":
        # Pixels have 17 values, fewer than there are bins: two workers count what one counts, in another order.
        # LightGBM promises that only where every worker sees every value: see the next test.
        alone = trained(live, framework, boosting, digits, workers=1, **keys)
        assert furthest(said, predict(boosting, framework, alone, digits)[0]) < 1e-4
    assert report(both)["workers"] == 2 and report(both)["classes"] == [float(digit) for digit in range(10)]


def test_lightgbms_two_workers_grow_the_trees_of_one_where_each_sees_every_value(
    live: Live, boosting: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    columns = [(n * 7 % 11, n * 13 % 9, n * 29 % 7) for n in range(800)]
    lines = [f"{a},{b},{c},{int(a + b * c > 20)}" for a, b, c in columns]
    rows.write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    keys = {"label": "y", "params": {"rounds": 15, "num_leaves": 7}}
    both, alone = (trained(live, "lightgbm", boosting, rows, workers=count, **keys) for count in (2, 1))
    said, _ = predict(boosting, "lightgbm", both, rows)
    one, _ = predict(boosting, "lightgbm", alone, rows)
    assert furthest([[value] for value in said], [[value] for value in one]) < 1e-6


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_stops_early_keeps_the_best_round_and_tells_its_progress(
    live: Live, boosting: str, tmp_path: Path, framework: str
) -> None:
    rows = tmp_path / "noise.csv"
    lines = [f"{n * 7919 % 101},{n * 104729 % 97},{n * 1299709 % 89 / 10}" for n in range(600)]
    rows.write_text("\n".join(["a,b,y", *lines]) + "\n")
    params = {"rounds": 500, "early_stopping": 5, "learning_rate": 0.5}
    job = submit(live, framework, boosting, rows, label="y", valid=0.3, params=params, workers=2)
    live.wait_state(job, "succeeded", "failed", seconds=120)
    told = report(outputs(live, job))
    scores = [one[name] for one in told["history"] for name in one if name.startswith("valid-")]
    assert told["stopped"] == "early" and told["rounds"] == told["best_round"] + 5 < 500
    assert scores.index(min(scores)) + 1 == told["best_round"]
    assert not (outputs(live, job) / "checkpoint").exists()
    facts = next(rank["progress"] for rank in job.refresh().ranks if rank["name"] == "worker-0")
    assert facts["done"] == told["rounds"] and facts["total"] == 500


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_worker_killed_in_the_middle_costs_no_round_before_the_checkpoint(
    live: Live, boosting: str, digits: Path, framework: str
) -> None:
    params = {"max_depth": 3, "rounds": 300, "every": 10, "learning_rate": 0.1}
    job = submit(live, framework, boosting, digits, label="digit", params=params, workers=2, retries=1)
    state = outputs(live, job) / "checkpoint" / "state.json"
    eventually(state.exists, 60, "the first checkpoint")
    victim = next(rank["pid"] for rank in job.refresh().ranks if rank["name"] == "worker-1")
    os.kill(victim, signal.SIGKILL)
    live.wait_state(job, "succeeded", "failed", seconds=120)
    assert job.state == "succeeded" and job.attempt == 2, job.message
    told = report(outputs(live, job))
    assert told["resumed_after"] >= 10 and told["rounds"] == len(told["history"]) == 300
    whole = trained(live, framework, boosting, digits, label="digit", params=params, workers=2)
    mine, _ = predict(boosting, framework, outputs(live, job), digits)
    assert furthest(mine, predict(boosting, framework, whole, digits)[0]) < 1e-3


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stop_leaves_the_model_as_far_as_it_came(live: Live, boosting: str, digits: Path, framework: str) -> None:
    params = {"rounds": 1_000_000, "max_depth": 2}
    job = submit(live, framework, boosting, digits, label="digit", params=params, workers=2, grace=30)
    eventually(lambda: any(line.startswith("progress") for line in live.lines(job, "worker-0")), 60, "progress")
    job.stop()
    live.wait_state(job, "stopped")
    told = report(outputs(live, job))
    assert told["stopped"] == "asked" and 0 < told["rounds"] < 1_000_000
    assert (outputs(live, job) / told["model"]).stat().st_size > 0


def test_data_comes_from_the_pool_and_a_second_file_is_evaluated_on(live: Live, boosting: str, digits: Path) -> None:
    from shoal.client.data import put

    put(live.api, digits, "pool://me/rows/digits.csv")
    keys = {"label": "digit", "valid": str(digits), "params": {"rounds": 3, "eval_metric": ["merror", "mlogloss"]}}
    made = trained(live, "xgboost", boosting, "pool://me/rows/digits.csv", workers=2, **keys)
    assert list(report(made)["scores"]) == ["train-merror", "train-mlogloss", "valid-merror", "valid-mlogloss"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parquet_with_texts_and_gaps_is_learned_from(live: Live, boosting: str, tmp_path: Path, framework: str) -> None:
    make = """
import sys, pyarrow, pyarrow.parquet
n = range(400)
columns = {"colour": [("red", "green", None)[i % 3] for i in n], "x": [None if i % 7 == 0 else i % 11 for i in n],
           "kind": ["big" if i % 3 == 1 else "small" for i in n]}
pyarrow.parquet.write_table(pyarrow.table(columns), sys.argv[1], row_group_size=64)
"""
    rows = tmp_path / "rows.parquet"
    subprocess.run([boosting, "-c", make, str(rows)], check=True, timeout=60)
    made = trained(live, framework, boosting, rows, label="kind", params={"rounds": 20}, workers=2)
    told = report(made)
    assert (told["categories"], told["classes"]) == ({"colour": ["green", "red"]}, ["big", "small"])
    assert min(told["scores"].values()) < 0.05


def run_alone(python: str, framework: str, folder: Path, **task: Any) -> subprocess.CompletedProcess[str]:
    words = [python, "-m", "shoal.adapters.boost", framework, json.dumps({"data": "rows.csv", "label": "y", **task})]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{n},{n % 5},{n % 2}\n" for n in range(60)))
    return tmp_path


def test_without_shoal_it_trains_here(boosting: str, folder: Path) -> None:
    done = run_alone(boosting, "xgboost", folder, params={"rounds": 2})
    assert done.returncode == 0 and (folder / "outputs" / "model.json").exists(), done.stderr


@pytest.mark.parametrize(
    ("framework", "task", "says"),
    [
        ("xgboost", {"params": {"max_dept": 3}}, "XGBoost knows no 'max_dept', or has no use for it"),
        ("lightgbm", {"params": {"num_leavs": 3}}, "LightGBM knows no 'num_leavs'; did you mean 'num_leaves'?"),
        ("xgboost", {"params": {"eta": -1}}, "XGBoost refuses them: value -1 for Parameter learning_rate"),
        ("xgboost", {"params": {"objective": "reg:foo"}}, "Unknown objective function: `reg:foo`"),
        ("lightgbm", {"params": {"objective": "foo"}}, "LightGBM refuses them: Unknown objective type name: foo"),
        ("lightgbm", {"params": {"num_machines": 3}}, "num_machines is set by Shoal"),
        ("xgboost", {"label": "z"}, "'z' is not a column"),
        ("xgboost", {"data": "gone.csv"}, "there is no gone.csv"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(
    boosting: str, folder: Path, framework: str, task: dict[str, Any], says: str
) -> None:
    done = run_alone(boosting, framework, folder, **task)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("shoal: ") and says in last
    assert "Traceback" not in done.stderr


def test_an_interpreter_without_the_framework_is_told_what_to_install(folder: Path) -> None:
    import sys

    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "xgboost.py").write_text("raise ImportError('no xgboost here')\n")
    words = [sys.executable, "-m", "shoal.adapters.boost", "xgboost", '{"data": "rows.csv"}']
    env = {**os.environ, "PYTHONPATH": f"{hidden}:{ROOT}"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "install xgboost-cpu there" in done.stderr
