"""What looks like a secret is hidden; what only sounds like one is not."""

from __future__ import annotations

import pytest

from shoal._lib.privacy import hide, hide_text, is_secret_name, plain_address, secret_values

SECRET = "hunter2-is-long"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "--password",
        "awsSecretAccessKey",
        "db.passwd",
        "OPENAI_KEY",
        "--auth",
        "PGPASS-WORD-PWD",
    ],
)
def test_a_name_that_says_secret_is_one(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["--tokenizer", "--max-tokens", "LR", "--key", "PATH", "--author", "PYTHONPATH", "--compass"]
)
def test_a_name_that_only_sounds_like_it_is_none(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "words",
    [
        ["--env", f"API_KEY={SECRET}"],
        [f"-eAPI_KEY={SECRET}"],
        ["--token", SECRET],
        ["--token", f"-{SECRET}"],
        [f"--db-password={SECRET}"],
        [f"https://me:{SECRET}@host/x"],
        [f"postgresql://me:{SECRET}/x@host/db"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["sh", "-c", f"export HF_TOKEN={SECRET}; python train.py"],
        ["ghp_0123456789abcdefghij"],
        ["sh", "-c", "login shl_abcdefghij_0123456789abcdef"],
        ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"],
    ],
)
def test_a_secret_in_a_command_line_is_hidden(words: list[str]) -> None:
    shown = " ".join(hide(["shoal", "run", *words, "after"]))
    assert SECRET not in shown and "ghp_0" not in shown and "shl_a" not in shown and "eyJ" not in shown
    assert "***" in shown and shown.endswith("after") and shown.startswith("shoal run")


def test_what_is_no_secret_stays_word_for_word() -> None:
    words = [
        "shoal",
        "run",
        "train.py",
        "--max-tokens",
        "512",
        "--tokenizer=gpt2",
        "--env",
        "LR=0.1",
        "--",
        "-x",
        "a b",
    ]
    assert hide(words) == words


def test_a_flag_with_a_secret_name_does_not_hide_the_next_flag() -> None:
    assert hide(["--use-token", "--epochs", "5"]) == ["--use-token", "--epochs", "5"]


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_occurs() -> None:
    known = secret_values({"MY_TOKEN": "abcdefgh", "LR": "0.123456", "A_PASSWORD": "abc"})
    assert known == ["abcdefgh"]
    assert hide(["train.py", "-k", "abcdefgh", "--name=x-abcdefgh-y", "0.123456"], known) == [
        "train.py", "-k", "***", "--name=x-***-y", "0.123456",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://github.com/a/b.git", "https://github.com/a/b.git"),
        ("https://me:hunter2@github.com/a/b.git", "https://github.com/a/b.git"),
        ("https://ghp_0123456789abcdefghij@github.com/a/b", "https://github.com/a/b"),
        ("https://me:pa@ss/word@github.com/a/b", "https://github.com/a/b"),
        ("https://github.com/a/b?private_token=hunter2#x", "https://github.com/a/b"),
        ("git@github.com:a/b.git", "github.com:a/b.git"),
        ("oauth2:hunter2@github.com:a/b.git", "github.com:a/b.git"),
        ("ssh://git@host:2222/a/b", "ssh://host:2222/a/b"),
        ("git+https://me:hunter2@host/a@0123456", "git+https://0123456"),
        ("/srv/git/a@b.git", "/srv/git/a@b.git"),
        ("../a", "../a"),
        ("", ""),
    ],
)
def test_an_address_is_kept_without_who_signs_in(address: str, kept: str) -> None:
    assert plain_address(address) == kept


def test_a_secret_in_the_path_of_an_address_is_hidden_by_its_looks() -> None:
    assert plain_address("https://host/glpat-0123456789abcdef/b") == "https://host/***/b"


def test_an_address_that_could_hold_a_password_is_cut_rather_than_shown() -> None:
    assert hide_text("batch=32:lr=0.1 see https://host/x@2") == "batch=32:lr=0.1 see https://***@2"
