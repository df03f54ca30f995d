from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import BadConfig
from shoal.home import Home
from shoal.job.fields import Resources
from shoal.server.settings import SIZES, read_settings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_without_a_file_everything_has_a_default(home: Home) -> None:
    settings = read_settings(home, {})
    assert settings.server.host == "127.0.0.1"
    assert settings.server.port is None
    assert settings.sizes == SIZES


def test_the_file_is_read_and_flags_go_before_it(home: Home) -> None:
    home.config_file.write_text(
        '[server]\nnodes = 3\ncpus = 2\nmemory = "4GiB"\n[sizes.tiny]\ncpu = 0.5\nmemory = "1GiB"'
    )
    settings = read_settings(home, {"nodes": 5, "cpus": None, "memory": None})
    assert (settings.server.nodes, settings.server.cpus, settings.server.memory) == (5, 2.0, 4 << 30)
    assert settings.sizes == {"tiny": Resources(cpu=0.5, memory=1 << 30)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nhots = 'x'", "did you mean 'host'"),
        ("[sever]\n", "did you mean 'server'"),
        ("[sizes.big]\ncpus = 2", "did you mean 'cpu'"),
        ("[server]\nport = 70000", "server.port"),
        ("[server]\nmemory = '4 apples'", "not a size"),
        ("[sizes.big]\nmemory = '1 KiB'", "sizes.big.memory"),
        ("server = 3", "[server]"),
        ("[server", "not TOML"),
        ("[server]\ntls_cert = '/x'", "tls_key"),
        ("[isolation]\nmod = 'auto'", "did you mean 'mode'"),
        ("[isolation]\nmode = 'jail'", "isolation.mode"),
        ("[isolation]\nuids = '5-x'", "not a range"),
        ("[isolation]\nuids = '9000-8000'", "ends before it begins"),
        ("[isolation]\nuids = '0-70000'", "isolation.uids"),
        ("[isolation.users]\nada = 0", "isolation.users.ada"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key_and_what_to_do(home: Home, text: str, said: str) -> None:
    home.config_file.write_text(text)
    with pytest.raises(BadConfig) as caught:
        read_settings(home, {})
    assert said in str(caught.value)


def test_isolation_is_a_table_of_its_own(home: Home) -> None:
    home.config_file.write_text(
        '[isolation]\nmode = "user"\nsame_name = true\nuids = "5000-5999"\nvisible = ["/home/data"]\n'
        '[isolation.users]\nada = "al"\nbob = 4000\n'
    )
    rules = read_settings(home, {}).isolation.rules()
    assert (rules.mode, rules.same_name, rules.uids, rules.visible) == ("user", True, (5000, 5999), ("/home/data",))
    assert rules.users == {"ada": "al", "bob": 4000}
    assert read_settings(Home(home.root / "none"), {}).isolation.mode == "auto"


def test_a_file_that_is_a_folder_is_refused(home: Home) -> None:
    home.config_file.mkdir()
    with pytest.raises(BadConfig, match="cannot be read"):
        read_settings(home, {})


def test_the_databases_variable_goes_before_the_file_and_behind_a_flag(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    home.config_file.write_text('[server]\ndatabase = "sqlite:////file.db"\n')
    monkeypatch.delenv("SHOAL_DATABASE", raising=False)
    assert read_settings(home, {}).server.database == "sqlite:////file.db"
    monkeypatch.setenv("SHOAL_DATABASE", "sqlite:////variable.db")
    assert read_settings(home, {"database": None}).server.database == "sqlite:////variable.db"
    assert read_settings(home, {"database": "sqlite:////flag.db"}).server.database == "sqlite:////flag.db"


def test_labels_are_a_table_in_the_file_and_pairs_in_a_flag(home: Home) -> None:
    home.create()
    home.config_file.write_text('[server]\nlabels = {rack = "r1"}\n')
    assert read_settings(home, {}).server.labels == {"rack": "r1"}
    assert read_settings(home, {"labels": "rack=r2,disk=ssd"}).server.labels == {"rack": "r2", "disk": "ssd"}
    with pytest.raises(BadConfig, match="rack=r1,disk=ssd"):
        read_settings(home, {"labels": "rack"})
