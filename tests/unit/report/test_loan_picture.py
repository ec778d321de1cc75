# SPDX-License-Identifier: MIT
"""The picture of loans on the page of pal report: from the journal, only where there are orders."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.journal import paths
from slurm_pal.journal.journal import LoanOrder, Move, open_journal
from slurm_pal.journal.move_states import MoveOutcome

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from slurm_pal.report.drawing import Figure, our_settings
from slurm_pal.report.gpus import loan_course
from slurm_pal.report.gpus.loan_course import LoanCourse
from slurm_pal.report.gpus.loan_picture import MOST_POINTS, loans
from slurm_pal.report.gpus.pictures import pictures

from ...doubles.gpus_site import records, site_of

NOW_S = 1_800_000_000.0
LEFT = Move(
    0, 7, "anna", NOW_S - 600, 0, "n5:0,1", (), "", "", 0.0, 0.0, 0.0, 120.0, False, "", "planned", NOW_S - 600,
    owners="owner",
)  # fmt: skip


def order(ago_s: float, used: int = 2, predicted: float | None = 3.0, opened: str = "n[6-7]") -> LoanOrder:
    return LoanOrder("guest", NOW_S - ago_s, True, 8, used, 1, predicted, 2, opened, "as before")


def drawn(course: LoanCourse) -> dict[str, tuple[list[float], list[float]]]:
    """Label -> x and y of each line."""
    with our_settings():
        figure = Figure()
        assert loans(course, figure) == ""
        return {
            str(line.get_label()): ([*map(float, line.get_xdata())], [*map(float, line.get_ydata())])
            for line in figure.axes[0].get_lines()
        }


def test_need_expectation_and_open_nodes_over_time() -> None:
    lines = drawn(LoanCourse((order(900, predicted=None), order(600), order(300, 4, 4.0, ""))))
    assert lines["needed"] == ([NOW_S - 900, NOW_S - 600, NOW_S - 300], [3, 3, 5])
    assert lines["open"][1] == [2, 2, 0] and lines["all"][1] == [8, 8, 8]
    assert math.isnan(lines["expected"][1][0]) and lines["expected"][1][1:] == [3, 4]
    assert not [name for name in lines if name.startswith("guests")]


def test_guests_that_left_are_marked_and_a_pause_is_a_gap() -> None:
    course = LoanCourse((order(20_000), order(19_700), order(600), order(300)), (NOW_S - 30_000, NOW_S - 600))
    lines = drawn(course)
    assert lines["guests that left (1)"] == ([NOW_S - 600], [0]), "the other one was before the first order"
    x, y = lines["needed"]
    assert len(x) == 6 and math.isnan(y[3]) and x[3] == NOW_S - 19_700 + 3600


def test_many_orders_keep_the_highest_need_of_each_stretch() -> None:
    orders = [order(300.0 * k, used=7 if k == 2500 else 2) for k in range(5 * MOST_POINTS, 0, -1)]
    x, y = drawn(LoanCourse(tuple(orders)))["needed"]
    assert len(x) <= MOST_POINTS + 1 and max(y) == 8 and x[0] <= NOW_S - 300.0 * (5 * MOST_POINTS - 5)


def test_a_page_has_it_only_where_there_are_orders() -> None:
    report = site_of(records(gpus=1, sweeps=1))
    assert not [one for one in pictures(report, ()) if one.name == "loans"]
    with_loans = report._replace(loans=LoanCourse((order(600), order(300)), (NOW_S - 500,)))
    (picture,) = (one for one in pictures(with_loans) if one.name == "loans")
    assert not picture.missing and picture.images["svg"].startswith(b"<?xml")
    assert picture.images == next(one for one in pictures(with_loans) if one.name == "loans").images


def test_the_last_week_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    assert loan_course.read(config, NOW_S) is None
    with open_journal(str(tmp_path / "rebalance.db")) as journal:
        journal.finish(journal.begin(LEFT), MoveOutcome.RECLAIMED, "", NOW_S)
        journal.finish(journal.begin(LEFT._replace(job_id=8)), MoveOutcome.ABANDONED, "", NOW_S)
        assert loan_course.read(config, NOW_S) is None
        journal.add_loan_order(order(8 * 86400))
        journal.add_loan_order(order(600))
    assert loan_course.read(config, NOW_S) == LoanCourse((order(600),), (NOW_S - 600,))
