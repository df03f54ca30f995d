"""The shepherd from join to leave, as a real process with real ranks against a real HTTP server."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal._lib import process
from shoal.contract import MEMBER, Process, Roster

from .flock import Flock, python, shell, until

pytestmark = pytest.mark.real
Make = Callable[..., Flock]


def test_a_gang_joins_runs_reports_and_leaves(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo hello; echo oops >&2"), shell("worker-1", "exit 3"))
    shepherd = gang.launch()
    ended = {event["member"]: event for event in gang.ended(2)}
    assert gang.leave(shepherd) == 0
    assert [event["member"] for event in gang.server.kinds("started")] == ["worker-0", "worker-1"]
    assert (ended["worker-0"]["exit_code"], ended["worker-0"]["signal"]) == (0, None)
    assert ended["worker-1"]["exit_code"] == 3
    assert gang.server.lines("worker-0") == ["hello", "oops"]
    assert ended["worker-0"]["tail"] == "hello\noops\n"
    assert gang.server.done == ["node0"]
    assert (gang.folder / "node0.done").exists()
    assert gang.journal() == ""


def test_last_words_are_at_the_server_before_the_end_is_told(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo last words"))
    gang.launch()
    gang.ended()
    assert gang.server.lines("worker-0") == ["last words"]


def test_ports_are_free_announced_and_the_ranks_to_bind(flock: Make) -> None:
    bind = "import os, socket; s = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))"
    gang = flock(python("worker-0", bind), ports=["master"])
    shepherd = gang.start()
    until(lambda: gang.server.joins)
    port = gang.server.joins[0]["ports"]["worker-0"]["master"]
    with pytest.raises(OSError), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    gang.server.processes[0] = python("worker-0", bind, env={"PORT": str(port)})
    gang.server.direct("launch", roster=1)
    assert gang.ended()[0]["exit_code"] == 0, gang.server.lines("worker-0")
    assert gang.leave(shepherd) == 0


def test_a_rank_has_the_declared_environment_and_little_else(flock: Make) -> None:
    paths = {"R": "@roster", "S": "@shared", "I": "@inputs", "O": "@outputs", "W": "@work", "PLAIN": "@else"}
    script = (
        "import os, json; mode = oct(os.stat(os.environ['S']).st_mode);"
        "print(json.dumps(dict(os.environ, CWD=os.getcwd(), SHM=mode)))"
    )
    gang = flock(python("worker-0", script, env=paths))
    shepherd = gang.launch()
    gang.ended()
    env = json.loads(gang.server.lines("worker-0")[0])
    assert Roster.from_json(Path(env["R"]).read_text()).find("worker-0").index == 0
    assert (env["W"], env["CWD"], env["PLAIN"]) == (str(gang.work), str(gang.work), "@else")
    assert (env["O"], env["I"]) == (str(gang.work / "outputs"), str(gang.folder / "inputs"))
    assert env["SHM"].endswith("700")
    own = {"SHOAL_GANG": gang.key, "SHOAL_MEMBER": "worker-0", "SHOAL_START": "0"}
    assert own.items() <= env.items()
    assert set(env) <= {*paths, *own, "CWD", "SHM", "PATH", "HOME", "LANG", "PWD", "LC_CTYPE", "_"}
    assert Path(env["S"]).is_dir()
    assert gang.leave(shepherd) == 0
    assert not Path(env["S"]).exists()


def test_code_and_inputs_arrive_once(flock: Make) -> None:
    gang = flock(
        shell("worker-0", "cat train.py; cat $IN/digits/data.csv; ls -l run.sh; touch made-here", env={"IN": "@inputs"})
    )
    gang.server.code = tar({"train.py": b"print(1)\n", "run.sh": b"x"}, mode=0o755)
    gang.server.inputs = {"digits": tar({"data.csv": b"1,2\n" * 20_000})}
    shepherd = gang.launch()
    gang.ended()
    assert gang.leave(shepherd) == 0
    lines = gang.server.lines("worker-0")
    assert (lines[0], lines[1], len(lines)) == ("print(1)", "1,2", 20_002)
    assert lines[-1].startswith("-rwx")
    assert (gang.work.parent / ".job.complete").read_text() == "whole\n"
    assert (gang.work / "made-here").exists()
    assert sorted(path.name for path in gang.work.iterdir()) == ["made-here", "run.sh", "train.py"]


def test_code_that_is_already_there_is_not_fetched_again(flock: Make) -> None:
    gang = flock(shell("worker-0", "cat mine.txt"))
    gang.server.code = tar({"train.py": b""})
    gang.work.mkdir(parents=True)
    (gang.work / "mine.txt").write_text("from the first attempt\n")
    (gang.work.parent / ".job.complete").write_text("whole\n")
    gang.launch()
    gang.ended()
    assert gang.server.lines("worker-0") == ["from the first attempt"]
    assert "code" not in gang.server.requests


def test_code_that_leads_out_of_the_folder_starts_nothing(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo never"))
    gang.server.code = tar({"../evil": b""})
    gang.launch()
    until(lambda: gang.server.kinds("failed_start"))
    assert "leads out of the folder" in gang.server.kinds("failed_start")[0]["message"]
    assert not (gang.work.parent / "evil").exists()


def test_an_input_that_is_no_more_fails_the_start_and_is_named(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo never"))
    gang.server.inputs = {"digits": None}
    gang.launch()
    until(lambda: gang.server.kinds("failed_start"))
    assert gang.server.kinds("failed_start")[0]["message"] == "input digits cannot be had: pool://me/x holds nothing"


def test_a_program_that_does_not_exist_is_told_by_name(flock: Make) -> None:
    gang = flock(Process("worker-0", ["no-such-program"], {}), Process("worker-1", ["/bin/no-such"], {}))
    shepherd = gang.launch()
    until(lambda: len(gang.server.kinds("failed_start")) == 2)
    first, second = gang.server.kinds("failed_start")
    assert "no-such-program" in first["message"] and "PATH" in first["message"]
    assert "/bin/no-such cannot be started: No such file" in second["message"]
    assert gang.leave(shepherd) == 0


def test_a_killed_rank_is_told_with_its_signal(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo $$; kill -SEGV $$"))
    gang.launch()
    ended = gang.ended()[0]
    assert (ended["signal"], ended["exit_code"], ended["oom"]) == (signal.SIGSEGV, None, False)


def test_daemons_that_leave_session_and_group_are_ended_with_their_rank(flock: Make) -> None:
    daemon = "trap '' TERM; while :; do sleep 0.1; done"
    gang = flock(shell("worker-0", f'setsid sh -c "{daemon}" & (setsid nohup sh -c "{daemon}" &) ; sleep 0.3; exit 5'))
    shepherd = gang.launch()
    assert gang.ended()[0]["exit_code"] == 5
    assert gang.alive() == []
    assert gang.leave(shepherd) == 0


def test_a_daemon_that_hides_its_mark_is_ended_too(flock: Make) -> None:
    gang = flock(shell("worker-0", "(setsid env -i /bin/sleep 987.125 &) ; sleep 0.3"))
    shepherd = gang.launch()
    gang.ended()
    assert gang.leave(shepherd) == 0
    assert not [pid for pid in process.pids() if b"987.125" in cmdline(pid)]


def test_children_of_a_rank_end_with_it_though_another_rank_lives_on(flock: Make) -> None:
    gang = flock(shell("worker-0", "sleep 1000 & sleep 1000 & exit 0"), shell("worker-1", "sleep 1000"))
    gang.launch()
    gang.ended()
    left = [process.mark(pid, MEMBER) for pid in gang.alive()]
    assert "worker-0" not in left
    assert "worker-1" in left


def test_stop_lets_a_rank_end_in_its_own_way(flock: Make) -> None:
    gang = flock(shell("worker-0", "trap 'echo saving; exit 7' TERM; echo ready; while :; do sleep 0.05; done"))
    shepherd = gang.launch()
    until(lambda: gang.server.lines("worker-0") == ["ready"])
    gang.server.direct("stop", grace=30)
    assert gang.ended()[0]["exit_code"] == 7
    assert gang.server.lines("worker-0")[-1] == "saving"
    assert gang.leave(shepherd) == 0


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(flock: Make) -> None:
    gang = flock(shell("worker-0", "trap '' TERM; echo ready; while :; do sleep 0.05; done"))
    gang.launch()
    until(lambda: gang.server.lines("worker-0") == ["ready"])
    gang.server.direct("stop", grace=0.3)
    assert gang.ended()[0]["signal"] == signal.SIGKILL
    assert gang.alive() == []


def test_a_stopped_rank_hears_sigterm(flock: Make) -> None:
    gang = flock(shell("worker-0", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"))
    gang.launch()
    until(lambda: gang.server.lines("worker-0") == ["ready"] and gang.server.kinds("started"))
    os.killpg(gang.server.kinds("started")[0]["pid"], signal.SIGSTOP)
    gang.server.direct("stop", grace=30)
    assert gang.ended()[0]["exit_code"] == 9


def test_kill_ends_everything_at_once(flock: Make) -> None:
    gang = flock(python("worker-0", SPAWNS_STUBBORN), python("worker-1", SPAWNS_STUBBORN))
    shepherd = gang.launch()
    until(lambda: len(gang.server.lines("worker-0")) == 1 and len(gang.server.lines("worker-1")) == 1)
    gang.server.direct("kill")
    assert {event["signal"] for event in gang.ended(2)} == {signal.SIGKILL}
    assert gang.alive() == []
    assert gang.leave(shepherd) == 0


def test_a_stop_before_launch_means_nothing_is_started(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo never"))
    gang.server.direct("stop", grace=5)
    gang.server.direct("launch", roster=1)
    gang.server.direct("leave")
    assert gang.start().wait(20) == 0
    assert gang.server.events == {}
    assert gang.server.done == ["node0"]


def test_a_restarted_rank_has_the_next_number_and_the_new_roster(flock: Make) -> None:
    gang = flock(
        shell("worker-0", "grep -o '\"version\": [0-9]*' $R; echo $SHOAL_START; exit 1", env={"R": "@roster"}),
        shell("server-0", "sleep 1000"),
    )
    gang.launch()
    gang.ended()
    gang.server.roster_version = 2
    gang.server.direct("restart", member="worker-0", roster=2)
    assert [event["incarnation"] for event in gang.ended(2)] == [0, 1]
    assert gang.server.lines("worker-0") == ['"version": 1', "0", '"version": 2', "1"]
    assert process.alive(next(e["pid"] for e in gang.server.kinds("started") if e["member"] == "server-0"))


def test_a_new_roster_is_written_while_ranks_run(flock: Make) -> None:
    gang = flock(shell("worker-0", "sleep 1000"))
    gang.launch()
    until(lambda: gang.server.kinds("started"))
    gang.server.roster_version = 7
    gang.server.direct("roster", version=7)
    until(lambda: json.loads((gang.folder / "node0.roster.json").read_text())["version"] == 7)


def test_stacks_without_py_spy_say_what_to_install(flock: Make) -> None:
    gang = flock(shell("worker-0", "exec /bin/sleep 1000", env={"PATH": "/nowhere"}))
    gang.launch()
    until(lambda: gang.server.kinds("started"))
    gang.server.direct("stacks")
    until(lambda: any("pip install py-spy" in line for line in gang.server.lines("worker-0")))


def test_stacks_are_written_for_those_that_are_named_and_end_with_the_mark(flock: Make) -> None:
    sleeping = "exec /bin/sleep 1000"
    gang = flock(*(shell(f"worker-{n}", sleeping, env={"PATH": "/nowhere"}) for n in range(2)))
    gang.launch()
    until(lambda: len(gang.server.kinds("started")) == 2)
    gang.server.direct("stacks", ranks=["worker-1"], mark="7f3k")
    until(lambda: gang.server.lines("worker-1")[-1:] == ["[stacks of worker-1] end of 7f3k"])
    assert gang.server.lines("worker-0") == []


def test_sigterm_to_the_shepherd_stops_the_ranks_and_still_reports(flock: Make) -> None:
    gang = flock(shell("worker-0", "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.05; done"))
    shepherd = gang.launch()
    until(lambda: gang.server.lines("worker-0") == ["ready"])
    shepherd.send_signal(signal.SIGTERM)
    assert gang.ended()[0]["exit_code"] == 4
    assert gang.leave(shepherd) == 0
    assert gang.server.lines("worker-0")[-1] == "bye"


def test_a_shepherd_told_to_end_before_the_launch_says_that_it_cannot_start(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo never"))
    shepherd = gang.start()
    until(lambda: gang.server.joins)
    shepherd.send_signal(signal.SIGTERM)
    gang.server.direct("launch", roster=1)
    until(lambda: gang.server.kinds("failed_start"))
    assert "SIGTERM" in gang.server.kinds("failed_start")[0]["message"]
    assert gang.leave(shepherd) == 0


def test_a_gang_that_is_over_ends_its_shepherd_and_its_ranks(flock: Make) -> None:
    gang = flock(shell("worker-0", "trap '' TERM; sleep 1000"))
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("started"))
    gang.server.over = True
    gang.server.direct("roster", version=1)
    assert shepherd.wait(20) == 0
    assert gang.alive() == []


def test_a_second_shepherd_of_the_same_task_leaves_at_once(flock: Make) -> None:
    gang = flock(shell("worker-0", "sleep 1000"))
    gang.launch()
    until(lambda: gang.server.kinds("started"))
    assert gang.start().wait(20) == 0
    assert len(gang.server.joins) == 1
    assert len(gang.server.kinds("started")) == 1


def test_a_task_that_is_done_is_not_started_again(flock: Make) -> None:
    gang = flock(shell("worker-0", "true"))
    (gang.folder / "node0.done").touch()
    assert gang.start().wait(20) == 0
    assert gang.server.joins == []


def test_a_look_at_the_lock_does_not_turn_a_starting_shepherd_away(flock: Make) -> None:
    gang = flock(shell("worker-0", "true"))
    peek = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(0.2)"
    other = subprocess.Popen([sys.executable, "-c", peek, gang.folder / "node0.lock"], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    shepherd = gang.launch()
    gang.ended()
    assert gang.leave(shepherd) == 0
    other.communicate()


def test_a_thread_that_fails_ends_the_shepherd_with_its_ranks_and_says_why(flock: Make) -> None:
    gang = flock(shell("worker-0", "sleep 1000"))
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("started"))
    gang.server.direct("restart", roster=1)  # without the member it must have
    assert shepherd.wait(20) == 70
    assert "Traceback" in gang.journal()
    until(lambda: gang.alive() == [])


SPAWNS_STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
print("ready")
time.sleep(1000)
"""


def tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
