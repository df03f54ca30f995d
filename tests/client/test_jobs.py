from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.client import jobs as client
from shoal.client.http import Api
from shoal.client.jobs import ENDED, Job, JobFailed
from shoal.client.lines import LogLine, rank_names, since_seconds
from shoal.errors import BadSpec, NotFound
from tests.client.fake import Answer, Asked, Break, FakeServer, problem, sse


def described(state: str = "running", **more: Any) -> dict[str, Any]:
    return {"id": "job1", "name": "digits", "state": state, "reason": "running", "message": "", "spec": {}, **more}


def log(*texts: str, rank: str = "worker-0") -> dict[str, Any]:
    return {"lines": [[rank, 1_500_000, text] for text in texts]}


END = sse({"state": "succeeded", "exit_code": 0}, event="end")


def test_the_ended_states_are_those_of_the_model() -> None:
    from shoal.job.states import ENDED as MODEL

    assert {str(state) for state in MODEL} == ENDED


def test_a_job_shows_what_the_server_said_and_ignores_what_it_does_not_know(api: Api) -> None:
    job = Job(api, described(owner="ann", exit_code=3, attempt=2, tomorrow="?"))
    assert (job.id, job.name, job.state, job.reason) == ("job1", "digits", "running", "running")
    assert (job.owner, job.exit_code, job.attempt, job.ended) == ("ann", 3, 2, False)
    assert repr(job) == "<Job job1 'digits' running>"


def test_a_job_from_a_list_fetches_the_rest_when_asked(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1", described(spec={"workers": 2}, ranks=[{"name": "worker-0"}]))
    job = Job(api, {"id": "job1", "state": "running"})
    assert job.spec == {"workers": 2}
    assert job.ranks == [{"name": "worker-0"}]
    assert server.count("GET", "/jobs/job1") == 1


def test_a_reference_is_quoted(server: FakeServer, api: Api) -> None:
    with pytest.raises(NotFound):
        client.find("a/../b c", api)
    assert server.asked[-1].path == "/api/v1/jobs/a%2F..%2Fb%20c"


def pages(total: int) -> Any:
    def reply(asked: Asked) -> Answer:
        start, size = int(asked.params.get("cursor", "0")), int(asked.params["limit"])
        found = [{"id": f"job{number}", "state": "queued"} for number in range(start, min(start + size, total))]
        return Answer({"jobs": found, "next": str(start + size) if start + size < total else None})

    return reply


def test_jobs_are_fetched_page_by_page(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs", pages(1200))
    assert [job.id for job in client.jobs(api=api)] == [f"job{number}" for number in range(1200)]
    assert server.count("GET", "/jobs") == 3


def test_only_as_many_jobs_as_asked_are_fetched(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs", pages(1200))
    assert len(list(client.jobs(api=api, limit=7, state=["queued", "running"], owner="ann"))) == 7
    assert server.asked[-1].params == {"limit": "7", "state": "queued,running", "owner": "ann"}
    assert server.count("GET", "/jobs") == 1


def test_waiting_ends_with_the_job(server: FakeServer, api: Api) -> None:
    stream = [sse(described("queued")), sse(described("running")), sse(described("succeeded", exit_code=0))]
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=stream))
    job = Job(api, described("queued")).wait()
    assert (job.state, job.exit_code) == ("succeeded", 0)


def test_waiting_survives_a_stream_that_breaks(server: FakeServer, api: Api) -> None:
    def dying() -> Iterator[bytes]:
        yield sse(described("running"))
        raise Break

    streams = iter([dying(), [sse(described("failed"))]])
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=next(streams)))
    assert Job(api, described("queued")).wait().state == "failed"


def test_waiting_too_long_is_a_timeout(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=[sse(described("running"))]))
    server.on("GET", "/jobs/job1", described("running"))
    with pytest.raises(TimeoutError, match="job1 is still running"):
        Job(api, described("queued")).wait(timeout=0.3)


def test_lines_come_as_records_and_the_cursor_says_where_to_go_on(server: FakeServer, api: Api) -> None:
    stream = [sse(log("a", "b"), "c1"), sse(log("c", rank="server-0"), "c2"), END]
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=stream))
    lines = Job(api, described()).logs(rank=[0, "server-0"], tail=10, grep="x+", since=5.0)
    assert next(lines) == LogLine("worker-0", 1.5, "a")
    before = lines.cursor
    assert before is None
    assert list(lines) == [LogLine("worker-0", 1.5, "b"), LogLine("server-0", 1.5, "c")]
    assert lines.cursor == "c2"
    assert lines.outcome == {"state": "succeeded", "exit_code": 0}
    assert server.asked[-1].params == {
        "rank": "worker-0,server-0", "tail": "10", "grep": "x+", "since": "5.0", "follow": "0",
    }  # fmt: skip


def test_lines_go_on_behind_a_cursor(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[sse(log("d"), "c3"), END]))
    assert [line.text for line in Job(api, described()).logs(cursor="c2")] == ["d"]
    assert server.asked[-1].headers["last-event-id"] == "c2"


def test_following_prints_each_line_with_its_rank(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[sse(log("a", "b"), "1"), END]))
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=[sse(described("succeeded"))]))
    out = io.StringIO()
    job = Job(api, described())
    assert job.follow(out) is job
    assert out.getvalue() == "worker-0 | a\nworker-0 | b\n"
    assert job.state == "succeeded"
    assert server.asked[0].params["follow"] == "1"


