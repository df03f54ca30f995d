"""The engine's bargains hold, whatever is put around its shepherds; and what it gives to a job, and what not."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.contract import Process, Seat
from shoal.engine.apart import Apart, _give
from shoal.engine.conformance import EngineContract, MakeEngine, a_gang, look, sweep, until
from shoal.engine.folder import GangFolder
from shoal.engine.isolation import Around, Rules
from shoal.engine.local import LocalEngine
from shoal.engine.persons import Person
from shoal.errors import BadConfig, StartFailed
from shoal.home import Home
from tests.shepherd.gang_server import SECRET, GangServer
from tests.support.modes import MODES, python_of_all, reachable_folder

pytestmark = pytest.mark.real


@pytest.fixture
def home() -> Iterator[Home]:
    with reachable_folder() as folder:
        yield Home(folder / "home")


@pytest.fixture(params=MODES)
def make_engine(request: pytest.FixtureRequest, home: Home) -> Iterator[MakeEngine]:
    def make() -> LocalEngine:
        return LocalEngine(home, nodes=2, apart=Apart(home, Rules(mode=request.param)))

    yield make
    sweep(make())


class TestLocalEngineApart(EngineContract):
    def test_every_shepherd_comes_to_its_lock(self, make_engine: MakeEngine, home: Home) -> None:
        """To be alive is not enough: one that cannot read its task is alive for a moment too."""
        engine = make_engine()
        gang = a_gang(engine, "lock-1")
        engine.start(gang)
        for node in gang.nodes:
            until(lambda node=node: GangFolder(home.gangs, gang.key).lock(node) == "held")  # type: ignore[misc]


WAITING = """
import time
def waiting_for_the_moon():
    print("ready", flush=True)
    time.sleep(600)
waiting_for_the_moon()
"""


@pytest.mark.parametrize("mode", MODES)
def test_the_stacks_of_a_rank_can_be_shown(mode: str, home: Home) -> None:
    home.create()
    tools = home.root.parent / "tools"
    tools.mkdir(mode=0o755)
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, "py-spy is needed: pip install py-spy"
    shutil.copy(program, tools)
    rank = Process("worker-0", [python_of_all(), "-c", WAITING], {"PATH": f"{tools}:/usr/bin:/bin"})
    engine = LocalEngine(home, apart=Apart(home, Rules(mode=mode, visible=(str(tools),))))  # type: ignore[arg-type]
    server = GangServer("stacks-1", [rank])
    gang = a_gang(engine, "stacks-1", server.url)
    task = replace(gang.tasks[0], secret=SECRET, work=str(home.work / "stacks"), seats=[Seat("worker-0", "worker")])
    try:
        server.direct("launch", roster=1)
        engine.start(replace(gang, tasks=(task,)))
        until(lambda: server.lines("worker-0") == ["ready"])
        server.direct("stacks")
        until(lambda: any("waiting_for_the_moon" in line for line in server.lines("worker-0")))
    finally:
        server.over = True
        sweep(engine)
        server.switch_off()


@pytest.mark.parametrize("mode", MODES)
def test_secrets_of_the_home_stay_the_servers(mode: str, home: Home) -> None:
    home.create()
    home.config_file.write_text("")
    engine = LocalEngine(home, apart=Apart(home, Rules(mode=mode)))  # type: ignore[arg-type]
    engine.start(a_gang(engine, "modes-1"))
    try:
        assert [path.name for path in home.root.iterdir() if _others_read(path)] == ["public"]
        for folder in (home.root, home.gangs, home.work, home.people, home.gangs / "modes-1"):
            assert not stat.S_IMODE(folder.stat().st_mode) & 0o066, folder
        assert not stat.S_IMODE((home.gangs / "modes-1" / "local.json").stat().st_mode) & 0o077
        assert not stat.S_IMODE((home.gangs / "modes-1" / "shepherd").stat().st_mode) & 0o077
    finally:
        sweep(engine)


def _others_read(path: Path) -> bool:
    mode = stat.S_IMODE(path.stat().st_mode)
    # What lies in the home of bubblewrap's is out of reach: the home itself is closed.
    return bool(mode & 0o044) and bool(path.parent.stat().st_mode & 0o001 or path.is_dir())


@pytest.mark.parametrize("mode", MODES)
def test_a_gang_whose_owner_is_no_name_is_refused_whole(mode: str, home: Home) -> None:
    engine = LocalEngine(home, apart=Apart(home, Rules(mode=mode)))  # type: ignore[arg-type]
    for owner in ("../root", "..", "a/b", ""):
        with pytest.raises(StartFailed, match="cannot be the owner"):
            engine.start(replace(a_gang(engine, "who-1"), owner=owner))
    assert engine.leftovers() == ()


def test_an_interpreter_in_a_folder_that_jobs_write_is_not_shown(home: Home) -> None:
    """Its owner could make it a link to someone else's folder at the right moment."""
    home.create()
    apart = Apart(home, Rules(mode="bubblewrap"))
    engine = LocalEngine(home)
    safe, trap = home.root.parent / "venv", home.work / "another" / "venv"
    for folder in (safe, trap):
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").touch()
        (folder / "bin" / "python").touch()
    (home.root.parent / "link").symlink_to(trap)
    programs = tuple(str(path / "bin" / "python") for path in (safe, trap, home.root.parent / "link"))
    gang = replace(a_gang(engine, "shown-1"), programs=programs)
    folder = GangFolder(home.gangs, "shown-1")
    folder.create("local")
    folder.write_task(gang.tasks[0])
    shown = apart.surround(folder, gang.tasks[0], gang).prefix
    assert str(safe) in shown
    assert not {str(trap), str(home.root.parent / "link")} & set(shown)


