"""The command line against a real server: from `run` to `rm`, as a user would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Shoal

pytestmark = pytest.mark.real

STEPS = """
import os, sys
for step in range(3):
    print(f"progress {step + 1}/3 loss={1 / (step + 1):.2f}", flush=True)
    print(f"[rank {os.environ['RANK']}] step {step}", flush=True)
open(f"out-{os.environ['RANK']}.txt", "w").write("done")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def folder(served: Shoal) -> Path:
    (served.folder / "steps.py").write_text(STEPS)
    return served.folder


def submitted(shoal: Shoal, *arguments: str) -> str:
    ran = shoal("submit", "--quiet", *arguments)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def state_of(shoal: Shoal, job: str) -> str:
    return str(json.loads(shoal("show", job, "--json").out)["state"])


def wait_for(shoal: Shoal, job: str, *states: str) -> None:
    deadline = time.monotonic() + 60
    while (state := state_of(shoal, job)) not in states:
        assert time.monotonic() < deadline, f"{job} is still {state}"
        time.sleep(0.1)


def test_a_command_runs_as_a_gang_with_prefixed_lines_and_a_summary(served: Shoal) -> None:
    ran = served("run", "--workers", "2", "--", "echo", "[rank 1] hello")
    assert ran.code == 0, ran.err
    assert sorted(ran.lines[:2]) == ["worker-0 | [rank 1] hello", "worker-1 | [rank 1] hello"]
    assert "succeeded" in ran.lines[-1] and len(ran.lines) == 3
    assert "http://127.0.0.1:" in ran.err


def test_run_leaves_with_the_exit_code_of_the_job(served: Shoal, folder: Path) -> None:
    ran = served("run", "steps.py", "--", "7")
    assert ran.code == 7 and "failed" in ran.lines[-1] and "shoal logs" in ran.lines[-1]


def test_a_script_with_its_own_names_for_rank_and_peers_is_told_by_variables(served: Shoal) -> None:
    told = ("--env", "PROCESS_ID={rank}", "--env", "CLUSTER={cluster}", "--env", "MASTER={first_address} {first_port}")
    ran = served("run", "--quiet", "--workers", "2", *told, "--", "sh", "-c", 'echo "$PROCESS_ID $MASTER $CLUSTER"')
    assert ran.code == 0, ran.err
    words = sorted(line.partition(" | ")[2].split(" ") for line in ran.lines)
    assert [word[0] for word in words] == ["0", "1"] and words[0][1:] == words[1][1:]
    hosts = json.loads(words[0][3])["worker"]
    assert len(hosts) == 2 and hosts[0] == f"{words[0][1]}:{words[0][2]}"


def test_a_quiet_run_prints_the_jobs_lines_and_nothing_else(served: Shoal) -> None:
    ran = served("run", "--quiet", "--", "echo", "hello")
    assert (ran.code, ran.out, ran.err) == (0, "worker-0 | hello\n", "")


def test_a_run_with_json_prints_one_document(served: Shoal) -> None:
    ran = served("run", "--json", "--", "echo", "hello")
    assert json.loads(ran.out)["state"] == "succeeded" and "worker-0 | hello" in ran.err


def test_a_job_that_reaches_its_limit_gives_124(served: Shoal) -> None:
    assert served("run", "--max-duration", "1s", "--grace", "1s", "--", "sleep", "60").code == 124


def test_a_job_that_is_stopped_gives_130_to_whoever_follows(served: Shoal) -> None:
    running = served.start("run", "--name", "to-stop", "--", "sh", "-c", "echo here; sleep 60")
    assert running.stdout is not None
    assert running.stdout.readline() == "worker-0 | here\n"
    stopped = served("stop", "to-stop", "--grace", "1s", "--message", "enough")
    assert stopped.code == 0 and "to-stop" in stopped.out
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130 and "enough" in out


def test_ctrl_c_off_a_terminal_leaves_the_job_running_and_says_so(served: Shoal) -> None:
    running = served.start("run", "--name", "left-alone", "--", "sh", "-c", "echo here; sleep 60")
    assert running.stdout is not None and running.stdout.readline() == "worker-0 | here\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130 and "left running" in err
    assert state_of(served, "left-alone") == "running"
    assert served("stop", "left-alone", "--force").code == 0


