"""Whole or not at all: killed at every touch of the disk, damaged at any place, the checkpoint before is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.checkpoint.chain import MANIFEST, Chain
from tests.train.checkpoint.keepers import Fragile, Killed, Worker, in_step, same


def first(folder: Path) -> Worker:
    worker = Worker(folder)
    worker.train(1)
    worker.keeper.save(0, keep=1)
    worker.keeper.finish()
    return worker


def second(folder: Path, disk: Fragile) -> tuple[Worker, bool]:
    """Another checkpoint, of which only one is to be kept; whether it got that far."""
    worker = Worker(folder, disk=disk)
    worker.keeper.resume()
    worker.train(2)
    worker.tally.epoch = 1
    try:
        worker.keeper.save(1, keep=1)
        worker.keeper.finish()
    except Killed:
        return worker, False
    return worker, True


def touches(folder: Path) -> list[str]:
    """What a save does to the disk, step by step."""
    first(folder)
    disk = Fragile()
    assert second(folder, disk)[1]
    return disk.what


def test_a_save_syncs_before_it_renames(tmp_path: Path) -> None:
    what = touches(tmp_path)
    assert what.index("sync") < what.index("rename")
    assert what[-2:] == ["remove", "remove"] and "make" in what


@pytest.mark.parametrize("power", [None, 1, 2])
def test_a_kill_at_any_step_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path, power: int | None) -> None:
    steps = len(touches(tmp_path / "count"))
    assert steps > 15
    for at in range(steps):
        folder = tmp_path / f"at-{at}"
        one = first(folder).everything()
        worker, finished = second(folder, Fragile(at, power))
        assert not finished
        two = worker.everything()
        after = Worker(folder)
        resumed = after.keeper.resume()
        assert resumed, f"nothing to go on from after a kill at step {at}"
        assert same(after.everything(), two if resumed.tag == 1 else one)
        after.train(3)
        after.tally.epoch = resumed.epoch
        after.keeper.save(resumed.epoch, keep=1)  # and the next one clears up
        after.keeper.finish()
        assert len(list((folder / "checkpoints").glob("epoch-*"))) == 1


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_damage_anywhere_is_found_and_the_one_before_is_used(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    worker = Worker(folder)
    worker.train(1)
    worker.keeper.save(0)
    worker.keeper.finish()
    one = worker.everything()
    worker.train(2)
    worker.keeper.save(1)
    worker.keeper.finish()
    two = worker.everything()
    newest = Chain(folder / "checkpoints").whole()[0].name
    files = sorted((folder / "checkpoints" / newest).iterdir())
    path, cut, where = data.draw(st.sampled_from(files)), data.draw(st.booleans()), data.draw(st.floats(0, 0.999))
    content = bytearray(path.read_bytes())
    if cut:
        path.write_bytes(content[: int(where * len(content))])
    else:
        content[int(where * len(content))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(bytes(content))
    after = Worker(folder)
    resumed = after.keeper.resume()
    assert resumed
    if path.name == MANIFEST and resumed.tag == 1:  # a blank became another blank
        assert same(after.everything(), two) and (resumed.epoch, resumed.step) == (1, 2)
    else:
        assert resumed.tag == 0 and same(after.everything(), one)


def test_a_torn_checkpoint_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first(tmp_path)
    (tmp_path / "checkpoints" / "epoch-0007").mkdir()
    assert Worker(tmp_path).keeper.resume()
    assert "epoch-0007 is skipped: it was never finished" in caplog.text
    caplog.clear()
    (tmp_path / "checkpoints" / "epoch-0000" / "model-0.safetensors").write_bytes(b"")
    assert Worker(tmp_path).keeper.resume() is None
    assert "has 0 bytes and should have" in caplog.text


def test_a_missing_file_makes_it_torn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first(tmp_path)
    (tmp_path / "checkpoints" / "epoch-0000" / "rank-0.json").unlink()
    assert Worker(tmp_path).keeper.resume() is None
    assert "is missing" in caplog.text


def test_workers_in_step_use_only_what_all_of_them_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def write(worker: Worker) -> None:
        worker.keeper.add("mine", lambda: [worker.world.rank], lambda state: None, scope="each")
        for epoch in range(2):
            worker.tally.epoch = epoch
            worker.train(epoch)
            worker.keeper.save(epoch)
        worker.keeper.finish()

    in_step(tmp_path, 2, write)
    (tmp_path / "checkpoints" / "epoch-0001" / "rank-1.json").write_text("{}")
    resumed = in_step(tmp_path, 2, lambda worker: worker.keeper.resume())
    assert [one.tag for one in resumed] == [0, 0]
    assert "worker-1 says" in caplog.text


def test_a_part_of_another_save_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a save that was cut off has left in the same folder is not taken for a part of this one."""
    monkeypatch.setattr("shoal.train.checkpoint.together.PATIENCE", 0.2)
    (tmp_path / "checkpoints" / "epoch-0000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "epoch-0000" / "rank-1.json").write_text('{"token": "old", "files": {}}')

    def work(worker: Worker) -> str:
        if worker.world.rank == 1:
            worker.keeper._write = lambda *args: None  # type: ignore[method-assign]
        monkeypatch.setattr(Chain, "free_name", lambda self, wanted: wanted)
        worker.keeper.save(0)
        try:
            worker.keeper.finish()
        except Exception as error:
            return str(error)
        return ""

    assert "worker-1 did not come" in in_step(tmp_path, 2, work)[0]
