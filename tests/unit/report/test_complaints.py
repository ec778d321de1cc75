# SPDX-License-Identifier: MIT
"""A fault that comes and goes is told once, not at each of its comings."""

from __future__ import annotations

import pytest

from slurm_pal.cli import complaints
from slurm_pal.cli.complaints import Complaints


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_that_comes_and_goes_is_shown_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    told = Complaints("pal", clock)
    for tick in range(100):
        clock.now_s = 3.0 * tick
        told.tell(["a", "b"] if tick % 2 else [])
    assert capsys.readouterr().err == "pal: a\npal: b\n"


def test_a_line_that_stays_is_shown_once_an_hour_with_its_count(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Complaints("pal", clock)
    for tick in range(241):
        clock.now_s = 30.0 * tick
        told.tell(["a"])
    assert capsys.readouterr().err == "pal: a\npal: a (119 times since)\npal: a (119 times since)\n"


def test_what_was_away_for_long_is_news(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    told = Complaints("pal", clock)
    for now_s in (0.0, 599.0, 1198.0, 1799.0):
        clock.now_s = now_s
        told.tell(["a"])
    assert capsys.readouterr().err == "pal: a\npal: a (2 times since)\n"


def test_only_so_many_lines_are_remembered(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complaints, "MOST", 3)
    told = Complaints("pal", clock)
    told.tell("abc")
    told.tell("a")  # came last now
    told.tell("d")  # b is forgotten
    capsys.readouterr()
    told.tell("a")
    told.tell("b")
    assert capsys.readouterr().err == "pal: b\n"


def test_a_full_disk_under_stderr_stops_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurm_pal.cli.common.say", full)
    Complaints("pal", clock).tell(["a"])