def test_a_job_file_runs_with_flags_over_it(served: Shoal, folder: Path) -> None:
    (folder / "job.yaml").write_text("name: filed\nscript: steps.py\nworkers: 2\ntags: [nightly]\n")
    job = submitted(served, "job.yaml", "--workers", "1", "--tag", "mine")
    wait_for(served, job, "succeeded")
    shown = json.loads(served("show", job, "--json").out)
    assert (shown["name"], shown["workers"], shown["tags"]) == ("filed", 1, ["nightly", "mine"])
    assert shown["events"][0]["kind"] == "queued"


def test_the_job_file_of_a_job_can_be_submitted_again(served: Shoal, folder: Path) -> None:
    first = submitted(served, "steps.py", "--env", "A=1", "--estimate", "5m")
    (folder / "again.yaml").write_text(served("show", first, "--yaml").out)
    second = submitted(served, "again.yaml")
    assert first != second
    # The folder has one file more by now; what is asked for is the same.
    assert set(json.loads(served("diff", first, second, "--json").out)) == {"code"}
    assert served("diff", first, first).err == "no difference\n"


def test_the_same_key_twice_is_one_job(served: Shoal) -> None:
    jobs = {submitted(served, "--key", "tuesday", "--", "true") for _ in range(2)}
    assert len(jobs) == 1


def test_jobs_are_listed_and_filtered(served: Shoal) -> None:
    job = submitted(served, "--name", "find-me", "--tag", "needle", "--", "true")
    wait_for(served, job, "succeeded")
    found = json.loads(served("jobs", "--name", "ind-m", "--tag", "needle", "--state", "succeeded", "--json").out)
    assert [(one["id"], one["name"], one["state"], one["reason"]) for one in found] == [
        (job, "find-me", "succeeded", "completed")
    ]
    plain = served("jobs", "--tag", "needle", "--mine")
    assert plain.lines[0].split()[:4] == ["ID", "NAME", "STATE", "REASON"] and plain.lines[1].split()[0] == job
    assert json.loads(served("jobs", "--limit", "1", "--json").out)[0]["id"] == job
    assert len(json.loads(served("jobs", "--all", "--json").out)) > 1


def test_logs_are_merged_filtered_and_cut(served: Shoal, folder: Path) -> None:
    job = submitted(served, "steps.py", "--workers", "2")
    followed = served("logs", job, "--follow")
    assert len(followed.lines) == 12 and "worker-1 | [rank 1] step 2" in followed.lines
    assert len(served("logs", job, "--tail", "3").lines) == 3
    assert served("logs", job, "--rank", "1", "--grep", "step [02]", "--no-prefix").lines == [
        "[rank 1] step 0",
        "[rank 1] step 2",
    ]
    as_json = [json.loads(line) for line in served("logs", job, "--rank", "worker-0", "--json").lines]
    assert [line["rank"] for line in as_json] == ["worker-0"] * 6 and as_json[0]["at"] > 1e9
    assert served("logs", job, "--since", "1h").lines == served("logs", job).lines
    assert served("logs", job, "--since", "2099-01-01").lines == []


