from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import shoal
from shoal.client.aio import AHEAD, AsyncJob
from shoal.client.http import Api
from shoal.client.jobs import Job
from shoal.errors import NotFound
from tests.client.fake import Answer, FakeServer, problem, sse
from tests.client.test_jobs import END, described, log


def ajob(api: Api) -> AsyncJob:
    return AsyncJob(Job(api, described()))


def test_lines_are_iterated_asynchronously(server: FakeServer, api: Api) -> None:
    stream = [sse(log(*[f"{batch}.{n}" for n in range(3)]), str(batch)) for batch in range(50)]
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[*stream, END]))

    async def read() -> list[str]:
        return [line.text async for line in ajob(api).logs(follow=True)]

    assert asyncio.run(read()) == [f"{batch}.{n}" for batch in range(50) for n in range(3)]


def test_the_loop_goes_on_while_a_log_is_silent(server: FakeServer, api: Api) -> None:
    speak = threading.Event()

    def stream() -> Iterator[bytes]:
        speak.wait(30)
        yield sse(log("at last"), "1")
        yield END

    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=stream()))

    async def read() -> list[str | None]:
        async def release() -> None:
            speak.set()

        async def first() -> str:
            return (await anext(aiter(ajob(api).logs(follow=True)))).text

        return list(await asyncio.gather(first(), release()))[:1]

    assert asyncio.run(read()) == ["at last"]


def test_many_followers_do_not_wait_for_each_other(server: FakeServer, api: Api) -> None:
    """More than the loop's own pool has threads: all must be connected before any of them is answered."""
    many = 40
    barrier = threading.Barrier(many, timeout=30)

    def stream() -> Iterator[bytes]:
        barrier.wait()
        yield sse(log("hello"), "1")
        yield END

    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=stream()))

    async def read() -> list[str]:
        async def one() -> str:
            return "".join([line.text async for line in ajob(api).logs(follow=True)])

        return await asyncio.gather(*(one() for _ in range(many)))

    assert asyncio.run(read()) == ["hello"] * many


def test_leaving_early_ends_the_reading_thread(server: FakeServer, api: Api) -> None:
    stream = [sse(log("x"), str(number)) for number in range(AHEAD * 10)]
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[*stream, END]))

    async def read() -> None:
        lines = ajob(api).logs()
        async for _ in lines:
            break
        await lines.aclose()  # type: ignore[attr-defined]

    asyncio.run(read())
    for thread in threading.enumerate():
        if thread.name == "shoal-stream":
            thread.join(10)
            assert not thread.is_alive()


def test_an_error_in_a_stream_is_raised_where_it_is_awaited(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/logs", lambda _: problem(404, "not_found", "no job"))

    async def read() -> None:
        async for _ in ajob(api).logs():
            pass

    with pytest.raises(NotFound, match="no job"):
        asyncio.run(read())


def test_following_prints_and_waits(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/logs", lambda _: Answer(stream=[sse(log("a"), "1"), END]))
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=[sse(described("succeeded"))]))
    out = io.StringIO()
    assert asyncio.run(ajob(api).follow(out)).state == "succeeded"
    assert out.getvalue() == "worker-0 | a\n"


def test_waiting_too_long_is_a_timeout(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs/job1/watch", lambda _: Answer(stream=[sse(described("running"))]))
    server.on("GET", "/jobs/job1", described("running"))
    with pytest.raises(TimeoutError):
        asyncio.run(ajob(api).wait(timeout=0.2))


def test_everything_else_is_awaited(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", lambda _: Answer(described("queued"), 201))
    server.on("GET", "/jobs/job1", described("running", spec={"command": ["true"]}))
    server.on("GET", "/jobs", {"jobs": [described()], "next": None})
    server.on("POST", "/jobs/job1/stop", described("stopping"))
    server.on("GET", "/jobs/job1/why", {"rule": "next"})
    server.on("GET", "/jobs/job1/events", {"events": [{"seq": 1}], "next": None})
    server.on("DELETE", "/jobs/job1", lambda _: Answer(None, 204))

    async def all_of_it() -> Any:
        job = await shoal.asubmit({"command": ["true"]}, api=api)
        assert (await job.refresh()).state == "running"
        assert (await shoal.afind("job1", api)).id == "job1"
        assert [one.id async for one in shoal.ajobs(api=api)] == ["job1"]
        assert (await job.stop(force=True)).state == "stopping"
        assert await job.why() == {"rule": "next"}
        assert await job.events() == [{"seq": 1}]
        assert (await job.clone(workers=2)).state == "queued"
        await job.remove()

    asyncio.run(all_of_it())
