"""The table of presets, and what may stand behind `environment:`."""

from __future__ import annotations

import re
from datetime import date

import pytest

from shoal.environments import PRESETS, is_file, read
from shoal.errors import BadSpec, UnknownName
from shoal.job.spec import parse

NAMED = ("pytorch-2.13", "tensorflow-2.21", "xgboost-3.2", "lightgbm-4.7", "mxnet-1.9", "paddle-3.3", "jax-0.10")


@pytest.mark.parametrize("name", NAMED)
def test_every_framework_has_a_preset_that_pins_it(name: str) -> None:
    preset = PRESETS[name]
    _, _, version = name.rpartition("-")
    assert preset.flavour == "cpu"
    assert any(re.match(rf"[\w-]+=={re.escape(version)}\.\d", line) for line in preset.lines)
    assert date.fromisoformat(preset.until)
    assert set(preset.pythons) <= {f"3.{minor}" for minor in range(9, 15)}


def test_a_cuda_flavour_is_the_same_version_for_gpus() -> None:
    flavours = [preset for preset in PRESETS.values() if preset.name.endswith("-cuda")]
    assert {preset.flavour for preset in flavours} == {"cuda"}
    assert all(PRESETS[preset.name.removesuffix("-cuda")].framework == preset.framework for preset in flavours)


def test_a_preset_reads_as_its_lines_and_its_pythons() -> None:
    found = read("tensorflow-2.21")
    assert (found.kind, found.bare) == ("preset", ("tf_keras==2.21.0",))
    assert "tensorflow-cpu==2.21.0" in found.lines and "3.14" not in found.pythons


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("requirements.txt", "file", "requirements.txt"),
        ("env/requirements.lock", "file", "env/requirements.lock"),
        ("pyproject.toml", "file", "pyproject.toml"),
        ("pylock.toml", "file", "pylock.toml"),
        ("uv.lock", "file", "uv.lock"),
        ("/usr/bin/python3", "path", "/usr/bin/python3"),
        ("/opt/conda/envs/train", "path", "/opt/conda/envs/train"),
    ],
)
def test_files_and_paths_are_told_apart(text: str, kind: str, path: str) -> None:
    found = read(text)
    assert (found.kind, found.path, is_file(text)) == (kind, path, kind == "file")


def test_extras_of_a_pyproject_are_read() -> None:
    assert read("pyproject.toml[train, gpu]").extras == ("train", "gpu")


def test_an_image_names_its_credentials_by_a_file() -> None:
    found = read("image://registry.example.com:5000/team/train:1?auth=/etc/shoal/auth.json")
    assert (found.image, found.auth) == ("registry.example.com:5000/team/train:1", "/etc/shoal/auth.json")


@pytest.mark.parametrize(
    ("text", "near"),
    [("pytorch-2.31", "pytorch-2.13"), ("pytorch", "pytorch-2.13"), ("tensorflow_2.21", "tensorflow-2.21"),
     ("xgboost-3.2-gpu", "xgboost-3.2")],
)  # fmt: skip
def test_an_unknown_preset_offers_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{near}"):
        read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".venv/bin/python", "is not an absolute path"),
        ("python3.12", "whole path of an interpreter"),
        ("../requirements.txt", "climbs out"),
        ("/home/me/requirements.txt", "relative to the folder, such as requirements.txt"),
        ("environment.yml", "conda env create"),
        ("Pipfile.lock", "pipenv requirements"),
        ("requirements.txt[train]", "only a pyproject.toml"),
        ("image://Not An Image", "write image://REGISTRY/NAME:TAG"),
        ("nonsense", "no preset"),
        ("/opt/../etc/python", "'..'"),
    ],
)
def test_what_cannot_be_an_environment_says_what_can(text: str, words: str) -> None:
    with pytest.raises(BadSpec, match=re.escape(words)):
        read(text)


def test_a_password_in_an_image_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadSpec) as refused:
        read("image://team/train:1?password=hunter2")
    assert "hunter2" not in refused.value.message


def test_the_job_file_says_what_is_wrong_with_its_environment() -> None:
    with pytest.raises(BadSpec, match=r"^environment: no environment is called 'jax-0.1'; did you mean 'jax-0.10'"):
        parse({"script": "train.py", "environment": "jax-0.1"})
