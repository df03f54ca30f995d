"""What looks like a secret, and how command lines and addresses are kept without it.

It is known by the name it is given (`--api-key`, `HF_TOKEN`), by its own looks (`ghp_…`, `https://user:word@host`), or
as the value of a variable with such a name. When in doubt it is hidden: a record short of a word is better than a leak.
"""

from __future__ import annotations

import re
from typing import Iterable, List, Mapping, Sequence

HIDDEN = "***"
SHORTEST = 6  # characters of a value worth looking for elsewhere: a shorter one hides half of every command line

_WORDS = frozenset({
    "password", "passwd", "passphrase", "pass", "pwd", "secret", "secrets", "token", "credential", "credentials",
    "creds", "apikey", "auth", "authorization", "bearer", "cookie", "privatekey", "accesskey", "secretkey",
    "signature", "sas",
})  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PART = re.compile(r"[^A-Za-z0-9]+")
_ASSIGNED = re.compile(r"(-{0,2}[A-Za-z][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
_INSIDE = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_.-]*)([=:]\s?)([^\s'\"&;,]+)")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"]*@")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_LOOKS = re.compile(
    r"(?:gh[opsur]_|github_pat_|glpat-|gl[a-z]{2,5}-|hf_|xox[a-z]-|sk-|pk_live_|sk_live_|rk_live_|shl_|npm_|pypi-|dop_v1_"
    r"|AKIA|ASIA|AIza|ya29\.|eyJ)[A-Za-z0-9_.+=-]{10,}"
    r"|-----BEGIN [^-]*-----.*",
    re.DOTALL,
)
_SPOKEN = re.compile(r"\b(bearer|basic|token)\s+[A-Za-z0-9_.+/=~-]{6,}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a variable or an option of that name holds a secret: `HF_TOKEN`, `--api-key`, not `--max-tokens`."""
    words = [word.lower() for word in _PART.split(_CAMEL.sub("-", name)) if word]
    return bool(_WORDS.intersection(words)) or (len(words) > 1 and words[-1] == "key")


def secret_values(*environments: Mapping[str, str]) -> List[str]:
    """The values of all variables whose names say that they are secret, longest first."""
    found = {value for each in environments for name, value in each.items() if is_secret_name(name)}
    return sorted((value for value in found if len(value) >= SHORTEST), key=len, reverse=True)


def hide(words: Sequence[str], known: Iterable[str] = ()) -> List[str]:
    """A command line with `***` for every secret in it. `known` are values that are hidden wherever they occur."""
    values = [value for value in known if len(value) >= SHORTEST]
    shown: List[str] = []
    follows = False  # the value of the option before
    for word in words:
        if follows and not word.startswith("--"):
            shown.append(HIDDEN)
            follows = False
            continue
        follows = _OPTION.fullmatch(word) is not None and is_secret_name(word)
        shown.append(hide_text(word, values))
    return shown


def hide_text(text: str, known: Iterable[str] = ()) -> str:
    """One word or line with `***` for what looks like a secret in it."""
    for value in known:
        text = text.replace(value, HIDDEN)
    whole = _ASSIGNED.fullmatch(text)
    if whole is not None and is_secret_name(whole[1]):
        return f"{whole[1]}={HIDDEN}"
    text = _SPOKEN.sub(lambda m: f"{m[1]} {HIDDEN}", text)
    text = _INSIDE.sub(lambda m: m[1] + m[2] + HIDDEN if is_secret_name(m[1]) else m[0], text)
    return _LOOKS.sub(HIDDEN, _ADDRESS.sub(lambda m: f"{m[1]}{HIDDEN}@", text))


def plain_address(address: str) -> str:
    """The address of a repository or package without who signs in, and without what stands behind `?` or `#`.

    Everything up to the last `@` goes, also where a password holds a slash: an address cut short is no leak.
    """
    scheme = _SCHEME.match(address)
    if scheme is None and (address.startswith(("/", ".", "~")) or "@" not in address):
        return hide_text(address)
    rest = re.split(r"[?#]", address[scheme.end() :] if scheme else address, maxsplit=1)[0]
    return (scheme[0] if scheme else "") + hide_text(rest.rpartition("@")[2])
