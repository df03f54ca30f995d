"""What a process runs in, by name: every preset with its pins, and the reading of `environment:` into one value.

Five things may stand there: a preset, a file of the uploaded folder (requirements, pyproject, lock), the absolute path
of an interpreter or of a prefix (virtual environment, conda), and a container image. Standard library only and pure:
whether the path exists and the pins resolve is found out on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from shoal.catalogue import nearest
from shoal.contract import Environment
from shoal.errors import BadSpec, UnknownName

CPU, CUDA = "cpu", "cuda"
IMAGE = "image://"
PYTHON = "@python"  # begins a command; the shepherd puts the environment's interpreter in its place

_FILE = re.compile(
    r"(.+\.(?:txt|in|lock)|(?:.*/)?pyproject\.toml|(?:.*/)?pylock(?:\.[^./]+)?\.toml)(?:\[([\w.,\s-]+)\])?"
)
_CONDA = re.compile(r"(?:.*/)?(?:environment|conda)[\w.-]*\.ya?ml")
_REFERENCE = re.compile(
    r"[a-z0-9]+(?:[._:-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True)
class Preset:
    """One framework at one version, in one flavour: what is installed, for which Pythons, and until when it is kept."""

    name: str
    framework: str
    flavour: str
    lines: tuple[str, ...]  # as pip reads them
    pythons: tuple[str, ...]  # those its wheels exist for
    until: str  # the date from which on it may be left out
    about: str
    bare: tuple[str, ...] = ()  # installed without their dependencies, after the lines

    @property
    def environment(self) -> Environment:
        return Environment("preset", self.name, lines=self.lines, bare=self.bare, pythons=self.pythons)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "framework": self.framework,
            "flavour": self.flavour,
            "requirements": [*self.lines, *(f"{line}  # without its dependencies" for line in self.bare)],
            "pythons": list(self.pythons),
            "until": self.until,
            "about": self.about,
        }


@lru_cache(maxsize=256)
def read(text: str) -> Environment:
    """The environment behind what was written; UnknownName with the nearest preset, or BadSpec, otherwise."""
    if text in PRESETS:
        return PRESETS[text].environment
    if text.startswith(IMAGE):
        return _image(text)
    if text.startswith("/"):
        return _path(text)
    file = _FILE.fullmatch(text)
    if file:
        return _file(text, file)
    raise _wrong(text)


def is_file(text: str) -> bool:
    """Whether it names a file of the uploaded folder, such as requirements.txt."""
    return text not in PRESETS and not text.startswith((IMAGE, "/")) and _FILE.fullmatch(text) is not None


def _file(text: str, match: re.Match[str]) -> Environment:
    path, extras = match[1], match[2]
    if ".." in PurePosixPath(path).parts:
        raise BadSpec(f"{text!r} climbs out of the uploaded folder with '..'; put the file into it")
    if PurePosixPath(path).name == "Pipfile.lock":
        raise BadSpec(f"{text!r} is pipenv's own; write it out with 'pipenv requirements > requirements.txt'")
    if extras and not path.endswith("pyproject.toml"):
        raise BadSpec(f"{text!r} has no extras; only a pyproject.toml does, such as pyproject.toml[train]")
    names = tuple(name.strip() for name in extras.split(",") if name.strip()) if extras else ()
    return Environment("file", text, path=path, extras=names)


def _path(text: str) -> Environment:
    if _FILE.fullmatch(text) or _CONDA.fullmatch(text):
        raise BadSpec(
            f"{text!r} is a file outside the uploaded folder; give its path relative to the folder, such "
            f"as {PurePosixPath(text).name}, and send it along"
        )
    if ".." in PurePosixPath(text).parts:
        raise BadSpec(f"{text!r} holds '..'; give the plain path of an interpreter or of a prefix")
    return Environment("path", text, path=text)


def _image(text: str) -> Environment:
    """`image://registry/name:tag`, with `?auth=/path` for the node's file with the registry's credentials."""
    reference, _, query = text.removeprefix(IMAGE).partition("?")
    if not _REFERENCE.fullmatch(reference):
        raise BadSpec(
            f"{text!r} is not an image; write image://REGISTRY/NAME:TAG, such as "
            "image://registry.example.com/team/train:1"
        )
    auth = query.removeprefix("auth=")
    if query and (auth == query or not auth.startswith("/")):
        raise BadSpec(
            f"image {reference!r} takes nothing behind '?' but auth=/PATH, the file on the nodes with the registry's "
            "credentials (as 'podman login --authfile' writes it), never a password itself"
        )
    return Environment("image", text, image=reference, auth=auth)


def _wrong(text: str) -> BadSpec:
    if _CONDA.fullmatch(text):
        return BadSpec(
            f"{text!r} is conda's; make the environment with 'conda env create' and give the absolute "
            "path of its folder, such as /opt/conda/envs/train"
        )
    near = nearest(text, PRESETS)
    if near is None and ("/" in text or text.startswith((".", "python"))):
        return BadSpec(
            f"{text!r} is not an absolute path; a job runs in a copy of its folder on some node, so give "
            "the whole path of an interpreter or of its folder, such as /usr/bin/python3 or /opt/conda/envs/train"
        )
    if near is None:
        return BadSpec(
            f"{text!r} is no preset ({', '.join(PRESETS)}), no file such as requirements.txt or "
            "pyproject.toml, no absolute path of an interpreter and no image://; write one of these"
        )
    return UnknownName("environment", text, list(PRESETS), near)


# -- the table ---------------------------------------------------------------------------------------------------------

_ALL = ("3.10", "3.11", "3.12", "3.13", "3.14")
_COMMON = ("numpy", "scikit-learn", "pandas")  # what small examples of every framework import besides it


def _presets() -> Iterator[Preset]:
    yield Preset(
        "pytorch-2.13", "pytorch", CPU, ("torch==2.13.0", *_COMMON), _ALL, "2027-12-31",
        "PyTorch 2.13 as the index has it; where that offers a +cpu build, that one",
    )  # fmt: skip
    yield Preset(
        "pytorch-2.13-cuda", "pytorch", CUDA,
        ("--extra-index-url https://download.pytorch.org/whl/cu130", "torch==2.13.0+cu130", *_COMMON),
        _ALL, "2027-12-31", "PyTorch 2.13 for CUDA 13.0",
    )  # fmt: skip
    yield Preset(
        "tensorflow-2.21", "tensorflow", CPU, ("tensorflow-cpu==2.21.0", "scikit-learn"), _ALL[:4], "2027-12-31",
        "TensorFlow 2.21 with Keras 3, and tf_keras for fit under a distribution strategy",
        # With its dependencies it would bring the full tensorflow beside tensorflow-cpu.
        bare=("tf_keras==2.21.0",),
    )  # fmt: skip
    yield Preset(
        "tensorflow-2.21-cuda", "tensorflow", CUDA, ("tensorflow[and-cuda]==2.21.0", "scikit-learn"), _ALL[:4],
        "2027-12-31", "TensorFlow 2.21 with CUDA's libraries, and tf_keras", bare=("tf_keras==2.21.0",),
    )  # fmt: skip
    yield Preset(
        "xgboost-3.2", "xgboost", CPU, ("xgboost-cpu==3.2.0", *_COMMON), _ALL, "2027-12-31",
        "XGBoost 3.2 without the half gigabyte of NCCL",
    )  # fmt: skip
    yield Preset(
        "xgboost-3.2-cuda", "xgboost", CUDA, ("xgboost==3.2.0", *_COMMON), _ALL, "2027-12-31",
        "XGBoost 3.2 with NCCL, for GPUs",
    )  # fmt: skip
    yield Preset(
        "lightgbm-4.7", "lightgbm", CPU, ("lightgbm==4.7.0", *_COMMON), _ALL, "2027-12-31",
        "LightGBM 4.7; there is no wheel with CUDA",
    )  # fmt: skip
    yield Preset(
        "mxnet-1.9", "mxnet", CPU, ("mxnet==1.9.1", "numpy<1.24", "scikit-learn<1.4"), ("3.9", "3.10", "3.11"),
        "2026-12-31", "MXNet 1.9, whose project is archived: it works with NumPy before 1.24 only",
    )  # fmt: skip
    yield Preset(
        "mxnet-1.9-cuda", "mxnet", CUDA, ("mxnet-cu112==1.9.1", "numpy<1.24", "scikit-learn<1.4"),
        ("3.9", "3.10", "3.11"), "2026-12-31", "MXNet 1.9 for CUDA 11.2, which must be on the node",
    )  # fmt: skip
    yield Preset(
        "paddle-3.3", "paddle", CPU, ("paddlepaddle==3.3.1", "setuptools<81", "scikit-learn"), _ALL[:4], "2027-12-31",
        "Paddle 3.3; its CPU build has no parameter-server mode",
    )  # fmt: skip
    yield Preset(
        "paddle-3.3-cuda", "paddle", CUDA,
        ("--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/", "paddlepaddle-gpu==3.3.1",
         "setuptools<81", "scikit-learn"), _ALL[:4], "2027-12-31", "Paddle 3.3 for CUDA 12.6",
    )  # fmt: skip
    yield Preset(
        "jax-0.10", "jax", CPU, ("jax==0.10.2", "jaxlib==0.10.2", "scikit-learn"), _ALL[1:], "2027-06-30",
        "JAX 0.10 on the CPU, with gloo between processes",
    )  # fmt: skip
    yield Preset(
        "jax-0.10-cuda", "jax", CUDA, ("jax[cuda13]==0.10.2", "scikit-learn"), _ALL[1:], "2027-06-30",
        "JAX 0.10 with CUDA 13's libraries",
    )  # fmt: skip
    yield Preset(
        "sklearn-1.7", "sklearn", CPU, ("scikit-learn==1.7.2", "numpy", "pandas"), _ALL, "2027-12-31",
        "scikit-learn 1.7 with joblib",
    )  # fmt: skip


PRESETS: dict[str, Preset] = {preset.name: preset for preset in _presets()}
