from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.client.draft import clone_of, draft
from shoal.client.http import Api
from shoal.errors import BadSpec
from shoal.home import Home, ServerNote
from shoal.job.spec import JobSpec
from tests.client.fake import Answer, Asked, Break, Chunkery, FakeServer


@pytest.fixture
def script(project: Path) -> Path:
    file = project / "train.py"
    file.write_text("print('hello')")
    return file


def test_a_scripts_folder_goes_along(script: Path, project: Path) -> None:
    made = draft(str(script), workers=2)
    assert (made.folder, made.spec.script) == (project, "train.py")
    assert made.spec.workers is not None and made.spec.workers.low == 2


def test_relative_paths_start_at_the_base(script: Path, project: Path) -> None:
    made = draft("project/train.py", base=project.parent)
    assert (made.folder, made.spec.script) == (project, "train.py")


def test_relative_paths_start_at_the_current_folder(
    script: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    assert draft("train.py").folder == project


def test_a_named_folder_holds_the_script(script: Path, project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "main.py").touch()
    made = draft("src/main.py", folder=project, base=project)
    assert (made.folder, made.spec.script) == (project, "src/main.py")
    assert draft("main.py", folder="src", base=project).spec.script == "main.py"
    assert draft(project / "src" / "main.py", folder=project).spec.script == "src/main.py"


def test_a_script_outside_the_named_folder_is_refused(script: Path, project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(BadSpec, match="is not in the folder"):
        draft(script, folder=tmp_path / "other")


def test_a_script_that_is_a_link_keeps_its_name(script: Path, project: Path) -> None:
    (project / "latest.py").symlink_to("train.py")
    assert draft(project / "latest.py").spec.script == "latest.py"


def test_a_missing_script_is_said_with_the_nearest(script: Path, project: Path) -> None:
    with pytest.raises(BadSpec, match=r"there is no trian\.py .* did you mean train.py\?"):
        draft("trian.py", base=project)
    with pytest.raises(BadSpec, match=r"there is no nowhere/x\.py"):
        draft("nowhere/x.py", base=project)


def test_a_folder_instead_of_a_script_is_said(project: Path) -> None:
    with pytest.raises(BadSpec, match="is a folder; name the script in it"):
        draft(str(project))


@pytest.mark.parametrize(("folder", "said"), [("nowhere", "there is no"), ("train.py", "is a file")])
def test_a_folder_that_is_none_is_said(script: Path, project: Path, folder: str, said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        draft({"command": ["true"]}, folder=folder, base=project)


def test_a_job_file_is_read_and_its_paths_start_beside_it(script: Path, project: Path) -> None:
    (project / "shoal.yaml").write_text("script: train.py\nworkers: 3\nresources: {cpu: 1, memory: 1GiB}\n")
    made = draft(project / "shoal.yaml", cpu=0.5, name="mine")
    assert made.folder == project
    assert (made.spec.resources.cpu, made.spec.resources.memory) == (0.5, 1 << 30)
    assert made.spec.name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: 1\na: 2\n", "twice"), ("[1, 2]", "holds list"), ("", "holds nothing"), ("a:\n\tb: 1", "tab")],
)
def test_a_bad_job_file_is_named(project: Path, text: str, said: str) -> None:
    (project / "shoal.yaml").write_text(text)
    with pytest.raises(BadSpec, match=f"shoal.yaml.*{said}"):
        draft(project / "shoal.yaml")


def test_a_job_file_that_is_a_folder_missing_or_binary_is_said(project: Path) -> None:
    (project / "folder.yaml").mkdir()
    (project / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, said in (("folder.yaml", "is a folder"), ("none.yaml", "there is no job file"), ("binary.yaml", "UTF-8")):
        with pytest.raises(BadSpec, match=said):
            draft(project / name)


def test_a_huge_job_file_is_refused_without_being_parsed(project: Path) -> None:
    with (project / "big.yaml").open("w") as file:
        file.write("name: ")
        file.truncate(100 << 20)
    with pytest.raises(BadSpec, match="put data into inputs"):
        draft(project / "big.yaml")


def test_dicts_and_specifications_are_taken(script: Path) -> None:
    assert draft({"script": script}).spec.script == "train.py"
    assert draft(JobSpec(command=("true",))).spec.command == ("true",)
    with pytest.raises(BadSpec, match="not int"):
        draft(3)  # type: ignore[arg-type]


def test_every_fault_is_listed_before_anything_is_sent(script: Path) -> None:
    with pytest.raises(BadSpec) as caught:
        draft(script, workers=0, max_duration="-5m", wokers=1)
    assert {problem["field"] for problem in caught.value.problems} == {"workers", "max_duration", "wokers"}


def test_none_leaves_a_key_out(script: Path) -> None:
    assert draft(script, workers=None, name=None).spec.workers is None


def test_a_command_sends_nothing_unless_a_folder_is_named(project: Path) -> None:
    assert draft({"command": ["true"]}).folder is None
    assert draft({"command": ["true"]}, folder=project).folder == project


def test_in_place_runs_where_the_script_lies(script: Path, project: Path) -> None:
    made = draft(script, in_place=True)
    assert made.in_place == str(project)
    assert draft({"command": ["true"]}, in_place=True, base=project).in_place == str(project)


def sent(server: FakeServer) -> dict[str, object]:
    return dict(next(one for one in reversed(server.asked) if one.path.endswith("/jobs")).json())


def test_sending_uploads_and_submits(script: Path, server: FakeServer, api: Api, chunkery: Chunkery) -> None:
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc"}, 201))
    assert draft(script, workers=2).send(api) == {"id": "abc"}
    body = sent(server)
    assert chunkery.paths() == ["train.py"]
    assert body["spec"] == {
        "script": "train.py", "workers": 2, "environment": sys.executable, "key": body["key"],
    }  # fmt: skip
    assert len(str(body["manifest"])) == 64
    assert body["in_place"] is None


def test_in_place_sends_the_folders_path_and_no_content(
    script: Path, project: Path, server: FakeServer, api: Api
) -> None:
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc"}, 201))
    draft(script, in_place=True).send(api)
    body = sent(server)
    assert (body["in_place"], body["manifest"]) == (str(project), None)


def test_a_submission_that_breaks_is_repeated_with_the_same_key(server: FakeServer, api: Api) -> None:
    keys: list[str] = []

    def reply(asked: Asked) -> Answer:
        keys.append(asked.json()["key"])
        if len(keys) == 1:
            raise Break
        return Answer({"id": "abc"}, 200)

    server.on("POST", "/jobs", reply)
    draft({"command": ["true"]}).send(api)
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_two_submissions_have_two_keys_unless_one_is_given(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc"}, 201))
    keys = []
    for key in (None, None, "mine"):
        draft({"command": ["true"]}, key=key).send(api)
        keys.append(sent(server)["key"])
    assert len({*keys}) == 3
    assert keys[2] == "mine"


def test_the_submitters_interpreter_goes_along_only_to_a_server_here(own_home: Path) -> None:
    made = draft({"command": ["true"]})
    with Api("https://team.example", "t") as far, Api("http://127.0.0.1:1", "t") as near:
        assert "environment" not in made.wire(far)
        assert made.wire(near)["environment"] == sys.executable
        assert (
            draft({"command": ["true"]}, environment="/usr/bin/python3").wire(near)["environment"] == "/usr/bin/python3"
        )
        home = Home.here()
        home.create()
        home.write_note(ServerNote("https://team.example", 1, "0", 0.0))
        assert made.wire(far)["environment"] == sys.executable


def test_a_clone_keeps_the_code_and_changes_keys() -> None:
    data = {
        "spec": {
            "script": "train.py",
            "workers": 2,
            "key": "old",
            "owner": "ann",
            "name": "a",
            "resources": {"cpu": 1},
        },
        "manifest": "m" * 64,
        "in_place": None,
    }
    made = clone_of(data, {"workers": 4, "name": None, "memory": "1GiB"})
    assert made.manifest == "m" * 64
    assert made.spec.workers is not None and made.spec.workers.low == 4
    assert (made.spec.key, made.spec.owner, made.spec.name) == (None, None, None)
    assert (made.spec.resources.cpu, made.spec.resources.memory) == (1, 1 << 30)
