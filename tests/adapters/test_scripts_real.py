"""Scripts that use XGBoost and LightGBM as their users write them, on two workers for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client.draft import draft
from shoal.client.jobs import Job
from tests.support.interpreters import boosting
from tests.support.live import Live, live_server

__all__ = ["boosting"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tmp_path_factory.mktemp("scripts") / "home", "--cpus", "4") as server:
        yield server


def lines(live: Live, python: str, folder: Path, framework: str, code: str, **keys: Any) -> list[str]:
    """What both workers printed, in order of the text."""
    script = folder / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(code)
    raw = {"framework": framework, "script": str(script), "environment": python, "workers": 2, **keys}
    job = Job(live.api, draft(raw).send(live.api))
    live.wait_state(job, "succeeded", "failed", seconds=120)
    assert job.state == "succeeded", f"{job.message}\n" + "\n".join(live.lines(job))
    return sorted(line for rank in ("worker-0", "worker-1") for line in live.lines(job, rank) if line.startswith("= "))


JOINS = {
    "no arguments": "xgboost.collective.CommunicatorContext()",
    "the variables as they are": "xgboost.collective.CommunicatorContext(**told)",
    "shoal": "shoal.xgboost.context()",
}


@pytest.mark.parametrize("form", JOINS)
def test_xgboost_workers_find_each_other_in_every_common_form(
    live: Live, boosting: str, tmp_path: Path, form: str
) -> None:
    code = f"""
import os
import numpy, xgboost, shoal.xgboost
told = {{name: os.environ[name] for name in ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID")}}
with {JOINS[form]}:
    rank, size = xgboost.collective.get_rank(), xgboost.collective.get_world_size()
    total = xgboost.collective.allreduce(numpy.array([10.0 + rank]), xgboost.collective.Op.SUM)
    print("=", os.environ["SHOAL_RANK"], rank, size, total[0], flush=True)
"""
    assert lines(live, boosting, tmp_path, "xgboost", code) == ["= 0 0 2 21.0", "= 1 1 2 21.0"]


def test_xgboost_estimators_of_scikit_learn_train_together(live: Live, boosting: str, tmp_path: Path) -> None:
    code = """
import numpy, xgboost
with xgboost.collective.CommunicatorContext():
    rank = xgboost.collective.get_rank()
    x = numpy.arange(200.0).reshape(-1, 1)
    mine = (x[:, 0] >= 100) == rank  # neither has seen the other's half
    model = xgboost.XGBRegressor(n_estimators=40).fit(x[mine], x[mine, 0])
    print("=", bool(abs(model.predict(x) - x[:, 0]).max() < 10), flush=True)
"""
    assert lines(live, boosting, tmp_path, "xgboost", code) == ["= True", "= True"]


def test_lightgbm_trains_again_and_again_in_one_process_and_with_estimators(
    live: Live, boosting: str, tmp_path: Path
) -> None:
    code = """
import os
import lightgbm, numpy, shoal.lightgbm
rank = int(os.environ["SHOAL_RANK"])
x = numpy.random.default_rng(0).integers(0, 20, (400, 3)).astype(float)
mine = numpy.arange(400) % 2 == rank
y = x[:, 0] + 100 * (numpy.arange(400) % 2)  # one sees only y up to 19, the other only from 100 on
for turn in range(3):
    model = lightgbm.LGBMRegressor(n_estimators=30, verbosity=-1, **shoal.lightgbm.params()).fit(x[mine], y[mine])
    print("=", turn, 50 < model.predict(x).mean() < 70, flush=True)
"""
    said = lines(live, boosting, tmp_path, "lightgbm", code)
    assert said == [f"= {turn} True" for turn in range(3) for _ in (0, 1)]


def test_lightgbm_finds_its_machines_in_flags_without_a_word_of_shoal(
    live: Live, boosting: str, tmp_path: Path
) -> None:
    code = """
import argparse
import lightgbm, numpy
flags = argparse.ArgumentParser()
for name in ("machines", "port", "count", "rank"):
    flags.add_argument("--" + name)
given = flags.parse_args()
params = {"machines": given.machines, "local_listen_port": int(given.port), "num_machines": int(given.count),
          "tree_learner": "voting", "pre_partition": True, "verbosity": -1}
x = numpy.arange(400.0).reshape(-1, 1) % 40
y = numpy.full(400, float(given.rank))
model = lightgbm.train(params, lightgbm.Dataset(x, y), 5)
print("=", round(float(model.predict(x).mean()), 3), flush=True)
"""
    args = ["--machines", "{worker_hosts}", "--port", "{port}", "--count", "{size}", "--rank", "{rank}"]
    assert lines(live, boosting, tmp_path, "lightgbm", code, args=args) == ["= 0.5", "= 0.5"]
