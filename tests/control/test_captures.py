"""What is kept of a run besides its life: the submitter's word, the nodes' words, and what they were given."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from shoal.control import goods
from shoal.control.describe import describe_whole
from shoal.errors import BadRequest, NotFound
from shoal.job.life import JobRecord
from shoal.job.origin import Origin
from tests.control.conftest import ANN, World

GIT = {"commit": "c" * 40, "branch": "main", "dirty": True, "changed": ["a.py"], "diff": "-a\n+b\n"}


def shown(world: World, job: JobRecord) -> dict[str, Any]:
    return describe_whole(world.parts.store, world.job(job))


def sent(world: World, origin: dict[str, Any], **keys: Any) -> JobRecord:
    raw = {"command": ["true"], **keys}
    return world.desk.submit(ANN, raw, None, None, Origin.model_validate(origin))[0]


def put(world: World, path: str, content: bytes) -> None:
    digest = sha256(content).hexdigest()
    world.parts.chunks.put("ann", digest, content)
    entry = {"path": path, "size": len(content), "chunks": [digest]}
    world.parts.store.put_files("ann", [entry], 1.0)


def running(world: World, **keys: Any) -> JobRecord:
    job = world.submit(**keys)
    world.round()
    world.join_all(world.job(job).key)
    return world.job(job)


def test_the_submitters_word_is_kept_and_shown_with_the_diff_apart(world: World) -> None:
    job = sent(world, {"host": "laptop", "user": "ann", "git": GIT})
    origin = shown(world, job)["origin"]
    assert origin["host"] == "laptop" and origin["git"]["commit"] == "c" * 40 and "diff" not in origin["git"]
    assert world.desk.diff(ANN, job.id) == "-a\n+b\n"


def test_a_job_without_a_repository_has_no_diff(world: World) -> None:
    with pytest.raises(NotFound, match="not sent from a git repository"):
        world.desk.diff(ANN, sent(world, {"host": "laptop"}).id)


def test_where_a_job_comes_from_is_no_part_of_what_it_is(world: World) -> None:
    one, other = sent(world, {"host": "a", "git": GIT}), sent(world, {"host": "b"})
    assert one.spec == other.spec
    first, again = sent(world, {"host": "a"}, key="k"), sent(world, {"host": "b"}, key="k")
    assert first.id == again.id and shown(world, first)["origin"]["host"] == "a"


def test_a_clone_has_the_repository_of_its_original(world: World) -> None:
    original = sent(world, {"host": "laptop", "git": GIT})
    clone = sent(world, {"host": "desk", "clone_of": original.id})
    assert shown(world, clone)["origin"]["git"]["commit"] == "c" * 40
    assert shown(world, clone)["origin"]["host"] == "desk" and world.desk.diff(ANN, clone.id) == "-a\n+b\n"


def test_a_clone_of_a_removed_or_foreign_job_is_still_a_job(world: World) -> None:
    clone = sent(world, {"host": "desk", "clone_of": "nobody00"})
    assert "git" not in shown(world, clone)["origin"]


def test_what_nodes_say_is_the_record_of_their_attempt(world: World) -> None:
    job = running(world)
    world.gangs.record(job.key, "sim-0", {"host": {"host": "h"}, "packages": {"torch": "2.13.0"}})
    attempt = shown(world, job)["attempts"][-1]
    assert attempt["record"]["packages"] == {"torch": "2.13.0"} and attempt["record"]["frameworks"] == {
        "torch": "2.13.0"
    }
    assert attempt["record"]["nodes"] == {"sim-0": {"host": "h"}}


def test_nodes_on_which_the_same_is_installed_keep_it_once(make_world: Any) -> None:
    world = make_world(nodes=3, cpus=1)
    job = running(world, workers=3, resources={"cpu": 1})
    same = {"packages": {"torch": "2.13.0"}, "cuda": "13.0"}
    for node, said in (("sim-0", same), ("sim-1", same), ("sim-2", {"packages": {"torch": "2.12.0"}})):
        world.gangs.record(job.key, node, {"host": {"host": node}, **said})
    kept = world.parts.store.records(job.id)[job.key]
    assert kept["sim-1"] == {"host": {"host": "sim-1"}, "like": "sim-0"}
    record = shown(world, job)["attempts"][-1]["record"]
    assert record["packages"] == {"torch": "2.13.0"} and record["frameworks"] == {"torch": "2.13.0", "cuda": "13.0"}
    assert record["nodes"]["sim-1"] == {"host": "sim-1"}
    assert record["nodes"]["sim-2"]["packages"] == {"torch": "2.12.0"}


def test_words_that_the_submitter_hid_are_hidden_in_what_nodes_say(world: World) -> None:
    job = sent(world, {"hidden": {1: "***", 9: "***"}}, command=["-k", "ambient"])
    world.round()
    world.join_all(world.job(job).key)
    said = {"commands": {"worker-0": {"role": "worker", "argv": ["prog", "-k", "ambient"]}}}
    world.gangs.record(world.job(job).key, "sim-0", said)
    assert shown(world, job)["attempts"][-1]["record"]["commands"] == {"worker": ["prog", "-k", "***"]}


def test_nonsense_from_a_node_is_refused(world: World) -> None:
    job = running(world)
    with pytest.raises(BadRequest):
        world.gangs.record(job.key, "sim-0", {"packages": 3})


def test_who_follows_a_job_is_not_sent_its_packages_at_each_step(world: World) -> None:
    job = running(world)
    world.gangs.record(job.key, "sim-0", {"packages": {"torch": "2.13.0"}})
    light = world.desk.show(ANN, job.id)
    assert "origin" not in light and "record" not in light["attempts"][-1]


def test_an_input_from_a_pool_is_kept_with_its_digest(world: World) -> None:
    put(world, "set/a.txt", b"one")
    put(world, "set/b.txt", b"three")
    job = running(world, inputs={"data": "pool://me/set"})
    b"".join(world.gangs.input(job.key, "data"))
    (given,) = shown(world, job)["attempts"][-1]["record"]["inputs"].values()
    assert (given["files"], given["bytes"], given["address"]) == (2, 8, "pool://me/set") and len(given["digest"]) == 64
    assert "mixed" not in given


def test_the_same_files_from_a_pool_and_from_a_job_have_one_digest(world: World) -> None:
    put(world, "set/a.txt", b"one")
    source = world.submit()
    work = world.parts.home.work / source.id / "out"
    work.mkdir(parents=True)
    (work / "a.txt").write_bytes(b"one")
    job = running(world, inputs={"pool": "pool://me/set", "job": f"job://{source.id}/out"})
    for name in ("pool", "job"):
        b"".join(world.gangs.input(job.key, name))
    inputs = shown(world, job)["attempts"][-1]["record"]["inputs"]
    assert inputs["pool"]["digest"] == inputs["job"]["digest"] and inputs["job"]["bytes"] == 3


def test_an_input_that_changes_under_a_gang_is_marked_as_mixed(world: World) -> None:
    put(world, "set/a.txt", b"one")
    job = running(world, inputs={"data": "pool://me/set"})
    b"".join(world.gangs.input(job.key, "data"))
    put(world, "set/a.txt", b"two")
    b"".join(world.gangs.input(job.key, "data"))
    assert shown(world, job)["attempts"][-1]["record"]["inputs"]["data"]["mixed"]


def test_a_removed_job_leaves_no_memory_of_its_digests(world: World) -> None:
    source = world.submit()
    world.desk.stop(ANN, source.id)
    note = world.parts.home.work / f".{source.id}.{goods.DIGESTS}"
    note.touch()
    world.desk.delete(ANN, source.id)
    assert not note.exists()