def test_nothing_may_show_the_whole_home(home: Home) -> None:
    home.create()
    with pytest.raises(BadConfig, match="holds SHOAL_HOME"):
        Apart(home, Rules(mode="bubblewrap", visible=(str(home.root.parent),))).check()


def test_nobody_runs_in_place_above_what_is_hidden(home: Home) -> None:
    engine = LocalEngine(home, apart=Apart(home, Rules(mode="bubblewrap")))
    gang = a_gang(engine, "wide-1")
    wide = replace(gang, tasks=tuple(replace(task, work="/") for task in gang.tasks))
    with pytest.raises(StartFailed, match="holds what sandboxes hide"):
        engine.start(wide)
    assert engine.leftovers() == ()


def test_links_and_pipes_in_the_shepherds_folder_lead_the_engine_nowhere(home: Home) -> None:
    home.create()
    folder = GangFolder(home.gangs, "trap-1")
    folder.create("local")
    precious = home.root.parent / "shoal-trap-1-other"
    precious.mkdir()
    (folder.own / "local.shared").write_text(f"{folder.own}/../../../../shoal-trap-1-other")
    folder.remove_shared("local")
    (folder.own / "other.shared").symlink_to(home.root / "note")
    (home.root / "note").write_text(str(precious))
    folder.remove_shared("other")
    assert precious.exists()
    os.mkfifo(folder.own / "local.lock")
    assert folder.lock("local") == "free"
    (folder.own / "other.lock").symlink_to("/etc/passwd")
    with pytest.raises(OSError):
        folder.lock("other")
    engine = LocalEngine(home)
    assert look(engine, "trap-1", f"other@{home.identity()}").nodes == {"other": "unknown"}


def test_what_was_around_a_shepherd_is_kept_for_whoever_sends_its_rest(home: Home) -> None:
    home.create()
    folder = GangFolder(home.gangs, "kept-1")
    folder.create("local")
    around = Around(("bwrap", "--"), 70001, 70002, "/usr/bin/python3", {"HOME": "/x"})
    folder.write_around("local", around)
    assert folder.around("local") == around
    assert folder.around("other") == Around()


def test_a_folder_changes_hands_with_all_in_it_but_for_files_that_have_a_second_name(tmp_path: Path) -> None:
    """Without root nothing can be given away: then it is one's own before and after."""
    mine = os.geteuid()
    heir = mine or 70001
    folder, foreign = tmp_path / "work", tmp_path / "foreign"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    foreign.touch()
    (folder / "trap").hardlink_to(foreign)
    (folder / "link").symlink_to(foreign)
    _give(folder, Person(heir, heir if mine == 0 else os.getegid(), "ada"))
    owners = {path.name: path.lstat().st_uid for path in (folder, *folder.rglob("*"))}
    assert owners == {"work": heir, "deep": heir, "file": heir, "link": heir, "trap": mine}
    assert foreign.stat().st_uid == mine