def test_a_reader_that_leaves_early_gets_no_complaint(served: Shoal) -> None:
    job = submitted(served, "--", "seq", "200000")
    wait_for(served, job, "succeeded")
    shell = " ".join([*served.command(["logs", job]), "|", "head", "-1"])
    ran = subprocess.run(shell, shell=True, env=served.environment(None), capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("worker-0 | 1\n", "")


def test_why_and_plan_explain(served: Shoal, folder: Path) -> None:
    job = submitted(served, "steps.py", "--", "3")
    wait_for(served, job, "failed")
    assert "exited with 3" in served("why", job).out
    plan = served("plan", "steps.py", "--workers", "2", "--cpu", "0.5")
    assert "2 processes, 1 CPU" in plan.out and "fit: " in plan.out
    assert json.loads(served("plan", "steps.py", "--json").out)["totals"]["processes"] == 1


@pytest.mark.parametrize(
    ("flag", "value", "said"), [("--cpu", "64", "2 CPUs"), ("--gpu", "9", "GPUs"), ("--memory", "1TiB", "GiB")]
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_more_than_the_machine_has_is_refused_saying_what_exists(
    served: Shoal, folder: Path, command: str, flag: str, value: str, said: str
) -> None:
    ran = served(command, "steps.py", flag, value)
    assert ran.code == 2 and ran.err.startswith("error: ") and said in ran.err, ran.err


def test_keys_that_are_not_served_yet_are_refused_by_name(served: Shoal, folder: Path) -> None:
    ran = served("run", "steps.py", "--engine", "slurm")
    assert ran.code == 2 and "engine" in ran.err and "not served yet" in ran.err


def test_a_strategy_that_the_framework_does_not_have_is_refused_saying_why(served: Shoal, folder: Path) -> None:
    ran = served("run", "steps.py", "--framework", "command", "--strategy", "ps-async")
    assert ran.code == 2 and "command has no strategy 'ps-async'" in ran.err and "take native" in ran.err


def test_a_clone_runs_the_same_code_with_changes(served: Shoal, folder: Path) -> None:
    job = submitted(served, "steps.py", "--name", "original")
    wait_for(served, job, "succeeded")
    (folder / "steps.py").write_text("raise SystemExit('changed since')\n")
    ran = served("clone", "original", "--name", "copy", "--workers", "2", "--follow")
    assert ran.code == 0, ran.out + ran.err
    diff = json.loads(served("diff", "original", "copy", "--json").out)
    assert diff == {"name": {"a": "original", "b": "copy"}, "workers": {"a": None, "b": 2}}


def test_what_a_job_wrote_is_fetched_also_of_a_failed_one(served: Shoal, folder: Path, tmp_path: Path) -> None:
    job = submitted(served, "steps.py", "--name", "leaves-files", "--", "1")
    wait_for(served, job, "failed")
    ran = served("get", "leaves-files", str(tmp_path / "got"))
    assert ran.code == 0, ran.err
    assert (tmp_path / "got" / "out-0.txt").read_text() == "done"
    assert served("get", job, str(tmp_path / "one"), "--path", "out-0.txt").code == 0
    assert (tmp_path / "one" / "out-0.txt").read_text() == "done"


def test_data_goes_up_is_listed_comes_back_and_goes_away(served: Shoal, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("hello")
    assert served("data", "put", str(tmp_path / "set"), "pool://me/set").code == 0
    assert [one["path"] for one in json.loads(served("data", "ls", "pool://me/set", "--json").out)] == ["set/a.txt"]
    assert served("data", "get", "pool://me/set", str(tmp_path / "back")).code == 0
    assert (tmp_path / "back" / "a.txt").read_text() == "hello"
    ran = served("run", "--input", "set=pool://me/set", "--quiet", "--", "sh", "-c", "cat $SHOAL_INPUTS/set/a.txt")
    assert ran.out == "worker-0 | hello\n", ran.err
    assert served("data", "rm", "pool://me/set").out == "1 removed\n"
    assert served("data", "rm", "pool://me/set").code == 1


def test_a_trial_runs_one_process_per_role(served: Shoal, folder: Path) -> None:
    ran = served("try", "steps.py", "--workers", "64", "--cpu", "32")
    assert ran.code == 0, ran.err
    assert all(line.startswith("worker-0 | ") for line in ran.lines[:-1]) and "shoal submit" in ran.err


def test_rm_forgets_ended_jobs_and_only_them(served: Shoal) -> None:
    ended, running = submitted(served, "--", "true"), submitted(served, "--", "sleep", "60")
    wait_for(served, ended, "succeeded")
    ran = served("rm", ended, running, "--yes")
    assert ran.code == 1 and f"{ended}  true  removed" in ran.out and "stop it first" in ran.err
    assert served("show", ended).code == 1
    assert served("stop", running, "--force").code == 0


def test_users_see_only_their_own_jobs(served: Shoal) -> None:
    submitted(served, "--name", "of-the-owner", "--", "true")
    assert served("user", "add", "lin", "--password-stdin", given="correct horse\n").code == 0
    made = served("token", "new", "--user", "lin", "--password-stdin", given="correct horse\n")
    lin = {"SHOAL_TOKEN": made.out.strip()}
    assert json.loads(served("jobs", "--json", env=lin).out) == []
    assert served("show", "of-the-owner", env=lin).code == 1
    assert served("user", "ls", env=lin).code == 1
    wrong = served("token", "new", "--user", "lin", "--password-stdin", given="wrong\n")
    assert wrong.code == 1 and wrong.err.startswith("error: ") and wrong.out == ""
    assert "lin" in served("user", "ls").out
    assert served("user", "rm", "lin", "--yes").code == 0
    assert served("jobs", env=lin).code == 1


def test_expired_foreign_and_revoked_tokens_are_told_apart_from_good_ones(served: Shoal) -> None:
    good = json.loads(served("token", "new", "--label", "laptop", "--json").out)
    short = served("token", "new", "--expires", "1s").out.strip()
    assert served("jobs", env={"SHOAL_TOKEN": good["token"]}).code == 0
    assert good["id"] in served("token", "ls").out
    assert served("token", "revoke", good["id"]).code == 0
    deadline = time.monotonic() + 30
    while (expired := served("jobs", env={"SHOAL_TOKEN": short})).code == 0:
        assert time.monotonic() < deadline
    revoked = served("jobs", env={"SHOAL_TOKEN": good["token"]})
    foreign = served("jobs", env={"SHOAL_TOKEN": "shl_aaaaaaaaaa_" + "b" * 40})
    assert "expired" in expired.err
    for ran in (expired, revoked, foreign):
        assert ran.code == 1 and ran.err.startswith("error: ") and "shoal token new" in ran.err


def test_the_webhook_is_set_shown_tested_and_removed(served: Shoal) -> None:
    made = served("alert", "set", "http://127.0.0.1:9/hook", "--on", "failure", "--json")
    assert json.loads(made.out)["kinds"] == ["failure"] and json.loads(made.out)["secret"]
    assert "secret" not in served("alert", "show").out
    assert served("alert", "test").code == 0
    assert json.loads(served("alert", "log", "--json").out)[0]["kind"] == "test"
    assert served("alert", "rm").code == 0
    assert served("alert", "show").code == 1
    assert served("alert", "set", "ftp://x").code == 2


def test_nodes_and_engines_are_listed(served: Shoal) -> None:
    (node,) = json.loads(served("nodes", "--json").out)
    assert node["cpus"] == 2 and "4.0 GiB" in served("nodes").out
    assert served("engine", "ls").lines[1].split()[:2] == ["local", "yes"]


def test_the_server_says_where_it_is_and_a_second_one_refuses_with_its_address(served: Shoal) -> None:
    status = json.loads(served("server", "status", "--json").out)
    assert {"url", "pid", "version"} <= set(status) and status["answers"]
    second = served("server", "start")
    assert second.code == 1 and status["url"] in second.err


def test_a_server_starts_stops_and_keeps_its_port(shoal: Shoal) -> None:
    assert shoal("server", "status").code == 1
    first = json.loads(shoal("server", "start", "--nodes", "2", "--cpus", "1", "--gpus", "4", "--json").out)
    assert len(json.loads(shoal("nodes", "--json").out)) == 2
    assert shoal("server", "stop").code == 0
    second = json.loads(shoal("server", "start", "--json").out)
    assert first["url"] == second["url"] and first["pid"] != second["pid"]
    assert shoal("server", "stop").code == 0
    assert shoal("server", "stop").out == "no server was running\n"


@pytest.mark.parametrize("flags", [["--cpus", "many"], ["--nodes", "0"], ["--tls-cert", "a.pem"], ["--port", "99999"]])
def test_a_wrong_flag_of_the_server_is_answered_at_once(shoal: Shoal, flags: list[str]) -> None:
    ran = shoal("server", "start", *flags)
    assert ran.code == 2 and ran.err.startswith("error: ") and not (shoal.home / "server.json").exists()


def test_run_starts_the_server_when_none_runs(shoal: Shoal) -> None:
    ran = shoal("run", "--", "echo", "hello")
    try:
        assert ran.code == 0 and "worker-0 | hello" in ran.out and "http://127.0.0.1:" in ran.err
    finally:
        assert shoal("server", "stop").code == 0


def test_stacks_are_printed_with_the_rank_before_each_line_or_as_json(served: Shoal) -> None:
    job = submitted(served, "--", sys.executable, "-uc", "import time; print('up'); time.sleep(600)")
    follower = served.start("logs", job, "--follow")
    assert follower.stdout is not None and "up" in follower.stdout.readline()
    plain = served("stacks", job, "0")
    assert plain.code == 0 and "<module> (<string>:1)" in plain.out, plain.err
    assert all(line.startswith("worker-0 | ") for line in plain.lines)
    told = json.loads(served("stacks", job, "--json").out)
    assert list(told) == ["worker-0"] and "<module> (<string>:1)" in told["worker-0"]
    assert served("stacks", job, "--timeout", "soon").code == 2
    served("stop", job, "--force")
    assert follower.wait(60) == 0
    wait_for(served, job, "stopped")
    ended = served("stacks", job)
    assert ended.code != 0 and "the job is stopped" in ended.err
