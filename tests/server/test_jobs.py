from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import Site

pytestmark = pytest.mark.real


def test_a_job_is_submitted_runs_and_is_shown(site: Site) -> None:
    job = site.submit(site.root, "sh", "-c", "exit 0", name="first", tags=["blue"])
    assert (job["state"], job["reason"], job["name"]) == ("queued", "admitted", "first")
    done = site.ended(site.root, job["id"])
    assert (done["state"], done["exit_code"]) == ("succeeded", 0)
    assert [rank["name"] for rank in done["ranks"]] == ["worker-0"]
    assert site.root.get("/jobs/first").json()["id"] == job["id"]
    assert site.root.get(f"/jobs/{job['id'][:4]}").json()["id"] == job["id"]
    kinds = [event["kind"] for event in site.root.get(f"/jobs/{job['id']}/events").json()["events"]]
    assert kinds[0] == "queued" and kinds[-1] == "succeeded"


def test_the_same_key_is_the_same_job(site: Site) -> None:
    body = {"spec": {"command": ["true"]}, "key": "only-once"}
    first, second = site.root.post("/jobs", json=body), site.root.post("/jobs", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]


def test_a_wrong_job_is_refused_with_every_fault_and_nothing_is_stored(site: Site) -> None:
    before = len(site.root.get("/jobs?limit=500").json()["jobs"])
    answer = site.root.post("/jobs", json={"spec": {"comand": ["true"], "workers": 0}})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_spec"
    assert {problem["field"] for problem in answer.json()["problems"]} >= {"comand", "workers"}
    assert len(site.root.get("/jobs?limit=500").json()["jobs"]) == before


def test_more_than_the_machine_has_is_refused_at_plan_time(site: Site) -> None:
    for path in ("/plan", "/jobs"):
        answer = site.root.post(path, json={"spec": {"command": ["true"], "resources": {"cpu": 4000}}})
        assert (answer.status_code, answer.json()["code"]) == (400, "does_not_fit")


def test_a_plan_starts_nothing(site: Site) -> None:
    plan = site.root.post("/plan", json={"spec": {"command": ["true"], "workers": 2, "name": "planned"}}).json()
    assert plan["totals"]["processes"] == 2
    assert site.root.get("/jobs?name=planned").json()["jobs"] == []


def test_lists_are_filtered_and_paged(site: Site) -> None:
    ids = [site.submit(site.root, "true", name=f"paged-{i}", tags=["paged"])["id"] for i in range(5)]
    for job in ids:
        site.ended(site.root, job)
    found, cursor = [], None
    while True:
        params = {"tag": "paged", "limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = site.root.get("/jobs", params=params).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == ids[::-1]
    assert [j["id"] for j in site.root.get("/jobs?name=paged-3&state=succeeded,failed").json()["jobs"]] == [ids[3]]
    assert site.root.get("/jobs?name=paged&state=queued").json()["jobs"] == []
    assert "did you mean 'running'" in site.root.get("/jobs?state=runing").json()["detail"]
    assert site.root.get("/jobs?cursor=nonsense").status_code == 400


def test_a_running_job_is_stopped_and_only_then_removed(site: Site) -> None:
    job = site.submit(site.root, "sleep", "600")["id"]
    assert site.root.delete(f"/jobs/{job}").status_code == 409
    assert site.root.post(f"/jobs/{job}/stop", json={"force": True, "message": "enough"}).status_code == 200
    done = site.ended(site.root, job)
    assert (done["state"], done["reason"], done["message"]) == ("stopped", "user_stop", "enough")
    assert site.root.post(f"/jobs/{job}/stop").status_code == 200
    assert site.root.delete(f"/jobs/{job}").status_code == 204
    assert site.root.get(f"/jobs/{job}").status_code == 404


@pytest.fixture(scope="module")
def writer(site: Site) -> str:
    code = "mkdir sub; printf 0123456789 > sub/digits.bin; printf '<b>' > page.html; ln -s /etc/passwd stolen"
    job = site.submit(site.root, "sh", "-c", code)["id"]
    site.ended(site.root, job)
    return str(job)


def test_what_a_job_wrote_is_listed(site: Site, writer: str) -> None:
    top = {file["path"]: file for file in site.root.get(f"/jobs/{writer}/files").json()["files"]}
    assert top["sub"]["dir"] and not top["page.html"]["dir"]
    below = site.root.get(f"/jobs/{writer}/files?path=sub").json()["files"]
    assert [(file["path"], file["size"]) for file in below] == [("sub/digits.bin", 10)]


@pytest.mark.parametrize(
    ("wanted", "status", "content", "span"),
    [
        (None, 200, b"0123456789", None),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-500", 206, b"56789", "bytes 5-9/10"),
        ("apples=1-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
    ],
)
def test_a_file_is_served_whole_or_in_part(
    site: Site, writer: str, wanted: str | None, status: int, content: bytes, span: str | None
) -> None:
    headers = {"range": wanted} if wanted else {}
    answer = site.root.get(f"/jobs/{writer}/file?path=sub/digits.bin", headers=headers)
    assert (answer.status_code, answer.content, answer.headers.get("content-range")) == (status, content, span)
    assert answer.headers["accept-ranges"] == "bytes"


def test_a_range_of_a_file_that_changed_is_the_whole_file(site: Site, writer: str) -> None:
    path = f"/jobs/{writer}/file?path=sub/digits.bin"
    tag = site.root.get(path).headers["etag"]
    assert site.root.get(path, headers={"range": "bytes=5-", "if-range": tag}).content == b"56789"
    assert site.root.get(path, headers={"range": "bytes=5-", "if-range": '"older"'}).content == b"0123456789"


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=99-100", "bytes=5-2", "bytes=-0"])
def test_a_range_behind_the_end_is_416(site: Site, writer: str, wanted: str) -> None:
    answer = site.root.get(f"/jobs/{writer}/file?path=sub/digits.bin", headers={"range": wanted})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")


def test_a_page_a_job_wrote_is_never_shown_as_one(site: Site, writer: str) -> None:
    answer = site.root.get(f"/jobs/{writer}/file?path=page.html")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["../../token", "/etc/passwd", "stolen", "sub", "none", "sub/../../x", "a\0b"])
def test_nothing_outside_the_jobs_folder_is_served(site: Site, writer: str, path: str) -> None:
    assert site.root.get(f"/jobs/{writer}/file", params={"path": path}).status_code == 404


def test_an_empty_file_is_served(site: Site, tmp_path: Path) -> None:
    job = site.submit(site.root, "touch", "nothing")["id"]
    site.ended(site.root, job)
    answer = site.root.get(f"/jobs/{job}/file?path=nothing")
    assert (answer.status_code, answer.content) == (200, b"")


def test_schema_sizes_nodes_engines_and_the_server_tell_about_themselves(site: Site) -> None:
    assert "why" in site.root.get("/schema").text
    assert "small" in site.root.get("/sizes").json()["sizes"]
    rows = {row["name"]: row for row in site.root.get("/frameworks").json()["frameworks"]}
    assert {"pytorch", "tensorflow", "jax"} <= rows.keys() and "histograms" not in rows["jax"]["refused"]["gossip"]
    assert site.root.get("/nodes").json()["nodes"][0]["cpus"] > 0
    assert site.root.get("/engines").json()["engines"][0]["name"] == "local"
    about = site.root.get("/server").json()
    assert about["url"] == site.note.url
    assert "operating-system user" in about["identity_note"]
    assert about["isolation"] == {"mode": "none", "why": "there is one user; with a second one they are kept apart"}
