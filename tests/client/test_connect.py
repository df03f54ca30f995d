from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shoal.client import connect as module
from shoal.client.connect import connect, current, here
from shoal.errors import NotSignedIn, ServerAway
from shoal.home import Home, ServerNote, write_private
from tests.client.fake import FakeServer


@pytest.fixture
def home(own_home: Path) -> Home:
    made = Home(own_home)
    made.create()
    return made


def running(home: Home, server: FakeServer) -> None:
    home.write_note(ServerNote(server.url, os.getpid(), "0.1.0", 0.0))
    write_private(home.token_file, "owner-token\n")


def test_arguments_come_before_everything(monkeypatch: pytest.MonkeyPatch, home: Home, server: FakeServer) -> None:
    running(home, server)
    monkeypatch.setenv("SHOAL_URL", "http://elsewhere:1")
    monkeypatch.setenv("SHOAL_TOKEN", "other")
    api = connect("http://here:2", "mine")
    assert (api.url, api.token) == ("http://here:2", "mine")


def test_the_environment_comes_before_the_home(monkeypatch: pytest.MonkeyPatch, home: Home, server: FakeServer) -> None:
    running(home, server)
    monkeypatch.setenv("SHOAL_URL", "http://elsewhere:1/")
    monkeypatch.setenv("SHOAL_TOKEN", "other")
    api = connect()
    assert (api.url, api.token) == ("http://elsewhere:1", "other")


def test_a_named_server_without_a_token_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSignedIn, match="set SHOAL_TOKEN"):
        connect("http://elsewhere:1")


def test_naming_the_server_of_this_home_takes_its_token(home: Home, server: FakeServer) -> None:
    running(home, server)
    assert connect(server.url).token == "owner-token"


def test_a_fingerprint_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_FINGERPRINT", "ab" * 32)
    assert connect("https://team.example", "t").fingerprint == "ab" * 32


def test_the_running_server_of_this_home_is_used(home: Home, server: FakeServer) -> None:
    running(home, server)
    api = connect()
    assert (api.url, api.token) == (server.url, "owner-token")


def test_here_ignores_the_named_server(monkeypatch: pytest.MonkeyPatch, home: Home, server: FakeServer) -> None:
    running(home, server)
    monkeypatch.setenv("SHOAL_URL", "http://elsewhere:1")
    assert here().url == server.url


def test_no_server_and_not_to_be_started_says_what_to_do(home: Home) -> None:
    with pytest.raises(ServerAway, match="shoal server start"):
        connect(start=False)


def test_a_note_of_a_server_that_died_is_not_believed(home: Home) -> None:
    gone = FakeServer()
    running(home, gone)
    gone.close()
    with pytest.raises(ServerAway):
        connect(start=False)


def test_a_note_that_cannot_be_read_is_not_believed(home: Home) -> None:
    home.note_file.write_text("{half")
    with pytest.raises(ServerAway):
        connect(start=False)


def test_a_connection_is_kept_while_it_answers(home: Home, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_current", None)
    running(home, server)
    first = current()
    assert current() is first
    monkeypatch.setenv("SHOAL_TOKEN", "another")
    assert current().token == "another"


def test_a_server_that_dies_while_starting_shows_its_last_lines(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "executable", str(stand_in(home, "import sys; print('the database is read-only'); sys.exit(7)"))
    )
    home.create()
    home.server_log.write_text("what an earlier server said\n")
    with pytest.raises(ServerAway, match=r"ended with code 7 while starting.*\n.*the database is read-only") as caught:
        connect()
    assert caught.value.facts["exit_code"] == 7
    assert "an earlier server" not in caught.value.message


def test_the_second_of_two_that_start_at_once_waits_for_the_first(
    home: Home, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server we start exits with 3 because another holds the home; that one's note appears a moment later."""
    note = ServerNote(server.url, os.getpid(), "0.1.0", 0.0)
    other = Home(home.root / "other")
    other.create()
    running(other, server)
    files = [str(other.token_file), str(other.note_file)]
    code = f"import shutil, sys; [shutil.copy2(file, {str(home.root)!r}) for file in {files}]; sys.exit(3)"
    monkeypatch.setattr(sys, "executable", str(stand_in(home, code)))
    assert connect().url == note.url


def test_a_home_that_cannot_be_made_says_what_to_do(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    (project / "file").touch()
    monkeypatch.setenv("SHOAL_HOME", str(project / "file" / "home"))
    with pytest.raises(ServerAway, match="set SHOAL_HOME to a folder"):
        connect()


def test_a_server_that_never_answers_is_given_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.5)
    monkeypatch.setattr(sys, "executable", str(stand_in(home, "import time; time.sleep(3)")))
    with pytest.raises(ServerAway, match=r"did not answer within 0\.5 s"):
        connect()


def stand_in(home: Home, code: str) -> Path:
    """A program that plays the interpreter: whatever it is asked to run, it runs `code`."""
    program = home.root / "python"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    return program