def test_stopping_says_how(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs/job1/stop", described("stopping"))
    assert Job(api, described()).stop(grace=3, message="enough").state == "stopping"
    assert server.asked[-1].json() == {"grace": 3, "message": "enough"}
    Job(api, described()).stop(force=True)
    assert server.asked[-1].json() == {"force": True}
    Job(api, described()).stop(grace=0)
    assert server.asked[-1].json() == {"grace": 0}


def test_events_are_read_page_by_page(server: FakeServer, api: Api) -> None:
    answers = {"0": {"events": [{"seq": 1}, {"seq": 2}], "next": 2}, "2": {"events": [{"seq": 3}], "next": None}}
    server.on("GET", "/jobs/job1/events", lambda asked: Answer(answers[asked.params["after"]]))
    assert [event["seq"] for event in Job(api, described()).events()] == [1, 2, 3]


def test_why_samples_and_removal_ask_for_what_they_say(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/why", {"rule": "capacity"})
    samples = Answer(b'{"cpu":1}\n', headers={"Content-Type": "application/x-ndjson"})
    server.on("GET", "/jobs/job1/samples", lambda _: samples)
    server.on("DELETE", "/jobs/job1", lambda _: Answer(None, 204))
    job = Job(api, described())
    assert job.why() == {"rule": "capacity"}
    assert job.samples(0) == [{"cpu": 1}]
    job.remove()
    assert server.asked[-1].method == "DELETE"


def test_a_clone_is_a_job_of_its_own(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1", described(spec={"command": ["true"], "workers": 1}, manifest=None, in_place=None))
    server.on("POST", "/jobs", lambda _: Answer({"id": "job2"}, 201))
    assert Job(api, described()).clone(workers=3).id == "job2"
    assert server.asked[-1].json()["spec"]["workers"] == 3


def ended(server: FakeServer, state: str) -> None:
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=[sse(described(state, advice="Do this."))]))


def test_a_result_is_what_the_job_left(server: FakeServer, api: Api) -> None:
    ended(server, "succeeded")
    server.on("GET", "/jobs/job1/file", lambda _: Answer(b'{"loss": 0.5}'))
    assert Job(api, described()).result() == {"loss": 0.5}
    assert server.asked[-1].params == {"path": "result.json"}


def test_a_job_that_left_no_result_says_so(server: FakeServer, api: Api) -> None:
    ended(server, "succeeded")
    server.on("GET", "/jobs/job1/file", lambda _: problem(404, "not_found", "no such file"))
    with pytest.raises(NotFound, match=r"only @shoal\.remote functions return a value"):
        Job(api, described()).result()


def test_a_failed_job_raises_with_its_last_lines(server: FakeServer, api: Api) -> None:
    ended(server, "failed")
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[sse(log("Traceback", "ValueError: no"), "1"), END]))
    with pytest.raises(JobFailed, match="ValueError: no") as caught:
        Job(api, described()).result()
    assert caught.value.lines == ["worker-0 | Traceback", "worker-0 | ValueError: no"]
    assert caught.value.facts["state"] == "failed"


def test_submit_checks_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "current", lambda: pytest.fail("connected"))
    with pytest.raises(BadSpec):
        client.submit({"command": ["true"]}, workers=0)


def test_submit_returns_the_job(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", lambda _: Answer(described("queued"), 201))
    assert client.submit({"command": ["true"]}, api=api).state == "queued"


@pytest.mark.parametrize(
    ("rank", "names"),
    [
        (None, None),
        (0, "worker-0"),
        ("1", "worker-1"),
        ("server-0", "server-0"),
        ("0,1", "worker-0,worker-1"),
        ([0, "chief-0"], "worker-0,chief-0"),
    ],
)
def test_ranks_are_named_as_the_api_names_them(rank: Any, names: str | None) -> None:
    assert rank_names(rank) == names


def test_since_is_a_time_or_how_long_ago() -> None:
    assert since_seconds(12.5) == 12.5
    assert since_seconds("10m") == pytest.approx(time.time() - 600, abs=5)
    assert since_seconds("1970-01-01T00:01:00+00:00") == 60.0
    with pytest.raises(BadSpec, match="neither how long ago"):
        since_seconds("yesterday")


def test_origin_and_record_are_fetched_when_asked_for(server: FakeServer, api: Api) -> None:
    whole = {"id": "j1", "spec": {}, "origin": {"host": "h"}, "attempts": [{"record": {"packages": {"torch": "2"}}}]}
    server.on("GET", "/jobs/j1", whole)
    watched = Job(api, {"id": "j1", "spec": {}, "attempts": [{}]})
    assert watched.origin == {"host": "h"} and watched.record == {"packages": {"torch": "2"}}
    server.on("GET", "/jobs/j2", {"id": "j2", "spec": {}, "origin": None, "attempts": []})
    assert Job(api, {"id": "j2"}).origin == {} and Job(api, {"id": "j2"}).record == {}


def test_the_diff_of_a_job_is_text(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/j1/diff", lambda _: Answer(stream=[b"-a\n+b\n"], headers={"Content-Type": "text/plain"}))
    assert Job(api, {"id": "j1"}).diff() == "-a\n+b\n"
