"""From a repository to `show` and `diff`: two runs through a real server show exactly what was different."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Shoal

pytestmark = pytest.mark.real

SCRIPT = "import sys\nprint('ran', *sys.argv[1:])\n"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoal]:
    """A repository, and a server of its own."""
    root = tmp_path_factory.mktemp("captured")
    folder = root / "project"
    folder.mkdir()
    shoal = Shoal(root / "home", folder)
    (folder / "train.py").write_text(SCRIPT)
    git(shoal, "init", "-q", "-b", "main")
    git(shoal, "remote", "add", "origin", "https://ann:hunter2@example.org/team/x.git")
    git(shoal, "add", ".")
    git(shoal, "commit", "-q", "-m", "first")
    started = shoal("server", "start", "--cpus", "2", "--memory", "4GiB")
    assert started.code == 0, started.err
    yield shoal
    shoal("server", "stop")


def git(shoal: Shoal, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", "-C", str(shoal.folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(shoal: Shoal, *words: str, **more: Any) -> str:
    ran = shoal("run", "--quiet", "--json", "train.py", *words, **more)
    assert ran.code == 0, ran.err
    return str(json.loads(ran.lines[-1])["id"])


def shown(shoal: Shoal, job: str, *flags: str) -> dict[str, Any]:
    ran = shoal("show", job, "--json", *flags)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def diff(shoal: Shoal, a: str, b: str, *flags: str) -> dict[str, Any]:
    ran = shoal("diff", a, b, "--json", *flags)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_job_shows_its_commit_its_diff_its_packages_and_its_machine(here: Shoal) -> None:
    (here.folder / "train.py").write_text(SCRIPT + "# edited\n")
    job = run(here)
    git(here, "checkout", "-q", "train.py")
    commit = git(here, "rev-parse", "HEAD")
    whole = shown(here, job)
    assert whole["origin"]["git"]["commit"] == commit and whole["origin"]["git"]["dirty"]
    assert whole["origin"]["git"]["remote"] == "https://example.org/team/x.git"
    record = whole["attempts"][-1]["record"]
    assert record["packages"]["pytest"] == pytest.__version__ and record["frameworks"]["numpy"]
    assert record["interpreter"]["path"] == sys.executable
    assert record["nodes"]["local"]["kernel"] == os.uname().release
    assert record["commands"] == {"worker": [sys.executable, "train.py"]} and "RANK" in record["environment"]["worker"]
    assert "+# edited" in shown(here, job, "--record")["origin"]["git"]["diff"]
    short = here("show", job).out
    assert f"{commit[:10]}* main https://example.org/team/x.git" in short and "packages" in short
    assert "+# edited" in here("show", job, "--record").out


def test_the_same_run_twice_has_no_difference(here: Shoal) -> None:
    first, second = run(here), run(here)
    assert diff(here, first, second) == {}


def test_changed_data_a_changed_package_and_a_changed_key_are_what_the_diff_shows(here: Shoal, tmp_path: Path) -> None:
    data, site = tmp_path / "data", tmp_path / "site"
    data.mkdir()
    (data / "x.csv").write_text("1\n")
    install(site, "1.0")
    flags = ("--input", "set=pool://me/set", "--env", f"PYTHONPATH={site}")
    assert here("data", "put", str(data), "pool://me/set").code == 0
    first = run(here, *flags)
    assert diff(here, first, run(here, *flags, "--env", "LR=2")) == {"env.LR": {"a": None, "b": "2"}}

    install(site, "2.0")
    second = run(here, *flags)
    assert diff(here, first, second) == {"packages.my-own": {"a": "1.0", "b": "2.0"}}

    (data / "x.csv").write_text("2\n")
    assert here("data", "put", str(data), "pool://me/set").code == 0
    third = run(here, *flags)
    (changed,) = diff(here, second, third).items()
    given = shown(here, third)["attempts"][-1]["record"]["inputs"]["set"]
    assert changed[0] == "inputs.set" and changed[1]["b"] == given["digest"] != changed[1]["a"]
    assert (given["files"], given["bytes"]) == (1, 2)
    assert "inputs.set" in here("diff", second, third).out


def install(site: Path, version: str) -> None:
    for old in site.glob("*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    about = site / f"my_own-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-own\nVersion: {version}\n")


def test_changed_code_is_shown_file_by_file_and_line_by_line(here: Shoal) -> None:
    first = run(here)
    (here.folder / "train.py").write_text(SCRIPT + "print('more')\n")
    (here.folder / "weights.bin").write_bytes(b"\0\1")
    second = run(here)
    git(here, "add", ".")
    git(here, "commit", "-q", "-m", "second")
    third = run(here)
    found = diff(here, first, second, "--code")
    assert set(found) == {"git.dirty", "code"} and set(found["code"]["files"]) == {"train.py", "weights.bin"}
    assert "+print('more')" in found["code"]["diff"] and "b/weights.bin differ" in found["code"]["diff"]
    assert set(diff(here, second, third)) == {"git.commit", "git.dirty"}
    plain = here("diff", first, second)
    assert "code train.py" in plain.out and "--code" in plain.err and "+print" not in plain.out
    assert "+print('more')" in here("diff", first, second, "--code").out


def test_a_clone_has_the_repository_of_its_original(here: Shoal) -> None:
    job = run(here)
    clone = here("clone", job, "--json")
    assert clone.code == 0, clone.err
    copy = shown(here, json.loads(clone.out)["id"])
    assert copy["origin"]["git"] == shown(here, job)["origin"]["git"] and copy["origin"]["clone_of"] == job


def test_a_job_in_place_keeps_its_commit_and_the_difference_of_what_is_not_committed(here: Shoal) -> None:
    first = run(here, "--in-place")
    (here.folder / "train.py").write_text(SCRIPT + "# in place\n")
    second = run(here, "--in-place")
    git(here, "checkout", "-q", "train.py")
    assert set(diff(here, first, second)) == {"git.dirty", "git.diff_digest"}


def test_no_credential_reaches_what_is_kept_of_a_run(here: Shoal) -> None:
    """In the address of the repository, in the client's variables, on the command line, in the job's variables.

    The specification keeps what the job itself must be given; everything that is kept beside it does not.
    """
    ambient = {"WANDB_API_KEY": "ambient-secret-1"}
    words = ("--env", "HF_TOKEN=given-secret-2", "--", "--password", "typed-secret-3", "-k", "ambient-secret-1")
    job = run(here, *words, env=ambient)
    assert "HF_TOKEN" in shown(here, job)["attempts"][-1]["record"]["environment"]["worker"]
    database = sqlite3.connect(here.home / "home.db")
    kept = str([database.execute(f"SELECT * FROM {table}").fetchall() for table in ("origins", "records", "inputs")])
    database.close()
    assert job in kept and "HF_TOKEN=***" in kept
    for secret in ("hunter2", "ambient-secret-1", "given-secret-2", "typed-secret-3"):
        assert secret not in kept
