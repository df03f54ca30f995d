"""Where a job came from, as its submitter says: the repository, the command that was typed, the machine and the user.

It is kept beside the specification and is no part of it: two jobs are the same job whoever sends them from wherever.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_DIFF = 2 << 20  # characters; the door lets no more in
MOST_NAMES = 1000

Line = Annotated[str, Field(max_length=4096)]
Names = Annotated[tuple[Line, ...], Field(max_length=MOST_NAMES)]


class _Told(BaseModel):
    """Lenient: a newer client may say more than this server knows."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Git(_Told):
    """A folder's repository when the job was sent."""

    commit: Annotated[str, Field(max_length=64)] | None = Field(None, description="none before the first commit")
    branch: Line | None = None
    remote: Line | None = Field(None, description="address of origin, without who signs in there")
    folder: Line = Field("", description="the folder's path in the repository")
    dirty: bool | None = Field(None, description="whether tracked files of the folder differ from the commit")
    changed: Names = Field((), description="those files, from the root of the repository")
    untracked: Names = Field((), description="files of the folder that git does not know, by name only")
    elsewhere: int = Field(0, ge=0, description="changed files that were not sent")
    diff: Annotated[str, Field(max_length=MOST_DIFF)] | None = Field(None, description="how the folder differs")
    note: Line | None = Field(None, description="what could not be learned, and why")


class Origin(_Told):
    host: Line = ""
    user: Line = ""
    command: Annotated[tuple[Line, ...], Field(max_length=1000)] = Field(
        (), description="what was typed, without what looks like a secret"
    )
    hidden: Annotated[dict[int, Line], Field(max_length=MOST_NAMES)] = Field(
        {},
        description="words of the job's own arguments or command that its records do not keep: position, what instead",
    )
    folder: Line | None = None
    python: Line = ""
    shoal: Line = ""
    clone_of: Line | None = Field(None, description="the job whose code this is; its repository is taken from there")
    git: Git | None = None
