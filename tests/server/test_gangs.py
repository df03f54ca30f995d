"""The shepherds' entrance: secrets, long polls, what is refused. The tests play the shepherds of simulated nodes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.contract import gang_secret
from shoal.control import Bell, Parts, User
from shoal.engine.simulated import SimulatedEngine
from shoal.home import Home
from shoal.job.plan import Served
from shoal.server.app import build_app
from shoal.server.service import Service
from shoal.server.settings import Settings
from shoal.storage.blobs import FolderBlobs
from shoal.storage.chunks import Chunks
from shoal.storage.logs import LogStore
from shoal.store import Store
from tests.control.conftest import log_batch

NODES = 3


class Gang:
    """A running service in this process, one job on it, and its shepherds' side of the wire."""

    def __init__(self, service: Service, client: httpx.AsyncClient, key: str, secret: str) -> None:
        self.service = service
        self.client = client
        self.key = key
        self.secret = secret

    async def post(self, name: str, body: Any = None, secret: str | None = None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Gang {secret or self.secret}"}
        return await self.client.post(f"/api/v1/gangs/{self.key}/{name}", json=body, headers=headers, **more)

    async def get(self, name: str) -> httpx.Response:
        return await self.client.get(
            f"/api/v1/gangs/{self.key}/{name}", headers={"authorization": f"Gang {self.secret}"}
        )

    async def join(self, index: int) -> httpx.Response:
        return await self.post(
            "join",
            {
                "node": f"sim-{index}",
                "address": "127.0.0.1",
                "host": "h",
                "ports": {f"worker-{index}": {"main": 1000 + index}},
                "pid": 1,
                "version": 1,
            },
        )

    async def beat(self, index: int, seen: int = 0, wait: float = 20.0) -> list[dict[str, Any]]:
        answer = await self.post("beat", {"node": f"sim-{index}", "seen": seen, "wait": wait})
        assert answer.status_code == 200, answer.text
        assert answer.json()["beat"] > 0 and answer.json()["wait"] > 0
        return list(answer.json()["directives"])


async def started(tmp_path: Path) -> AsyncIterator[Gang]:
    home = Home(tmp_path / "home")
    home.create()
    engine = SimulatedEngine(nodes=NODES, cpus=1)
    store = Store.open(f"sqlite:///{home.database}")
    parts = Parts(
        store=store,
        chunks=Chunks(FolderBlobs(home.blobs)),
        logs=LogStore(home.logs),
        home=home,
        engines={engine.name: engine},
        default_engine=engine.name,
        url="http://test",
        served=Served(engines=(engine.name,)),
        bell=Bell(),
    )
    service = Service(parts, Settings(), "test")
    await service.start()
    spec = {"command": ["true"], "workers": NODES, "resources": {"cpu": 1}}
    record, _ = service.desk.submit(User("ann"), spec, None, None)
    key = f"{record.id}-1"
    while key not in engine.tasks:
        await asyncio.sleep(0.01)
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Gang(service, client, key, gang_secret(store.server_secret(), key))
    await service.stop()


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Gang], Awaitable[None]]], None]:
    """Runs a scene with a gang that waits for its shepherds."""

    def run(scene: Callable[[Gang], Awaitable[None]]) -> None:
        async def whole() -> None:
            async for gang in started(tmp_path):
                await asyncio.wait_for(scene(gang), 60)

        asyncio.run(whole())

    return run


Play = Callable[[Callable[[Gang], Awaitable[None]]], None]


