"""Lines from a rank to the server: all of them, once, in order, whatever happens to the server in between."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from shoal.contract import Process

from .flock import Flock, python, shell, until

pytestmark = pytest.mark.real
Make = Callable[..., Flock]

COUNTS = "i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep %s; done"


def counted(count: int) -> list[str]:
    return [f"line {number}" for number in range(count)]


def test_a_server_that_goes_away_and_comes_back_misses_nothing(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTS % (100, "0.02")), shell("worker-1", "sleep 0.7; exit 2"))
    shepherd = gang.launch()
    until(lambda: len(gang.server.lines("worker-0")) > 5)
    gang.server.switch_off()
    until(lambda: (gang.folder / "node0.events.jsonl").read_text().count("ended") == 2)
    gang.server.switch_on()
    assert sorted(event["exit_code"] for event in gang.ended(2)) == [0, 2]
    assert gang.leave(shepherd) == 0
    assert gang.server.lines("worker-0") == counted(100)
    assert sorted(gang.server.events) == [1, 2, 3, 4]


def test_a_server_that_flickers_neither_loses_nor_doubles_a_line(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTS % (150, "0.01")))
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("started"))
    for seen in (10, 30, 50):
        until(lambda seen=seen: len(gang.server.lines("worker-0")) > seen)
        gang.server.switch_off()
        gang.server.switch_on()
    gang.ended(seconds=40)
    assert gang.leave(shepherd) == 0
    assert gang.server.lines("worker-0") == counted(150)


def test_answers_that_get_lost_do_not_double_lines(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTS % (60, "0.02")))
    gang.server.lose_answers = 3
    shepherd = gang.launch()
    gang.ended(seconds=40)
    assert gang.leave(shepherd) == 0
    assert gang.server.lose_answers == 0
    assert gang.server.lines("worker-0") == counted(60)


def test_a_server_that_cannot_store_lines_still_hears_of_ends(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo hello; exit 6"))
    gang.server.refuse_logs = True
    shepherd = gang.launch()
    assert gang.ended()[0]["exit_code"] == 6
    gang.server.direct("leave")
    gang.server.refuse_logs = False
    assert shepherd.wait(30) == 0
    assert gang.server.lines("worker-0") == ["hello"]


def test_a_server_that_is_not_there_yet_is_waited_for(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo hello"))
    gang.server.switch_off()
    shepherd = gang.launch()
    until(lambda: "no answer" in gang.journal())
    gang.server.switch_on()
    gang.ended()
    assert gang.leave(shepherd) == 0
    assert gang.server.lines("worker-0") == ["hello"]


def test_answers_that_make_no_sense_are_asked_for_again(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo hello"))
    gang.server.nonsense = {"join", "beat", "launch", "logs", "ranks"}
    shepherd = gang.launch()
    assert gang.ended()[0]["exit_code"] == 0
    assert gang.leave(shepherd) == 0
    assert gang.server.nonsense == set()
    assert gang.server.lines("worker-0") == ["hello"]


def test_a_hundred_megabytes_arrive_whole(flock: Make) -> None:
    lines = 1_000_000
    script = f"import sys; w = sys.stdout.write\nfor n in range({lines}): w(f'{{n:07d}} ' + 'x' * 92 + '\\n')"
    gang = flock(Process("worker-0", [sys.executable, "-c", script], {}), log_limit=1 << 30)
    shepherd = gang.launch()
    gang.ended(seconds=90)
    assert gang.leave(shepherd, 60) == 0
    raw = gang.server.raw("worker-0")
    assert len(raw) == lines * 101
    assert [int(line[:7]) for line in raw.splitlines()] == list(range(lines))


def test_a_flood_while_the_server_is_away_keeps_head_and_tail(flock: Make) -> None:
    limit = 4 << 20
    gang = flock(shell("worker-0", "sleep 0.5; seq 1 2000000"), log_limit=limit)
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("started"))
    gang.server.switch_off()
    until(lambda: "ended" in (gang.folder / "node0.events.jsonl").read_text(), 60)
    kept = sum(path.stat().st_size for path in (gang.folder / "spool" / "worker-0").iterdir())
    assert kept < 1.5 * limit
    gang.server.switch_on()
    assert gang.ended()[0]["exit_code"] == 0
    assert gang.leave(shepherd) == 0
    lines = gang.server.lines("worker-0")
    assert (lines[0], lines[-1]) == ("1", "2000000")
    assert len([line for line in lines if "dropped here" in line]) >= 1
    numbers = [int(line) for line in lines if line.isdigit()]
    assert numbers == sorted(set(numbers))


def test_progress_bars_do_not_explode_the_log(flock: Make) -> None:
    script = """
import sys, time
for n in range(0, 1001):
    sys.stderr.write(f"\\r{n // 10:3d}%|{'#' * (n // 100):10s}| {n}/1000 [00:01<00:02]")
sys.stderr.write("\\n")
print("done")
"""
    gang = flock(python("worker-0", script))
    shepherd = gang.launch()
    gang.ended()
    assert gang.leave(shepherd) == 0
    lines = gang.server.lines("worker-0")
    assert len(lines) == 2
    assert lines[0].startswith("100%|##########| 1000/1000")
    assert gang.server.progress["worker-0"] == {"done": 1000, "total": 1000, "fraction": 1.0}


def test_progress_lines_reach_the_server_and_the_samples(flock: Make) -> None:
    gang = flock(shell("worker-0", "echo progress 3/10 loss=0.25 accuracy=0.97; sleep 1000"))
    gang.launch()
    facts = {"done": 3, "total": 10, "fraction": 0.3, "loss": 0.25, "accuracy": 0.97}
    until(lambda: gang.server.progress.get("worker-0") == facts)
    until(lambda: any(sample.get("progress") == facts for sample in gang.server.samples("worker-0")))
    assert gang.server.lines("worker-0") == ["progress 3/10 loss=0.25 accuracy=0.97"]


def test_every_rank_is_sampled(flock: Make) -> None:
    burn = "import subprocess, sys\nsubprocess.Popen(['sleep', '1000'])\nx = b'x' * 50_000_000\nwhile True: pass"
    gang = flock(python("worker-0", burn), shell("worker-1", "sleep 1000"))
    gang.launch()
    until(lambda: gang.server.samples("worker-0") and gang.server.samples("worker-1"))
    sample = gang.server.samples("worker-0")[0]
    assert sample["processes"] == 2
    assert sample["rss"] > 50_000_000
    assert sample["cpu_seconds"] > 0
    assert {"at", "cpu_percent", "read_bytes", "write_bytes", "net_received", "net_sent"} <= set(sample)
    json.dumps(sample, allow_nan=False)


def test_times_never_go_back_within_a_stream(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTS % (20, "0.005")))
    gang.launch()
    gang.ended()
    times = [at for at, _ in gang.server.frames("worker-0")]
    assert times == sorted(times)
