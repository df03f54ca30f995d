"""Two servers on one PostgreSQL: one acts, the other takes over, and neither touches what it cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client.jobs import Job
from tests.support.live import Live, eventually, live_server
from tests.support.postgres import postgres_cluster, postgres_url

__all__ = ["postgres_cluster", "postgres_url"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

CPU = {"cpu": 0.1}
MARKING = ["sh", "-c", 'echo started >> "$MARKS/$SHOAL_GANG-$SHOAL_MEMBER"; sleep 0.3']


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[tuple[Live, Live]]:
    options = ("--cpus", "2", "--database", postgres_url)
    with live_server(tmp_path / "one", *options) as one, live_server(tmp_path / "two", *options) as two:
        # The second server's own token is of another start; both know the same users.
        yield one, two


def seen_from(server: Live, job: Job) -> Job:
    return Job(server.api, job.data).refresh()


def test_jobs_given_to_either_run_once(pair: tuple[Live, Live], tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    jobs = [server.submit(MARKING, resources=CPU, env={"MARKS": str(marks)}, workers=2) for server in pair * 5]
    for job in jobs:
        eventually(lambda job=job: seen_from(pair[0], job).ended, 90, f"the end of {job.id}")
        assert (seen_from(pair[1], job).state, job.refresh().attempt) == ("succeeded", 1)
    assert len(list(marks.iterdir())) == 20
    assert all(mark.read_text() == "started\n" for mark in marks.iterdir())


def test_when_the_acting_server_is_killed_the_other_goes_on_and_ends_nothing_it_cannot_see(
    pair: tuple[Live, Live],
) -> None:
    first = pair[0].submit(["sleep", "600"], resources=CPU, grace=1)
    eventually(lambda: first.refresh().state == "running", 60, "the first job")
    acting, other = pair if (pair[0].home.gangs / f"{first.id}-1").exists() else pair[::-1]
    acting.kill()
    later = other.submit(["true"], resources=CPU)
    eventually(lambda: later.refresh().state == "succeeded", 60, "the other server's taking over")
    assert seen_from(other, first).state == "running", "unknown is not dead"
    acting.start()
    seen_from(other, first).stop()
    eventually(lambda: seen_from(other, first).state == "stopped", 60, "a stop asked for at the other server")
