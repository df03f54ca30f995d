"""An environment as a container image: a Containerfile from a preset or requirements, built and pushed from here.

podman or docker does the work, whichever is found. Credentials of a registry are named, never given: a file as their
own `login` writes it, or the name of a variable that holds the password.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal import environments
from shoal._lib import pythons, requirements
from shoal.errors import BadSpec, StartFailed

BASE = "docker.io/library/python:{}-slim"
CONTEXT = "/shoal-context"  # where the build sees the requirements; nothing of it stays in the image
PROGRAMS = ("podman", "docker")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What an image is made of: the text of its Containerfile, and the folder the build sees."""

    containerfile: str
    folder: Path | None = None  # the user's own; None when `files` is all there is
    files: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Credentials:
    """Where the registry's credentials are: a file, or a user and the variable with his password."""

    file: Path | None = None
    user: str | None = None
    password_variable: str | None = None

    def check(self) -> None:
        if self.file is not None and not self.file.is_file():
            raise BadSpec(f"there is no file {self.file} with credentials; write one with 'podman login --authfile'")
        if bool(self.user) != bool(self.password_variable):
            raise BadSpec("a user and the variable with his password belong together: give --user and --password-env")
        if self.password_variable and self.password_variable not in os.environ:
            raise BadSpec(f"the variable {self.password_variable} is not set; it is to hold the registry's password")


def recipe(environment: str, base: str | None = None, folder: Path | None = None) -> Recipe:
    """The image of a preset, or of a requirements file in `folder`; BadSpec for what is used as it is."""
    wanted = environments.read(environment)
    if wanted.kind == "preset":
        version = _version(wanted.pythons)
        steps = ["-r requirements.txt", *(f"--no-deps {line}" for line in wanted.bare)]
        files = {"requirements.txt": "".join(f"{line}\n" for line in wanted.lines)}
        return Recipe(render(environment, base or BASE.format(version), steps), files=files)
    if wanted.kind != "file":
        raise BadSpec(
            f"{environment!r} is not built but used as it is; make an image of a preset or a requirements file"
        )
    return _of_file(environment, wanted.path, tuple(wanted.extras), base, folder or Path())


def render(name: str, base: str, steps: list[str]) -> str:
    """The text of a Containerfile that installs with these arguments of pip."""
    install = [
        f"RUN --mount=type=bind,target={CONTEXT} cd {CONTEXT} && python3 -m pip install --no-cache-dir {step}"
        for step in steps
    ]
    head = f"# {name}, as Shoal would build it."
    return "\n".join([head, f"FROM {base}", *install, "ENV PYTHONUNBUFFERED=1", ""])


def build(made: Recipe, tag: str, tell: Tell, containerfile: Path | None = None) -> None:
    """Builds the image under `tag`; StartFailed, with the program's last words, when it cannot be."""
    program = find_program()
    with _context(made) as (folder, file):
        target = containerfile or file
        target.write_text(made.containerfile)
        _run([program, "build", "--tag", tag, "--file", str(target), str(folder)], tell)


def push(tag: str, credentials: Credentials, tell: Tell) -> None:
    """Pushes the image to the registry its tag names."""
    credentials.check()
    program = find_program()
    with tempfile.TemporaryDirectory(prefix="shoal-auth-") as private:
        words, auth = [program], credentials.file
        if credentials.user:
            auth = Path(private) / "config.json"
            _log_in(program, tag, credentials, auth)
        if Path(program).name == "docker":
            words += [f"--config={auth.parent}", "push"] if auth else ["push"]
        else:
            words += ["push", f"--authfile={auth}"] if auth else ["push"]
        _run([*words, tag], tell)


def find_program() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise StartFailed(
            "neither podman nor docker is on PATH; install one of them, or take the Containerfile with -o"
        )
    return found


def _of_file(environment: str, path: str, extras: Sequence[str], base: str | None, folder: Path) -> Recipe:
    if not (folder / path).is_file():
        raise BadSpec(f"there is no {folder / path}; check the path")
    try:
        found = requirements.read(folder, path, extras)
        version = _version(pythons.acceptable(specifier=found.python))
    except (requirements.Unreadable, ValueError) as wrong:
        raise BadSpec(str(wrong)) from None
    image = base or BASE.format(version)
    if not (found.lines or path.endswith(".toml")):
        return Recipe(render(environment, image, [f"-r {path}"]), folder=folder)
    files = {"requirements.txt": "".join(f"{line}\n" for line in found.lines)}
    step = "-r requirements.txt"
    if found.constraints:
        files["constraints.txt"] = "".join(f"{line}\n" for line in found.constraints)
        step += " -c constraints.txt"
    return Recipe(render(environment, image, [step]), files=files)


def _version(versions: Sequence[str]) -> str:
    """The Python of the base: ours when it will do, so that functions sent from here are understood there."""
    if not versions:
        raise BadSpec("no version of Python satisfies requires-python; name a base image with --base")
    return pythons.own() if pythons.own() in versions else versions[-1]


@contextmanager
def _context(made: Recipe) -> Iterator[tuple[Path, Path]]:
    """The folder the build sees, and where its Containerfile may be written."""
    with tempfile.TemporaryDirectory(prefix="shoal-image-") as private:
        for name, text in (made.files or {}).items():
            (Path(private) / name).write_text(text)
        yield made.folder or Path(private), Path(private) / "Containerfile"


def _log_in(program: str, tag: str, credentials: Credentials, auth: Path) -> None:
    registry = tag.split("/")[0]
    where = [f"--config={auth.parent}", "login"] if Path(program).name == "docker" else ["login", f"--authfile={auth}"]
    words = [program, *where, f"--username={credentials.user}", "--password-stdin", registry]
    password = os.environ[credentials.password_variable or ""]
    done = subprocess.run(words, input=password, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).replace(password, "…")
        raise StartFailed(
            f"{registry} did not let {credentials.user} in: {said[-500:]}; check the user and the password"
        )


def _run(words: list[str], tell: Tell) -> None:
    last = ""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, text=True, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout is not None
        for line in child.stdout:
            last = line.strip() or last
            tell(line.rstrip("\n"))
    if child.returncode:
        raise StartFailed(f"{Path(words[0]).name} left with {child.returncode} and said last: {last[-500:]}")
