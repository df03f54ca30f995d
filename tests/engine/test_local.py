import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shoal import contract
from shoal._lib import process
from shoal.contract import Task
from shoal.engine import ENGINES
from shoal.engine import local as local_module
from shoal.engine.api import Gang
from shoal.engine.conformance import EngineContract, MakeEngine, a_gang, look, sweep, until
from shoal.engine.folder import GangFolder
from shoal.engine.local import LocalEngine
from shoal.errors import StartFailed
from shoal.home import Home

pytestmark = pytest.mark.real

BWRAP = (shutil.which("bwrap") or "bwrap").encode()


def shepherds(key: str) -> list[int]:
    return process.marked(contract.GANG, key)


def shepherd(home: Home, key: str, node: str) -> int:
    """The pid of the node's shepherd, once it holds its lock."""
    until(lambda: GangFolder(home.gangs, key).lock(node) == "held")
    task = str(home.gangs / key / f"{node}.json").encode()
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in shepherds(key)}
    (found,) = [pid for pid, line in lines.items() if task in line and not line.startswith(BWRAP)]
    return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(params=[1, 3])
def make_engine(request: pytest.FixtureRequest, home: Home) -> Iterator[MakeEngine]:
    def make() -> LocalEngine:
        return LocalEngine(home, nodes=request.param)

    yield make
    sweep(make())


class TestLocalEngine(EngineContract):
    pass


@pytest.fixture
def engine(home: Home) -> Iterator[LocalEngine]:
    made = LocalEngine(home, nodes=2)
    yield made
    sweep(made)
    made.close()


def test_the_catalogue_has_it() -> None:
    assert ENGINES.load("local") is LocalEngine


def test_starting_twice_leaves_one_shepherd_per_node(engine: LocalEngine, home: Home) -> None:
    gang = a_gang(engine, "a-1")
    engine.start(gang)
    engine.start(gang)
    for node in gang.nodes:
        until(lambda node=node: GangFolder(home.gangs, "a-1").lock(node) == "held")  # type: ignore[misc]
    until(lambda: len(shepherds("a-1")) == 2)


START = """
import sys
from pathlib import Path
from shoal.engine.conformance import a_gang
from shoal.engine.local import LocalEngine
from shoal.home import Home
engine = LocalEngine(Home(Path(sys.argv[1])))
print(engine.start(a_gang(engine, "b-1")))
"""


def test_servers_that_start_the_same_gang_at_once_leave_one_shepherd(home: Home) -> None:
    command = [sys.executable, "-c", START, str(home.root)]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [server.communicate(timeout=60)[0] for server in servers] == [f"local@{home.identity()}\n"] * 3
    engine = LocalEngine(home)
    until(lambda: GangFolder(home.gangs, "b-1").lock("local") == "held")
    until(lambda: len(shepherds("b-1")) == 1)
    assert not look(engine, "b-1", "local").over
    sweep(engine)


def test_a_shepherd_has_a_session_of_its_own_and_none_of_the_servers_environment(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example.com/simple")  # what building environments needs
    engine = LocalEngine(home)
    engine.start(a_gang(engine, "c-1"))
    pid = shepherd(home, "c-1", "local")
    assert os.getsid(pid) == pid
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    names = {line.partition("=")[0] for line in environment if line}
    assert contract.GANG in names
    assert names <= {*contract.INHERITED, contract.GANG, "PIP_INDEX_URL"}
    sweep(engine)


def test_only_the_owner_can_read_the_task(engine: LocalEngine, home: Home) -> None:
    engine.start(a_gang(engine, "d-1"))
    folder = home.gangs / "d-1"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "local-0.json").stat().st_mode) == 0o600
    task = Task.from_json((folder / "local-0.json").read_text())
    assert (task.node, task.folder) == ("local-0", str(folder / "shepherd"))


