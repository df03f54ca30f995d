from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shoal.client.folder import check_folder, leads_out, walk
from shoal.errors import BadSpec


def fill(root: Path, *paths: str) -> None:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)


def names(root: Path, ignore: bool = True) -> list[str]:
    return [found.path for found in walk(root, ignore)]


def test_every_file_is_found_in_the_order_of_paths(project: Path) -> None:
    fill(project, "train.py", "a/b/c.txt", "a/z.txt")
    assert names(project) == ["a/b/c.txt", "a/z.txt", "train.py"]


def test_gitignore_and_shoalignore_are_honoured_at_every_level(project: Path) -> None:
    fill(
        project,
        "train.py",
        "x.log",
        "keep.log",
        "data/big.bin",
        "src/x.tmp",
        "src/deep/x.tmp",
        "src/deep/y.py",
        "other/x.tmp",
    )
    (project / ".gitignore").write_text("*.log\n!keep.log\n/data/\n")
    (project / "src" / ".shoalignore").write_text("*.tmp\n")
    assert names(project) == [
        ".gitignore", "keep.log", "other/x.tmp", "src/.shoalignore", "src/deep/y.py", "train.py",
    ]  # fmt: skip


def test_a_rule_further_down_overrules_one_above(project: Path) -> None:
    fill(project, "a.csv", "data/b.csv", "data/deep/c.csv")
    (project / ".gitignore").write_text("*.csv\n")
    (project / "data" / ".gitignore").write_text("!*.csv\n")
    assert [name for name in names(project) if name.endswith(".csv")] == ["data/b.csv", "data/deep/c.csv"]


def test_shoalignore_has_the_last_word_over_gitignore(project: Path) -> None:
    fill(project, "weights.pt", "train.py")
    (project / ".gitignore").write_text("*.pt\n")
    (project / ".shoalignore").write_text("!weights.pt\n")
    assert "weights.pt" in names(project)


def test_an_anchored_rule_holds_only_where_it_stands(project: Path) -> None:
    fill(project, "out/a", "src/out/a", "src/keep/a")
    (project / "src").joinpath(".gitignore").write_text("/out\n")
    assert names(project) == ["out/a", "src/.gitignore", "src/keep/a"]


def test_a_rule_for_folders_leaves_files_of_that_name(project: Path) -> None:
    fill(project, "a/build/x", "build2", "b/build")
    (project / ".gitignore").write_text("build/\n")
    assert names(project) == [".gitignore", "b/build", "build2"]


def test_git_caches_and_environments_never_go_along(project: Path) -> None:
    fill(project, ".git/HEAD", "a/__pycache__/x.pyc", ".venv/bin/python", "sub/.git/HEAD", "train.py")
    (project / ".gitignore").write_text("!.git\n!.venv\n!__pycache__\n")
    assert names(project) == [".gitignore", "train.py"]


def test_data_is_taken_as_it_is(project: Path) -> None:
    fill(project, ".git/HEAD", "x.log")
    (project / ".gitignore").write_text("*.log\n")
    assert names(project, ignore=False) == [".git/HEAD", ".gitignore", "x.log"]


def test_an_ignored_folder_is_not_entered(project: Path) -> None:
    fill(project, "train.py", "secret/x")
    (project / "secret").chmod(0)
    try:
        (project / ".gitignore").write_text("secret/\n")
        assert names(project) == [".gitignore", "train.py"]
    finally:
        (project / "secret").chmod(0o700)


def test_sockets_and_pipes_are_left_out(project: Path) -> None:
    fill(project, "train.py")
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(project / "socket"))
        assert names(project) == ["train.py"]


def test_links_inside_the_folder_are_kept_as_links(project: Path) -> None:
    fill(project, "data/a.txt")
    (project / "here").symlink_to("data/a.txt")
    (project / "data" / "up").symlink_to("../data")
    (project / "absolute").symlink_to(project / "data" / "a.txt")
    (project / "nowhere").symlink_to("not/there")
    links = {found.path: found.link for found in walk(project) if found.link}
    assert links == {"here": "data/a.txt", "data/up": "../data", "absolute": "data/a.txt", "nowhere": "not/there"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "a/../../outside", "/etc"])
def test_a_link_that_leaves_the_folder_is_refused_by_name(project: Path, target: str) -> None:
    (project / "a").mkdir()
    (project / "bad-link").symlink_to(target)
    with pytest.raises(BadSpec, match=r"bad-link is a symbolic link to .* outside"):
        names(project)


def test_a_link_through_an_ignored_link_that_leaves_is_refused(project: Path) -> None:
    (project / "hidden").symlink_to("/etc")
    (project / "visible").symlink_to("hidden/passwd")
    (project / ".gitignore").write_text("hidden\n")
    with pytest.raises(BadSpec, match="visible"):
        names(project)


def test_an_ignored_link_may_lead_anywhere(project: Path) -> None:
    fill(project, "train.py")
    (project / "datasets").symlink_to("/etc")
    (project / ".shoalignore").write_text("datasets\n")
    assert names(project) == [".shoalignore", "train.py"]


def test_a_name_that_is_not_utf8_is_refused(project: Path) -> None:
    (Path(os.fsdecode(os.fsencode(project) + b"/caf\xe9.txt"))).write_text("x")
    with pytest.raises(BadSpec, match="not UTF-8"):
        names(project)


@pytest.mark.parametrize("folder", ["/", "~"])
def test_the_root_and_the_home_folder_are_never_sent(folder: str) -> None:
    with pytest.raises(BadSpec, match="never uploaded; move the script into a folder of its own"):
        check_folder(folder)


def test_shoal_home_and_what_holds_it_are_never_sent(own_home: Path) -> None:
    own_home.mkdir()
    with pytest.raises(BadSpec, match="is SHOAL_HOME"):
        check_folder(own_home)
    with pytest.raises(BadSpec, match="holds SHOAL_HOME"):
        check_folder(own_home.parent)


def test_a_link_to_a_dangerous_folder_is_seen_through(project: Path) -> None:
    (project / "root").symlink_to("/")
    with pytest.raises(BadSpec, match="root of the file system"):
        check_folder(project / "root")


def test_a_folder_in_shoal_home_may_be_sent(own_home: Path) -> None:
    work = own_home / "work" / "job"
    work.mkdir(parents=True)
    assert check_folder(work) == work


def test_a_file_instead_of_a_folder_is_said(project: Path) -> None:
    fill(project, "train.py")
    with pytest.raises(BadSpec, match="is a file"):
        check_folder(project / "train.py")


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("a", "b", False),
        ("a/b", "../c", False),
        ("a", "../c", True),
        ("a/b", "../../c", True),
        ("a", "/b", True),
        ("a", "..", True),
    ],
)
def test_links_are_judged_by_their_words(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out
