"""The server as a process: one per home, found by its note, the port kept, ended cleanly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from shoal.errors import ServerAway, ServerRunning
from shoal.home import Home
from shoal.server import process
from tests.server.conftest import Site, eventually

pytestmark = pytest.mark.real


def test_it_starts_answers_and_stops_and_the_note_says_where(home: Home) -> None:
    assert process.status(home) is None
    assert process.stop(home) is None
    note = process.start(home)
    assert process.status(home) == home.read_note() == note
    assert process.answers(note)
    assert urlsplit(note.url).hostname == "127.0.0.1"
    assert home.token_file.stat().st_mode & 0o777 == 0o600
    assert "operating-system user" in home.server_log.read_text()
    assert process.stop(home) == note
    assert process.status(home) is None
    assert not process.answers(note)


def test_a_second_server_on_the_same_home_is_refused_with_the_address_of_the_first(home: Home) -> None:
    note = process.start(home)
    with pytest.raises(ServerRunning) as caught:
        process.start(home)
    assert caught.value.url == note.url
    second = subprocess.run(process.command(home, {}), capture_output=True, text=True)
    assert second.returncode == 3
    assert note.url in second.stderr
    assert process.answers(note)


def test_the_port_and_the_token_survive_a_restart_also_after_a_kill(home: Home) -> None:
    first, token = process.start(home), home.read_token()
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: process.status(home) is None)
    second = process.start(home)
    assert (second.url, home.read_token()) == (first.url, token)
    assert second.pid != first.pid


def test_a_port_that_was_taken_meanwhile_is_replaced_with_a_warning(home: Home) -> None:
    first = process.start(home)
    process.stop(home)
    port = urlsplit(first.url).port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        second = process.start(home)
    assert second.url != first.url
    assert f"port {port} of the last start is taken" in home.server_log.read_text()


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_says_so(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ServerAway, match="cannot listen on"):
            process.start(home, {"port": other.getsockname()[1]})


def test_a_server_that_cannot_start_tells_why(home: Home) -> None:
    home.create()
    home.config_file.write_text("[server]\nhots = 1\n")
    with pytest.raises(ServerAway, match="did you mean 'host'"):
        process.start(home)


def test_a_wrong_flag_is_answered_at_once(home: Home) -> None:
    answer = subprocess.run([*process.command(home, {}), "--nodes", "two"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "--nodes" in answer.stderr


def test_options_become_flags() -> None:
    options = {"nodes": 2, "tls_cert": None, "behind_proxy": True, "memory": "1GiB"}
    line = process.command(Home.here(), options)
    assert line[-5:] == ["--nodes", "2", "--behind-proxy", "--memory", "1GiB"]


def test_the_databases_address_is_never_in_a_command_line(home: Home) -> None:
    address = f"sqlite:///{home.root}/other.db"
    options = {"nodes": 2, "database": address}
    assert address not in process.command(home, options)
    assert process.environment(options)["SHOAL_DATABASE"] == address
    note = process.start(home, options)
    assert address not in Path(f"/proc/{note.pid}/cmdline").read_text()
    assert (home.root / "other.db").exists() and not home.database.exists()


def test_a_machine_can_present_itself_as_several_nodes(home: Home) -> None:
    site = Site(home, nodes=2, cpus=2, gpus=4)
    nodes = site.root.get("/nodes").json()["nodes"]
    assert [(node["cpus"], len(node["gpus"])) for node in nodes] == [(2.0, 4), (2.0, 4)]


def test_a_pid_in_a_stale_note_is_never_signalled(home: Home) -> None:
    """The note of a dead server may name a process that is somebody else by now: ours, here."""
    note = process.start(home)
    process.stop(home)
    home.write_note(type(note)(note.url, os.getpid(), note.version, note.started_at))
    assert process.status(home) is None
    assert process.stop(home) is None


def test_the_server_ends_with_status_0_on_sigterm_and_jobs_go_on(home: Home) -> None:
    home.create()
    child = subprocess.Popen(process.command(home, {}), stdout=subprocess.DEVNULL)
    eventually(lambda: (note := process.status(home)) is not None and process.answers(note))
    note, token = home.read_note(), home.read_token()
    assert note is not None
    client = httpx.Client(base_url=f"{note.url}/api/v1", headers={"authorization": f"Bearer {token}"}, trust_env=False)
    job = client.post("/jobs", json={"spec": {"command": ["sleep", "600"]}}).json()["id"]
    pid = eventually(lambda: [rank["pid"] for rank in client.get(f"/jobs/{job}").json()["ranks"] if rank["pid"]])[0]
    child.terminate()
    assert child.wait(20) == 0
    os.kill(pid, 0)  # still there
    process.start(home)
    assert client.post(f"/jobs/{job}/stop", json={"force": True}).status_code == 200
    eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == "stopped")


def test_a_token_of_another_database_is_replaced(home: Home) -> None:
    process.start(home)
    first = home.read_token()
    process.stop(home)
    for file in home.root.glob("home.db*"):
        file.unlink()
    site = Site(home)
    assert home.read_token() != first
    assert site.root.get("/whoami").json()["admin"] is True


def test_a_database_that_is_not_one_is_an_error_that_says_so(home: Home) -> None:
    home.create()
    home.database.write_text("this is not a database, however long it may be" * 100)
    with pytest.raises(ServerAway, match="not a SQLite database"):
        process.start(home)
    assert home.database.read_text().startswith("this is not")