def test_a_beat_waits_and_every_node_is_told_to_launch_when_the_last_has_joined(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        for index in range(NODES - 1):
            assert (await gang.join(index)).status_code == 200
        waiting = [asyncio.create_task(gang.beat(index)) for index in range(NODES - 1)]
        await asyncio.sleep(0)
        assert (await gang.join(NODES - 1)).status_code == 200
        told = [*(await asyncio.gather(*waiting)), await gang.beat(NODES - 1)]
        assert [[directive["kind"] for directive in each] for each in told] == [["launch"]] * NODES
        launch = (await gang.get("launch?node=sim-1")).json()
        assert [process["name"] for process in launch["processes"]] == ["worker-1"]
        roster = await gang.get("roster")
        assert roster.headers["content-encoding"] == "gzip"
        assert len(roster.json()["members"]) == NODES

    play(scene)


def test_a_beat_without_news_comes_back_empty_after_its_wait(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        await gang.join(0)
        assert await gang.beat(0, wait=0) == []
        assert await gang.beat(0, wait=0.05) == []

    play(scene)


def test_a_stop_wakes_the_waiting_beats(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        for index in range(NODES):
            await gang.join(index)
        seen = (await gang.beat(1))[-1]["seq"]
        waiting = asyncio.create_task(gang.beat(1, seen=seen))
        await asyncio.sleep(0)
        job = gang.key.rpartition("-")[0]
        await gang.service.call(gang.service.desk.stop, User("ann"), job, 1.0, "")
        kinds = [directive["kind"] for directive in await waiting]
        assert "stop" in kinds

    play(scene)


def test_stopping_the_server_ends_waiting_beats_with_nothing(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        await gang.join(0)
        waiting = asyncio.create_task(gang.beat(0))
        await asyncio.sleep(0.1)
        gang.service.end_streams()
        assert await waiting == []
        assert await gang.beat(0) == []  # nor does a new one wait

    play(scene)


def test_a_beat_that_brings_nothing_new_asks_the_database_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(gang: Gang) -> None:
        for index in range(NODES):
            await gang.join(index)
        seen = (await gang.beat(2))[-1]["seq"]
        await gang.beat(2, seen=seen, wait=0)

        def refuse(*_: Any) -> list[Any]:
            raise AssertionError("asked the database")

        monkeypatch.setattr(gang.service.store, "directives", refuse)
        assert await gang.beat(2, seen=seen, wait=0) == []

    play(scene)


def test_logs_arrive_and_a_gap_answers_where_to_go_on(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        await gang.join(0)
        headers = {"authorization": f"Gang {gang.secret}"}
        path = f"/api/v1/gangs/{gang.key}/logs"
        answer = await gang.client.post(path, content=log_batch("worker-0", 0, b"one\n"), headers=headers)
        end = answer.json()["offsets"]["worker-0"]
        answer = await gang.client.post(path, content=log_batch("worker-0", end + 7, b"three\n"), headers=headers)
        assert (answer.status_code, answer.json()["offsets"]) == (200, {"worker-0": end})
        job = gang.key.rpartition("-")[0]
        lines = [text for batch in gang.service.parts.logs.read_lines(job) for _, _, text in batch.lines]
        assert lines == ["one"]
        answer = await gang.client.post(path, content=b"\0\1garbage", headers=headers)
        assert answer.status_code == 400

    play(scene)


def test_a_wrong_secret_is_401_and_an_unknown_gang_is_over(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        for name in ("join", "beat", "ranks", "logs", "done"):
            assert (await gang.post(name, {"node": "sim-0"}, secret="0" * 64)).status_code == 401
        assert (await gang.client.get(f"/api/v1/gangs/{gang.key}/code")).status_code == 401
        gang.key = "nosuchjob0-1"
        gang.secret = gang_secret(gang.service.store.server_secret(), gang.key)
        answer = await gang.post("beat", {"node": "sim-0"})
        assert (answer.status_code, answer.json()["code"]) == (410, "gang_over")

    play(scene)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("beat", {}),
        ("beat", {"node": 3}),
        ("beat", {"node": "sim-0", "seen": -1}),
        ("beat", {"node": "sim-0", "wait": "long"}),
        ("beat", ["node"]),
        ("join", {"node": "sim-0"}),
        ("ranks", {"node": "sim-0"}),
        ("done", {}),
    ],
)
def test_what_a_shepherd_cannot_mean_is_a_bad_request(play: Play, name: str, body: Any) -> None:
    async def scene(gang: Gang) -> None:
        answer = await gang.post(name, body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")

    play(scene)


def test_an_unknown_route_of_a_gang_is_404(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        assert (await gang.get("nothing")).status_code == 404
        assert (await gang.post("roster")).status_code == 404
        assert (await gang.get("inputs/none")).status_code == 404

    play(scene)


def test_the_code_is_a_tar_stream(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        answer = await gang.get("code")
        assert answer.headers["content-type"] == "application/x-tar"

    play(scene)


def test_a_roster_is_json_once_unpacked(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        for index in range(NODES):
            await gang.join(index)
        packed = await gang.service.call(gang.service.gangs.roster, gang.key)
        assert json.loads(gzip.decompress(packed))["key"] == gang.key

    play(scene)


def test_a_node_tells_what_its_ranks_run_in_and_nonsense_is_refused(play: Play) -> None:
    async def scene(gang: Gang) -> None:
        await gang.join(0)
        record = {"host": {"host": "h"}, "packages": {"torch": "2.13.0"}}
        for _ in range(2):
            assert (await gang.post("record", {"node": "sim-0", "record": record})).status_code == 200
        for wrong in ({"record": record}, {"node": "sim-0"}, {"node": "sim-0", "record": {"packages": [1]}}):
            assert (await gang.post("record", wrong)).status_code == 400
        refused = await gang.post("record", {"node": "sim-0", "record": record}, secret="wrong")
        assert refused.status_code == 401
        whole = gang.service.desk.show_whole(User("ann"), gang.key.rpartition("-")[0])
        assert whole["attempts"][-1]["record"]["packages"] == {"torch": "2.13.0"}

    play(scene)
