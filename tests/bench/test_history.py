"""The filled home: what the list benches look at is what a server would have written."""

from __future__ import annotations

from pathlib import Path

from shoal.bench.history import fill
from shoal.home import Home
from shoal.store import Store


def test_every_job_of_the_past_has_ended_and_left_its_attempt(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    fill(home, 20)
    with Store.open(f"sqlite:///{home.database}", create=False) as store:
        counts = store.counts()
        assert counts["succeeded"] == 15
        assert counts["failed"] == 5
        assert store.open_attempts() == ()
        assert [len(store.attempts(line.id)) for line in store.list_jobs().items] == [1] * 20
