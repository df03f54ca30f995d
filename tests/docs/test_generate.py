"""The documentation says what the code says: generated parts, links, and the keys that the job file's examples use."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.job.file import read_yaml
from shoal.job.spec import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(generate: Any, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generate.up_to_date(text) == text, "run: .venv/bin/python docs/generate.py"


def test_every_generated_part_is_used_once(generate: Any) -> None:
    used = re.findall(r"<!-- generated: ([a-z-]+) -->", "".join(page.read_text() for page in DOCS.rglob("*.md")))
    assert sorted(used) == sorted(generate.PARTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = page.parent / path if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in _anchors(found), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_job_files_in_the_text_parse(page: Path) -> None:
    for language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        data = read_yaml(text) if language == "yaml" else None
        if isinstance(data, dict) and "script" in data:
            parse(data)


def test_both_readmes_have_the_same_structure() -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")]
    assert len({tuple(re.findall(r"^(#+) ", page, re.MULTILINE)) for page in pages}) == 1
    assert len({tuple(language for language, _ in _FENCE.findall(page)) for page in pages}) == 1
    rows = [len(re.findall(r"^\|", page, re.MULTILINE)) for page in pages]
    assert rows[0] == rows[1]


def test_the_verification_snippet_agrees_with_the_signature() -> None:
    from shoal._lib import clock
    from shoal.control.alarms import sign

    (code,) = [text for _, text in _FENCE.findall((DOCS / "protocol.md").read_text()) if "def is_genuine" in text]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 – our own documentation
    header = sign("secret", int(clock.now()), b'{"kind": "test"}')
    assert names["is_genuine"]("secret", header, b'{"kind": "test"}')
    assert not names["is_genuine"]("secret", header, b'{"kind": "success"}')
    assert not names["is_genuine"]("secret", sign("secret", 1, b"{}"), b"{}")
