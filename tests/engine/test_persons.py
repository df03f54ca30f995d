"""Which operating-system user stands for whom; nobody is ever root, and a number once given stays."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from shoal.engine.isolation import Rules
from shoal.engine.persons import Persons
from shoal.errors import BadConfig


def test_a_number_that_was_handed_out_is_his_for_ever(tmp_path: Path) -> None:
    first = Persons(tmp_path / "uids.json", Rules())
    ada, bob = first.of("ada"), first.of("bob")
    assert (ada.uid, ada.gid, ada.home) == (70000, 70000, None) and bob.uid == 70001
    second = Persons(tmp_path / "uids.json", Rules())
    assert second.of("bob") == bob and second.of("ada") == ada
    assert (tmp_path / "uids.json").stat().st_mode & 0o077 == 0


def test_a_number_that_is_someone_elses_is_not_handed_out(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    persons = Persons(tmp_path / "uids.json", Rules(uids=(nobody, nobody + 1)))
    assert persons.of("ada").uid == nobody + 1
    with pytest.raises(BadConfig, match="widen the range"):
        persons.of("bob")


def test_the_table_goes_first(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    persons = Persons(tmp_path / "uids.json", Rules(users={"ada": "nobody", "bob": 12345}))
    persons.check()
    assert (persons.of("ada").uid, persons.of("ada").home) == (nobody.pw_uid, nobody.pw_dir)
    assert persons.of("bob").uid == 12345
    assert not (tmp_path / "uids.json").exists()


@pytest.mark.parametrize(("named", "said"), [("root", "is root"), ("no-such-user", "no user 'no-such-user'")])
def test_a_table_that_names_root_or_nobody_at_all_is_refused(tmp_path: Path, named: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        Persons(tmp_path / "uids.json", Rules(users={"ada": named})).check()


def test_a_user_of_the_same_name_counts_only_if_so_said_and_never_a_system_one(tmp_path: Path) -> None:
    persons = Persons(tmp_path / "uids.json", Rules(same_name=True))
    assert persons.of("root").uid == 70000
    assert persons.of("daemon").uid == 70001
    assert persons.of("nobody").uid == pwd.getpwnam("nobody").pw_uid
    assert Persons(tmp_path / "more.json", Rules()).of("nobody").uid == 70000


def test_a_torn_file_of_numbers_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "uids.json").write_text("{")
    with pytest.raises(BadConfig, match="restore it"):
        Persons(tmp_path / "uids.json", Rules()).of("ada")
    assert (tmp_path / "uids.json").read_text() == "{"
    assert [path.name for path in tmp_path.iterdir()] == ["uids.json"]