def test_a_shepherd_that_was_killed_is_gone_on_its_node_alone_and_leaves_no_zombie(
    engine: LocalEngine, home: Home
) -> None:
    handle = engine.start(a_gang(engine, "e-1"))
    pid = shepherd(home, "e-1", "local-1")
    shepherd(home, "e-1", "local-0")
    os.kill(pid, signal.SIGKILL)
    until(lambda: look(engine, "e-1", handle).gone == ("local-1",))
    until(lambda: look(engine, "e-1", handle) is not None and process.stat(pid) is None)


def test_a_dead_shepherd_is_not_started_again_under_the_same_key(engine: LocalEngine, home: Home) -> None:
    gang = a_gang(engine, "f-1")
    handle = engine.start(gang)
    os.kill(shepherd(home, "f-1", "local-0"), signal.SIGKILL)
    until(lambda: look(engine, "f-1", handle).gone == ("local-0",))
    next_server = LocalEngine(home, nodes=2)
    next_server.start(gang)
    assert look(next_server, "f-1", handle).nodes["local-0"] == "unknown"
    until(lambda: look(next_server, "f-1", handle).gone == ("local-0",))
    until(lambda: len(shepherds("f-1")) == 1)  # a second one for the live node leaves when it finds the lock held


def test_kill_ends_what_left_the_group_and_the_session(engine: LocalEngine) -> None:
    handle = engine.start(a_gang(engine, "g-1"))
    stray = subprocess.Popen(["sleep", "600"], env={contract.GANG: "g-1"}, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={contract.GANG: "g-10"}, start_new_session=True)
    try:
        assert engine.kill("g-1", handle)
        assert stray.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None
        assert shepherds("g-1") == []
    finally:
        for left in (stray, other):
            left.kill()
            left.wait()


def test_a_gang_that_starts_only_in_part_is_taken_back_whole(engine: LocalEngine, home: Home) -> None:
    gang = a_gang(engine, "h-1")
    (home.gangs / "h-1" / "local-1.json").mkdir(parents=True)
    with pytest.raises(StartFailed, match="h-1 could not be started"):
        engine.start(gang)
    assert shepherds("h-1") == []
    assert "h-1" not in engine.leftovers()


def test_a_key_that_would_leave_the_folder_is_refused(engine: LocalEngine) -> None:
    for key in ("../x", "a/b", "..", ""):
        with pytest.raises(StartFailed, match="cannot be the key"):
            engine.start(Gang(key, ()))


def test_a_gang_whose_shepherds_leave_by_themselves_is_over_and_can_be_cleaned(engine: LocalEngine) -> None:
    with over_everything() as server:
        handle = engine.start(a_gang(engine, "n-1", server))
        until(lambda: look(engine, "n-1", handle).over)
    assert shepherds("n-1") == []
    assert engine.clean("n-1", handle)


@contextmanager
def over_everything() -> Iterator[str]:
    """A server that says of every gang that it is over."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(410)
            self.send_header("Content-Type", "application/problem+json")
            body = b'{"code": "gang_over"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class StubEngine(LocalEngine):
    """The real engine with a shepherd of a few lines, to see moments the real one is too quick for."""

    script = ""

    def _shepherd(self) -> Path:
        path = self._home.root / "stub.py"
        path.write_text(self.script)
        return path


class NeverLocks(StubEngine):
    script = "import time; time.sleep(600)"


class DiesAtOnce(StubEngine):
    script = "raise SystemExit(3)"


class Drains(StubEngine):
    """Takes the lock and waits; as a drain, says so and waits until it is let go."""

    script = """
import fcntl, os, pathlib, sys, time
task = pathlib.Path(sys.argv[-1])
if "--drain" in sys.argv:
    with open(task.parent / "drained", "a") as file:
        file.write(task.stem + "\\n")
    while not (task.parent / "let-go").exists():
        time.sleep(0.01)
