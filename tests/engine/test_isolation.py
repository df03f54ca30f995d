"""Which way of keeping jobs apart is taken, from what is asked for, how many people there are and what is offered."""

from __future__ import annotations

import pytest

from shoal.engine.isolation import Around, Asked, Mode, Offers, choose
from shoal.errors import BadConfig

BOTH = Offers()
NO_ROOT = Offers(user="not root; start it as root")
NO_BWRAP = Offers(bubblewrap="not installed; install it")
NOTHING = Offers("not root; start it as root", "not installed; install it")
STRANGE_PYTHON = Offers(python="/usr/bin/python3")


@pytest.mark.parametrize(
    ("asked", "people", "offers", "mode"),
    [
        ("auto", 1, BOTH, "none"),
        ("auto", 2, BOTH, "user"),
        ("auto", 2, NO_ROOT, "bubblewrap"),
        ("auto", 2, NO_BWRAP, "user"),
        ("auto", 2, NOTHING, "none"),
        # Others cannot run the server's Python: a sandbox shows it to them.
        ("auto", 2, STRANGE_PYTHON, "bubblewrap"),
        ("auto", 2, Offers(bubblewrap="none", python="/usr/bin/python3"), "user"),
        ("user", 1, BOTH, "user"),
        ("bubblewrap", 1, BOTH, "bubblewrap"),
        ("none", 5, BOTH, "none"),
    ],
)
def test_the_way_that_is_taken(asked: Asked, people: int, offers: Offers, mode: Mode) -> None:
    assert choose(asked, people, lambda: offers).mode == mode


@pytest.mark.parametrize(("asked", "offers"), [("user", NO_ROOT), ("bubblewrap", NO_BWRAP)])
def test_a_way_that_was_asked_for_and_cannot_be_had_is_refused_with_what_to_do(asked: Asked, offers: Offers) -> None:
    with pytest.raises(
        BadConfig, match=f"isolation.mode = '{asked}' cannot be had here: .*; .*; or set the mode to auto"
    ):
        choose(asked, 1, lambda: offers)


def test_nothing_is_tried_out_for_one_user() -> None:
    def never() -> Offers:
        raise AssertionError("looked")

    assert choose("auto", 1, never).mode == "none"
    assert choose("none", 9, never).mode == "none"


def test_a_machine_that_has_nothing_says_what_is_missing() -> None:
    why = choose("auto", 2, lambda: NOTHING).why
    assert "not root" in why and "not installed" in why


def test_without_a_sandbox_the_engine_switches_the_user_and_in_one_the_shepherd() -> None:
    outside, inside = Around(uid=70000, gid=70001), Around(("bwrap",), 70000, 70001)
    assert outside.switch == {"user": 70000, "group": 70001, "extra_groups": []} and outside.arguments == []
    assert inside.switch == {} and inside.arguments == ["--as", "70000:70001"]
    assert Around(("bwrap",)).arguments == [] and Around().switch == {}
