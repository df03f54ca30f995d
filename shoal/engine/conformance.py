"""What every engine must keep: a suite to subclass under pytest. A new engine is done when it passes.

    class TestMine(EngineContract):
        @pytest.fixture
        def make_engine(self, tmp_path): ...   # a function; each call gives an engine onto the same place

The gangs it starts belong to a server that never answers: their shepherds only keep knocking, which is all an engine
needs to be seen at work. The fixture is to end and clean what a failed test leaves (`sweep`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.contract import Seat, Task
from shoal.engine.api import Engine, Gang, Liveness

NOBODY = "http://127.0.0.1:9"  # the discard port: refused on any machine that runs no museum
PATIENCE = 60.0  # seconds until a thing that must happen counts as not happening

MakeEngine = Callable[[], Engine]


class EngineContract:
    """The bargains of `api.Engine`, one test each."""

    def test_nodes_are_there_and_stay_the_same(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            nodes = engine.nodes()
            assert nodes
            assert len({node.name for node in nodes}) == len(nodes)
            assert all(node.engine == engine.name and node.cpus > 0 and node.memory > 0 for node in nodes)
            assert engine.nodes() == nodes

    def test_a_started_gang_lives_on_every_node(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "live-1")
            handle = engine.start(gang)
            seen = look(engine, gang.key, handle)
            assert dict(seen.nodes) == dict.fromkeys(gang.nodes, "alive")
            assert not seen.over

    def test_starting_twice_gives_the_same_handle_and_one_kill_ends_it(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "twice-1")
            handle = engine.start(gang)
            assert engine.start(gang) == handle
            assert engine.kill(gang.key, handle)
            assert look(engine, gang.key, handle).over

    def test_a_killed_gang_is_gone_and_killing_it_again_is_harmless(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "kill-1")
            handle = engine.start(gang)
            assert engine.kill(gang.key, handle)
            assert look(engine, gang.key, handle).gone == gang.nodes
            assert engine.kill(gang.key, handle)
            assert look(engine, gang.key, handle).over

    def test_a_killed_gang_is_never_started_again(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "dead-1")
            handle = engine.start(gang)
            assert engine.kill(gang.key, handle)
            assert engine.start(gang) == handle
            assert look(engine, gang.key, handle).over

    def test_a_gang_can_be_killed_without_its_handle(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "lost-1")
            handle = engine.start(gang)
            assert engine.kill(gang.key)
            assert look(engine, gang.key, handle).over

    def test_a_gang_nobody_started_is_gone_and_can_be_killed_and_cleaned(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            assert look(engine, "never-1", "").over
            assert engine.kill("never-1")
            assert engine.clean("never-1")
            assert "never-1" not in engine.leftovers()

    def test_a_living_gang_is_not_cleaned(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "warm-1")
            handle = engine.start(gang)
            assert not engine.clean(gang.key, handle)
            assert not look(engine, gang.key, handle).over

    def test_a_cleaned_gang_is_gone_and_cleaning_it_again_is_harmless(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            gang = a_gang(engine, "clean-1")
            handle = engine.start(gang)
            engine.kill(gang.key, handle)
            until(lambda: engine.clean(gang.key, handle))
            assert engine.clean(gang.key, handle)
            assert look(engine, gang.key, handle).gone == gang.nodes

    def test_leftovers_are_what_was_started_and_not_cleaned(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            one, two = a_gang(engine, "left-1"), a_gang(engine, "left-2")
            handles = {gang.key: engine.start(gang) for gang in (one, two)}
            assert {one.key, two.key} <= set(engine.leftovers())
            engine.kill(one.key, handles[one.key])
            until(lambda: engine.clean(one.key, handles[one.key]))
            assert one.key not in engine.leftovers()
            assert two.key in engine.leftovers()

    def test_one_question_answers_for_every_gang(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as engine:
            handles = {key: engine.start(a_gang(engine, key)) for key in ("many-1", "many-2", "many-3")}
            engine.kill("many-2", handles["many-2"])
            seen = engine.poll({**handles, "many-4": ""})
            assert {key: liveness.over for key, liveness in seen.items()} == {
                "many-1": False,
                "many-2": True,
                "many-3": False,
                "many-4": True,
            }

    def test_gangs_outlive_the_engine_and_the_next_one_takes_them_up(self, make_engine: MakeEngine) -> None:
        with using(make_engine) as first:
            gang = a_gang(first, "stay-1")
            handle = first.start(gang)
            first.close()
            first.close()
        with using(make_engine) as second:
            assert second.leftovers() == (gang.key,)
            assert not look(second, gang.key, handle).over
            assert second.start(gang) == handle
            assert second.kill(gang.key, handle)
            until(lambda: look(second, gang.key, handle).over)  # one that was only just starting leaves by itself


@contextmanager
def using(make_engine: MakeEngine) -> Iterator[Engine]:
    engine = make_engine()
    try:
        yield engine
    finally:
        engine.close()


def a_gang(engine: Engine, key: str, server: str = NOBODY) -> Gang:
    """One shepherd with one worker on every node, for a server that never answers."""
    tasks = tuple(_task(node.name, node.address, key, i, server) for i, node in enumerate(engine.nodes()))
    return Gang(key, tasks, owner="ada")


def look(engine: Engine, key: str, handle: str) -> Liveness:
    return engine.poll({key: handle})[key]


def sweep(engine: Engine) -> None:
    """Ends and cleans everything the engine has."""
    for key in engine.leftovers():
        until(lambda key=key: engine.kill(key))  # type: ignore[misc]
        until(lambda key=key: engine.clean(key))  # type: ignore[misc]


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Asks until it holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"did not come true within {seconds:g} s"
        time.sleep(0.01)


def _task(node: str, address: str, key: str, index: int, server: str) -> Task:
    return Task(
        server=server,
        fingerprint=None,
        key=key,
        secret="0" * 64,
        node=node,
        host=address,
        folder="",
        work="",
        seats=[Seat(f"worker-{index}", "worker", ["main"])],
        log_limit=1 << 20,
    )
