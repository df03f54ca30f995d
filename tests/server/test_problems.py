from __future__ import annotations

import errno
import json
import logging
import sqlite3
from typing import Any

import pytest

from shoal.errors import BadSpec, DiskFull, NotSignedIn, OffsetGap, ShoalError, StoreError, TooManyTries
from shoal.server.problems import Incident, answer, body_of, explain


def every_error() -> list[type[ShoalError]]:
    found, pending = [], [ShoalError]
    while pending:
        kind = pending.pop()
        found.append(kind)
        pending.extend(kind.__subclasses__())
    return found


def test_a_problem_has_the_fields_of_rfc_9457_and_the_facts_beside_them() -> None:
    document = json.loads(body_of(OffsetGap("worker-0", 9, 5)))
    assert document["type"] == "about:blank"
    assert document["title"] == "Conflict"
    assert document["status"] == 409
    assert document["code"] == "offset_gap"
    assert document["expected"] == 5
    assert "send from 5" in document["detail"]


def test_facts_cannot_overwrite_the_fields() -> None:
    assert json.loads(body_of(BadSpec("no", status=7, code="x")))["status"] == 400


def test_facts_that_json_cannot_carry_do_not_break_the_answer() -> None:
    document = json.loads(body_of(BadSpec("no", nan=float("nan"), odd=object())))
    assert document["nan"] is None


def test_every_error_has_a_code_of_its_own_and_a_status_that_exists() -> None:
    codes = [kind.__dict__["code"] for kind in every_error() if "code" in kind.__dict__]
    assert len(codes) == len(set(codes))


def test_a_refused_token_tells_how_to_sign_in_and_a_limit_when_to_come_back() -> None:
    assert answer(NotSignedIn("no")).headers["www-authenticate"] == "Bearer"
    assert answer(TooManyTries("no", 12.3)).headers["retry-after"] == "13"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_507(number: int) -> None:
    assert isinstance(explain(OSError(number, "full")), DiskFull)
    assert DiskFull("").status == 507


def test_a_full_disk_is_found_however_deep_it_is_wrapped() -> None:
    try:
        try:
            raise sqlite3.OperationalError("database or disk is full")
        except sqlite3.OperationalError as full:
            raise StoreError("the database refused") from full
    except StoreError as wrapped:
        assert isinstance(explain(wrapped), DiskFull)


def test_another_fault_of_the_database_stays_itself() -> None:
    wrong = StoreError("the database is locked")
    assert explain(wrong) is wrong


def test_what_nobody_foresaw_tells_an_incident_and_keeps_the_traceback_in_the_log(caplog: Any) -> None:
    with caplog.at_level(logging.ERROR):
        try:
            raise KeyError("secret detail")
        except KeyError as wrong:
            found = explain(wrong)
    assert isinstance(found, Incident)
    assert found.status == 500
    assert b"secret detail" not in body_of(found)
    assert found.facts["incident"] in caplog.text
    assert "secret detail" in caplog.text
