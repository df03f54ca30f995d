"""What an attempt ran in: its nodes' own words, checked, and put together as one record for people.

A node says what machine it is, which interpreter its ranks run under, what is installed there, and with which command
the first rank of each role was started. Nodes mostly agree, so the record says it once and names only who differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import BadRequest

MOST_PACKAGES = 20_000
MOST_WORDS = 5_000

# Distributions whose versions decide what a run computes, and the names people know them by.
FRAMEWORKS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "keras": "keras",
    "tf-keras": "tf_keras",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
    "lightgbm": "lightgbm",
    "mxnet": "mxnet",
    "paddlepaddle": "paddle",
    "paddlepaddle-gpu": "paddle",
    "horovod": "horovod",
    "byteps": "byteps",
    "lightning": "lightning",
    "pytorch-lightning": "lightning",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "torchft-nightly": "torchft",
    "scikit-learn": "scikit-learn",
    "mpi4py": "mpi4py",
    "numpy": "numpy",
}
_CUDA = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")

Short = Annotated[str, Field(max_length=1000)]
Word = Annotated[str, Field(max_length=4096)]
Words = Annotated[tuple[Word, ...], Field(max_length=MOST_WORDS)]
Packages = Annotated[dict[Short, Short], Field(max_length=MOST_PACKAGES)]


class _Said(BaseModel):
    """Lenient: a shepherd of another version may say more than this server knows."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Host(_Said):
    """The machine."""

    host: Short = ""
    system: Short = ""
    kernel: Short = ""
    machine: Short = ""
    cpu: Short = ""
    cpus: int | None = None
    memory: int | None = None
    gpus: Annotated[tuple[Short, ...], Field(max_length=1000)] = ()
    driver: Short = ""


class Interpreter(_Said):
    path: Word
    version: Short = ""


class Command(_Said):
    """How a rank was started; variables by name only, because values may be secret."""

    role: Short
    argv: Words
    env: Words = ()


class NodeRecord(_Said):
    """What one shepherd says. Packages are None until they are known, and for programs that are no Python."""

    host: Host = Host()
    commands: Annotated[dict[Short, Command], Field(max_length=1000)] = {}
    interpreter: Interpreter | None = None
    packages: Packages | None = None
    sources: Packages = {}
    cuda: Short | None = None
    like: Short | None = Field(None, description="a node of the attempt on which the same is installed")
    note: Word | None = None

    @classmethod
    def read(cls, raw: Any) -> NodeRecord:
        """From what came over the wire; BadRequest names the first thing that is wrong with it."""
        try:
            return cls.model_validate(raw)
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise BadRequest(f"the record's {where} is wrong: {first['msg']}") from None

    def without(self, hidden: Mapping[str, str]) -> NodeRecord:
        """The same with some words of its commands replaced: the node cannot know all that is secret to the user."""
        commands = {
            name: one.model_copy(update={"argv": tuple(hidden.get(word, word) for word in one.argv)})
            for name, one in self.commands.items()
        }
        return self.model_copy(update={"commands": commands})

    def installed(self) -> str:
        """A digest of what is installed here; empty when that is not known."""
        told = json.dumps([self.packages, self.sources, self.cuda], sort_keys=True)
        return sha256(told.encode()).hexdigest() if self.packages else ""

    def as_on(self, node: str) -> NodeRecord:
        """The same in short: what is installed here is what is installed there. Thousands of nodes say it once."""
        return self.model_copy(update={"packages": None, "sources": {}, "cuda": None, "like": node})

    def filled(self, nodes: Mapping[str, NodeRecord]) -> NodeRecord:
        """What `as_on` left out, put back."""
        there = nodes.get(self.like or "")
        if there is None:
            return self
        return self.model_copy(update={"packages": there.packages, "sources": there.sources, "cuda": there.cuda})

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)


def hidden_words(arguments: Sequence[str], hidden: Mapping[str, str]) -> dict[str, str]:
    """Word → what is kept in its place, from a job's arguments and the positions its submitter named."""
    return {arguments[int(at)]: kept for at, kept in hidden.items() if int(at) < len(arguments)}


def put_together(nodes: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of one attempt, from what its nodes said and what it was given; None when nobody has said a word."""
    if not nodes and not inputs:
        return None
    read = {name: NodeRecord.model_validate(raw) for name, raw in nodes.items()}
    said = {name: one.filled(read) for name, one in read.items()}
    commands = _first_of_roles(said)
    lead = said.get(_leader(said), NodeRecord())
    return {
        "nodes": {name: _about(one, lead) for name, one in said.items()},
        "interpreter": None if lead.interpreter is None else lead.interpreter.model_dump(),
        "packages": lead.packages or {},
        "sources": lead.sources,
        "frameworks": frameworks(lead.packages or {}, lead.cuda),
        "inputs": dict(inputs),
        "commands": {role: list(one.argv) for role, one in commands.items()},
        "environment": {role: list(one.env) for role, one in commands.items()},
        "note": lead.note,
    }


def frameworks(packages: Mapping[str, str], cuda: str | None = None) -> dict[str, str]:
    """The versions people ask for first, by the names they know."""
    found = {name: packages[package] for package, name in FRAMEWORKS.items() if package in packages}
    told = cuda or next((version for package, version in packages.items() if _CUDA.fullmatch(package)), "")
    return {**found, "cuda": told} if told else found


def _leader(said: Mapping[str, NodeRecord]) -> str:
    """The node whose word stands for all: where the first worker runs, else the first that knows its packages."""
    by_rank = {member: node for node, one in said.items() for member in one.commands}
    known = [node for node, one in said.items() if one.packages]
    return by_rank.get("worker-0") or by_rank.get("chief-0") or next(iter([*known, *said]), "")


def _first_of_roles(said: Mapping[str, NodeRecord]) -> dict[str, Command]:
    members = [(*_numbered(name), command) for one in said.values() for name, command in one.commands.items()]
    found: dict[str, Command] = {}
    for _, _, command in sorted(members, key=lambda member: member[:2]):
        found.setdefault(command.role, command)
    return found


def _numbered(member: str) -> tuple[str, int]:
    role, _, number = member.rpartition("-")
    return role, int(number) if number.isdigit() else 0


def _about(one: NodeRecord, lead: NodeRecord) -> dict[str, Any]:
    """A node's facts, with what differs there from the leader's word: packages by name, None for a missing one."""
    found = one.host.model_dump(mode="json", exclude_defaults=True)
    if one.interpreter != lead.interpreter and one.interpreter is not None:
        found["interpreter"] = one.interpreter.model_dump()
    if one.packages is not None and one.packages != lead.packages:
        mine, theirs = one.packages, lead.packages or {}
        names = sorted(mine.keys() | theirs.keys())
        found["packages"] = {name: mine.get(name) for name in names if mine.get(name) != theirs.get(name)}
    return found
