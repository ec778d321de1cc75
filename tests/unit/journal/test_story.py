# SPDX-License-Identifier: MIT
"""The words that tell a job's owner what the tick did with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.journal import story

MOVED = {"ev": "1763712345", "what": "moved", "gain": "812.5", "from": "n3:0,1 n4:2", "to": "n5:0,1,2"}
PLAIN = st.text("abcxyz019 ;=:,é", max_size=120).map(lambda text: " ".join(text.split(" ")).strip(" "))


def test_an_event_is_read_back() -> None:
    text = story.added("asked by the user", MOVED)
    assert text is not None and text.startswith("asked by the user pal:ev=1763712345;what=moved;gain=812.5;")
    assert story.events(text) == [
        {"at_s": 1763712345.0, "what": "moved", "gain_s": 812.5, "from": "n3:0,1 n4:2", "to": "n5:0,1,2"}
    ]


def test_the_oldest_events_make_way() -> None:
    text: str | None = "kept pal:lease=60;req=;exc=;class=A"
    for number in range(30):
        text = story.added(text or "", {"ev": str(1000 + number), "what": "exclude", "set": f"n[{number}-9999]"})
        assert text is not None
    found = story.events(text or "")
    assert [event["at_s"] for event in found] == [float(1030 - story.KEEP + n) for n in range(story.KEEP)]
    assert (text or "").startswith("kept pal:lease=60;req=;exc=;class=A pal:ev=")


def test_a_list_that_does_not_fit_is_left_out_and_not_the_event() -> None:
    long = "n[" + ",".join(map(str, range(0, 900, 2))) + "]"
    text = story.added("", {"ev": "5", "what": "exclude", "set": long})
    assert text == "pal:ev=5;what=exclude"


def test_a_comment_without_room_is_left_alone() -> None:
    assert story.added("x" * 990, {"ev": "5", "what": "clear"}) is None


@pytest.mark.parametrize("value", ["a;what=moved", "n3\nn4", "a=b", "é", "$(id)"])
def test_a_value_that_a_word_cannot_hold_is_left_out(value: str) -> None:
    assert story.added("", {"ev": "5", "what": "clear", "set": value}) == "pal:ev=5;what=clear"


@pytest.mark.parametrize(
    "word", ["pal:ev=;what=move", "pal:ev=5", "pal:ev=x;what=move", "pal:ev=5;what=$x", "pal:evil=5;what=move"]
)
def test_a_word_that_makes_no_sense_is_passed_over(word: str) -> None:
    assert story.events(f"{word} pal:ev=7;what=clear;gain=nan") == [{"at_s": 7.0, "what": "clear"}]


def test_events_come_by_their_times() -> None:
    text = "pal:ev=9;what=clear between pal:ev=3;what=nodelist;set=n1"
    assert [event["what"] for event in story.events(text)] == ["nodelist", "clear"]


@given(PLAIN, st.lists(st.tuples(st.integers(0, 2**31), st.sampled_from(["nodelist", "move"]), PLAIN), max_size=12))
def test_whatever_is_not_ours_stays_and_the_comment_stays_short(own: str, added: list[tuple[int, str, str]]) -> None:
    text = own
    for at_s, what, names in added:
        text = story.added(text, {"ev": str(at_s), "what": what, "set": names}) or text
        assert len(text.encode()) <= marks.MOST
        assert at_s in [event["at_s"] for event in story.events(text)]
    assert " ".join(part for part in text.split(" ") if not part.startswith("pal:ev=")) == own
