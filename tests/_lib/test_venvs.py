"""Environments are built once, shared, bounded, and never kept when they are broken. The pip is the real one."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal._lib import process
from shoal._lib.venvs import BuildFailed, InUse, Recipe, Venvs
from tests.support.disk import filled, small_disk
from tests.support.live import eventually
from tests.support.wheels import sdist, wheel

pytestmark = pytest.mark.real


def recipe(*lines: str, name: str = "tiny", **more: object) -> Recipe:
    return Recipe(name, lines=("--no-index", *lines), **more)  # type: ignore[arg-type]


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goods")
    wheel(folder, "tiny", size=100_000)
    return folder


@pytest.fixture(scope="module")
def built(goods: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Venvs, Recipe]:
    """One environment that several tests look at: making one takes seconds."""
    venvs = Venvs(tmp_path_factory.mktemp("cache") / "environments")
    made = recipe(f"--find-links {goods}", "tiny==1.0")
    venvs.use(made, quiet).release()
    return venvs, made


@pytest.fixture
def copy(built: tuple[Venvs, Recipe], tmp_path: Path) -> Iterator[tuple[Venvs, Recipe]]:
    """The same, to be spoilt."""
    shutil.copytree(built[0].folder, tmp_path / "environments", symlinks=True)
    yield Venvs(tmp_path / "environments"), built[1]


def test_it_runs_what_was_asked_for_and_nothing_of_ours(built: tuple[Venvs, Recipe]) -> None:
    held = built[0].use(built[1], quiet)
    code = "import tiny, importlib.util as u; print(tiny.VERSION, u.find_spec('pydantic'))"
    said = subprocess.run([held.python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "1.0 None\n"
    held.release()


def test_the_second_use_builds_nothing_and_counts(built: tuple[Venvs, Recipe]) -> None:
    said: list[str] = []
    first, second = built[0].use(built[1], said.append), built[0].use(built[1], said.append)
    facts = built[0].entries()[0]
    assert said == []
    assert (facts.users, facts.key, facts.name) == (2, first.key, "tiny")
    assert facts.size > 100_000 and facts.used_at >= facts.built_at
    first.release()
    second.release()
    assert built[0].entries()[0].users == 0


def test_a_key_stands_for_what_goes_in_and_not_for_the_name(built: tuple[Venvs, Recipe]) -> None:
    made = built[1]
    assert Recipe("other", lines=made.lines).key("3.11") == made.key("3.11")
    assert Recipe("tiny", lines=(*made.lines, "more")).key("3.11") != made.key("3.11")
    assert Recipe("tiny", lines=made.lines, bare=("x",)).key("3.11") != made.key("3.11")
    assert Recipe("tiny", lines=made.lines, settings={"PIP_INDEX_URL": "x"}).key("3.11") != made.key("3.11")
    assert made.key("3.12") != made.key("3.11")


def test_what_is_installed_bare_brings_no_dependencies(goods: Path, tmp_path: Path) -> None:
    made = Recipe("x", bare=(str(wheel(tmp_path / "w", "keras-like", needs=("the-full-framework",))),))
    held = Venvs(tmp_path / "cache").use(made, quiet)
    assert set(Venvs(tmp_path / "cache").packages(held.key)) == {"keras_like", "pip"}
    held.release()


def test_a_password_in_a_line_is_not_shown_to_everybody(goods: Path, tmp_path: Path) -> None:
    index = "--extra-index-url https://ada:hunter2@127.0.0.1:1/simple"
    Venvs(tmp_path).build(recipe(index, f"{goods}/tiny-1.0-py3-none-any.whl"), quiet)
    assert "--extra-index-url https://ada:****@127.0.0.1:1/simple" in Venvs(tmp_path).entries()[0].requirements
    assert not any("hunter2" in file.read_text() for file in tmp_path.glob("*.json"))


def test_what_is_in_use_is_not_removed(copy: tuple[Venvs, Recipe]) -> None:
    venvs, made = copy
    held = venvs.use(made, quiet)
    with pytest.raises(InUse):
        venvs.remove(held.key)
    held.release()
    assert venvs.remove(held.key) and not venvs.remove(held.key)
    assert venvs.find(made) is None and not held.folder.exists()


def test_what_was_not_used_longest_goes_first_and_what_is_in_use_never(copy: tuple[Venvs, Recipe]) -> None:
    venvs, made = copy
    held = venvs.use(made, quiet)
    facts = json.loads((venvs.folder / f"{held.key}.json").read_text())
    for key, age in (("old", 300), ("older", 400), ("new", 1)):
        (venvs.folder / key / "bin").mkdir(parents=True)
        (venvs.folder / f"{key}.json").write_text(json.dumps({**facts, "key": key, "name": key}))
        os.utime(venvs.folder / f"{key}.json", (time.time() - age, time.time() - age))
    said: list[str] = []
    Venvs(venvs.folder, room=facts["size"] * 2).evict(said.append)
    assert {one.name for one in venvs.entries()} == {"tiny", "new"}
    assert "removed older" in said[0] and "removed old" in said[1]
    Venvs(venvs.folder, room=1).evict(quiet)
    assert [one.name for one in venvs.entries()] == ["tiny"]
    held.release()


def test_a_folder_that_a_killed_build_left_is_rubbish(copy: tuple[Venvs, Recipe]) -> None:
    venvs, _ = copy
    (venvs.folder / "halfbuilt" / "lib").mkdir(parents=True)
    venvs.evict(quiet)
    assert not (venvs.folder / "halfbuilt").exists() and len(venvs.entries()) == 1


def test_an_environment_whose_interpreter_is_gone_is_not_found(copy: tuple[Venvs, Recipe]) -> None:
    venvs, made = copy
    (venvs.folder / venvs.entries()[0].key / "bin" / "python").unlink()
    assert venvs.find(made) is None


def _use(folder: Path, made: Recipe, said: Path) -> None:
    def note(line: str) -> None:
        with said.open("a") as file:
            file.write(line + "\n")

    Venvs(folder).use(made, note)


def test_two_that_want_the_same_build_it_once(goods: Path, tmp_path: Path) -> None:
    made = recipe(f"--find-links {goods}", "tiny")
    fork = multiprocessing.get_context("spawn")
    notes = [tmp_path / "a", tmp_path / "b"]
    both = [fork.Process(target=_use, args=(tmp_path / "cache", made, note)) for note in notes]
    for each in both:
        each.start()
    for each in both:
        each.join(100)
    said = [note.read_text() for note in notes if note.exists()]
    assert [each.exitcode for each in both] == [0, 0]
    assert sum("building tiny for" in text for text in said) == 1
    assert all("building tiny for" in text or "is being built by another process" in text for text in said)


def test_a_build_that_is_killed_leaves_nothing_that_counts(goods: Path, tmp_path: Path) -> None:
    slow = "import time, sys\ndef build_wheel(*a, **k):\n    print('sleeping', flush=True)\n    time.sleep(600)\n"
    made = recipe(f"{sdist(tmp_path / 'src', 'slow', slow)}")
    builder = multiprocessing.get_context("spawn").Process(target=_use, args=(tmp_path / "cache", made, tmp_path / "n"))
    builder.start()
    eventually(
        lambda: (tmp_path / "n").exists() and "Preparing metadata" in (tmp_path / "n").read_text(), 60, "the build"
    )
    below = process.descendants(builder.pid or 0)
    os.kill(builder.pid or 0, signal.SIGKILL)
    builder.join()
    venvs = Venvs(tmp_path / "cache")
    assert venvs.entries() == [] and venvs.find(made) is None
    eventually(lambda: not process.alive(below[0]), 10, "pip's end with its builder")
    for pid in below:
        process.send(pid, signal.SIGKILL)
    venvs.evict(quiet)
    assert not any(each.is_dir() for each in venvs.folder.iterdir())


@pytest.fixture
def failing(tmp_path: Path) -> Venvs:
    return Venvs(tmp_path / "cache")


def fails(venvs: Venvs, made: Recipe) -> BuildFailed:
    with pytest.raises(BuildFailed) as failed:
        venvs.build(made, quiet)
    assert venvs.entries() == [] and not any(each.is_dir() for each in venvs.folder.iterdir())
    return failed.value


def test_requirements_that_do_not_resolve_name_the_line_in_pips_words(
    failing: Venvs, goods: Path, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {goods}\ntiny==1.0\n# hm\nabsent>=2\n")
    made = Recipe("requirements.txt", file="requirements.txt", folder=str(tmp_path), digest="x")
    message = str(fails(failing, made))
    assert "line 5 of requirements.txt, 'absent>=2'" in message
    assert "pip says: ERROR: Could not find a version that satisfies the requirement absent>=2" in message


def test_versions_that_contradict_each_other_are_told(failing: Venvs, tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "w", "base", version)
    wheel(tmp_path / "w", "above", needs=("base<2",))
    message = str(fails(failing, recipe(f"--find-links {tmp_path / 'w'}", "above", "base==2.0")))
    assert "conflicting dependencies" in message and "loosen" in message


def test_a_package_that_needs_a_compiler_that_is_missing_names_both(
    failing: Venvs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = "import subprocess\ndef build_wheel(*a, **k):\n    subprocess.run(['gcc', '-c', 'fast.c'], check=True)\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    message = str(fails(failing, recipe(str(sdist(tmp_path / "src", "native-thing", backend)))))
    assert "native-thing" in message
    assert "needs a C compiler: install gcc" in message


def test_a_package_for_another_python_says_so(failing: Venvs, tmp_path: Path) -> None:
    wheel(tmp_path / "w", "modern", Requires_Python=">=3.99")
    message = str(fails(failing, recipe(f"--find-links {tmp_path / 'w'}", "modern")))
    assert "'modern': pip says" in message and "other versions of Python" in message


def test_an_interpreter_of_a_version_that_is_not_here_is_asked_for_by_name(failing: Venvs) -> None:
    with pytest.raises(BuildFailed, match=r"it needs Python >=3.99, and this node has .*; install that version"):
        failing.build(recipe("tiny", specifier=">=3.99"), quiet)


def test_a_disk_that_fills_in_the_middle_leaves_nothing_and_is_no_fault_of_the_requirements(tmp_path: Path) -> None:
    wheel(tmp_path / "w", "ballast", size=80 << 20)
    with small_disk(tmp_path / "disk", 64) as disk:
        failed = fails(Venvs(disk / "cache"), recipe(f"--find-links {tmp_path / 'w'}", "ballast"))
        assert failed.full and "No space left on device" in str(failed)
        with filled(disk):
            assert fails(Venvs(disk / "cache"), recipe(f"--find-links {tmp_path / 'w'}", "ballast")).full


def test_a_file_of_the_jobs_that_is_named_like_a_module_of_pips_does_no_harm(goods: Path, tmp_path: Path) -> None:
    (tmp_path / "email.py").write_text("raise SystemExit('mine')\n")
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {goods}\ntiny\n")
    made = Recipe("requirements.txt", file="requirements.txt", folder=str(tmp_path), digest="x")
    Venvs(tmp_path / "cache").use(made, quiet).release()