else:
    own = task.parent / "shepherd" / task.name
    lock = os.open(own.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    own.with_suffix(".events.jsonl").write_text("{}\\n")
    time.sleep(600)
"""


def test_a_shepherd_that_has_not_its_lock_yet_is_alive_and_after_the_time_for_starting_gone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NeverLocks(home)
    handle = engine.start(a_gang(engine, "i-1"))
    next_server = NeverLocks(home)
    assert not look(engine, "i-1", handle).over
    assert not look(next_server, "i-1", handle).over
    monkeypatch.setattr(local_module, "STARTING", 0.0)
    assert look(engine, "i-1", handle).over
    assert look(next_server, "i-1", handle).over
    sweep(engine)


def test_a_child_that_died_before_its_lock_is_gone_at_once(home: Home) -> None:
    engine = DiesAtOnce(home)
    handle = engine.start(a_gang(engine, "j-1"))
    until(lambda: look(engine, "j-1", handle).over, seconds=20)
    sweep(engine)


def test_what_a_killed_shepherd_left_is_sent_once_and_only_then_cleaned(home: Home) -> None:
    engine = Drains(home)
    folder = home.gangs / "k-1"
    handle = engine.start(a_gang(engine, "k-1"))
    until(lambda: GangFolder(home.gangs, "k-1").had_ranks("local"))
    assert not engine.kill("k-1", handle)
    until((folder / "drained").exists)
    assert look(engine, "k-1", handle).over
    assert not engine.kill("k-1", handle)
    assert not engine.clean("k-1", handle)
    assert not Drains(home).clean("k-1", handle)
    (folder / "let-go").touch()
    until(lambda: engine.kill("k-1", handle))
    assert (folder / "drained").read_text() == "local\n"
    assert engine.clean("k-1", handle)


def test_sending_what_is_left_does_not_go_on_for_ever(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Drains(home)
    handle = engine.start(a_gang(engine, "o-1"))
    until(lambda: GangFolder(home.gangs, "o-1").had_ranks("local"))
    assert not engine.kill("o-1", handle)
    until((home.gangs / "o-1" / "drained").exists)
    monkeypatch.setattr(local_module, "DRAINING", 0.0)
    until(lambda: engine.kill("o-1", handle))
    assert engine.clean("o-1", handle)


def test_a_shepherd_that_had_sent_everything_is_not_drained(home: Home) -> None:
    engine = Drains(home)
    handle = engine.start(a_gang(engine, "l-1"))
    shepherd(home, "l-1", "local")
    (home.gangs / "l-1" / "shepherd" / "local.done").touch()
    assert engine.kill("l-1", handle)
    assert not (home.gangs / "l-1" / "local.drain").exists()
    assert engine.clean("l-1", handle)


def test_shared_memory_of_a_killed_shepherd_is_removed_but_nothing_else_that_a_note_may_name(
    home: Home, tmp_path: Path
) -> None:
    engine = Drains(home, nodes=2)
    handle = engine.start(a_gang(engine, "m-1"))
    (home.gangs / "m-1" / "let-go").touch()
    shared, foreign = tmp_path / "shoal-m-1-local-0", tmp_path / "precious"
    for number, folder in enumerate((shared, foreign)):
        folder.mkdir()
        (home.gangs / "m-1" / "shepherd" / f"local-{number}.shared").write_text(str(folder))
    until(lambda: engine.kill("m-1", handle))
    until(lambda: engine.clean("m-1", handle))
    assert not shared.exists()
    assert foreign.exists()


def test_starting_needs_no_slow_import() -> None:
    code = "import sys, shoal.engine.local; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert "shoal.engine.local" in loaded
    assert not {"httpx", "sqlalchemy", "fastapi", "pynvml", "asyncio"} & set(loaded)


def test_cleaning_ends_what_a_vanished_shepherd_left_running(engine: LocalEngine, home: Home) -> None:
    """Its gang went on without the node, so nobody killed the gang: a daemon of a rank there is still about."""
    handle = engine.start(a_gang(engine, "p-1"))
    for node in ("local-0", "local-1"):
        os.kill(shepherd(home, "p-1", node), signal.SIGKILL)
    daemon = subprocess.Popen(["sleep", "600"], env={**os.environ, contract.GANG: "p-1"}, start_new_session=True)
    until(lambda: look(engine, "p-1", handle).over)
    until(lambda: engine.clean("p-1", handle))
    assert daemon.wait(10) == -signal.SIGKILL
